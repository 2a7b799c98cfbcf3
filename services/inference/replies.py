"""The shapes of OpenAI's chat API. Pure.

Our replies add three fields to OpenAI's: `policy_version`, `sampling` (the parameters that were used; in a stream, in the first chunk of a
choice) and, if the task asks users for feedback, `ask_feedback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from services.inference.answer import Choice, Delta
from services.inference.engine.wire import SampledToken
from services.inference.plan import RequestPlan

DONE = b"data: [DONE]\n\n"


def completion_body(plan: RequestPlan, choices: Sequence[Choice], tokenizer: Tokenizer) -> dict[str, Any]:
    """A whole answer."""
    shown = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(plan, choice.tokens, tokenizer),
            "finish_reason": choice.finish_reason,
        }
        for choice in choices
    ]
    return {
        **_head(plan, "chat.completion", _version(choices)),
        "sampling": plan.sampling,
        "choices": shown,
        "usage": usage(plan, choices),
    }


def opening_chunk(plan: RequestPlan, choice: Choice) -> dict[str, Any]:
    """The first chunk of a choice: its role and sampling parameters."""
    return {**_chunk(plan, choice, {"role": "assistant", "content": ""}), "sampling": plan.sampling_of(choice.index)}


def delta_chunk(plan: RequestPlan, choice: Choice, delta: Delta, tokenizer: Tokenizer) -> dict[str, Any]:
    """A chunk of new text."""
    return _chunk(plan, choice, {"content": delta.text}, logprobs=_logprobs(plan, delta.tokens, tokenizer))


def closing_chunk(plan: RequestPlan, choice: Choice) -> dict[str, Any]:
    """The chunk with the finish reason of a choice."""
    return _chunk(plan, choice, {}, finish_reason=choice.finish_reason)


def usage_chunk(plan: RequestPlan, choices: Sequence[Choice]) -> dict[str, Any]:
    """The last chunk, if the caller asked for usage."""
    return {**_head(plan, "chat.completion.chunk", _version(choices)), "choices": [], "usage": usage(plan, choices)}


def usage(plan: RequestPlan, choices: Sequence[Choice]) -> dict[str, int]:
    """The numbers of tokens of prompt and answer."""
    num_prompt, num_made = len(plan.prompt_ids), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_made, "total_tokens": num_prompt + num_made}


def _chunk(
    plan: RequestPlan,
    choice: Choice,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    shown = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    chunk = _head(plan, "chat.completion.chunk", choice.version)
    chunk["choices"] = [shown]
    if plan.request.includes_usage:
        chunk["usage"] = None
    return chunk


def _version(choices: Sequence[Choice]) -> int | None:
    return max((choice.version for choice in choices if choice.version is not None), default=None)


def _head(plan: RequestPlan, kind: str, version: int | None) -> dict[str, Any]:
    head = {
        "id": plan.completion_id,
        "object": kind,
        "created": int(plan.created_at),
        "model": plan.request.model,
        "system_fingerprint": f"{plan.policy}@v{version}",
        "policy_version": version,
    }
    if (is_asked := plan.ask_feedback) is not None:
        head["ask_feedback"] = is_asked
    return head


def _logprobs(plan: RequestPlan, tokens: Sequence[SampledToken], tokenizer: Tokenizer) -> dict[str, Any] | None:
    if not plan.request.logprobs:
        return None
    return {"content": [_logprob(token, tokenizer) for token in tokens], "refusal": None}


def _logprob(token: SampledToken, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token.id], skip_special_tokens=False)
    unfinished = "\ufffd" in text  # part of a character, so the bytes of the text are not its bytes
    return {
        "token": text,
        "logprob": token.logprob,
        "bytes": None if unfinished else list(text.encode()),
        "top_logprobs": [],
    }
