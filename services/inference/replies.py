"""The shapes of OpenAI's chat API. Pure.

Beside them stand `policy_version`, `sampling` (what was used, whatever was asked for; in the first chunk of a choice) and,
where the task asks users, `ask_feedback`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer

from services.inference.answer import Choice, Delta, SampledToken
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
    """The first chunk of a choice: who speaks, and how it is sampled."""
    return {**_chunk(plan, choice, {"role": "assistant", "content": ""}), "sampling": plan.sampling_of(choice.index)}


def delta_chunk(plan: RequestPlan, choice: Choice, delta: Delta, tokenizer: Tokenizer) -> dict[str, Any]:
    """What was added."""
    return _chunk(plan, choice, {"content": delta.text}, logprobs=_logprobs(plan, delta.tokens, tokenizer))


def closing_chunk(plan: RequestPlan, choice: Choice) -> dict[str, Any]:
    """Why a choice ended."""
    return _chunk(plan, choice, {}, finish_reason=choice.finish_reason)


def usage_chunk(plan: RequestPlan, choices: Sequence[Choice]) -> dict[str, Any]:
    """The last chunk, if the caller asked for it."""
    return {**_head(plan, "chat.completion.chunk", _version(choices)), "choices": [], "usage": usage(plan, choices)}


def usage(plan: RequestPlan, choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens read and made."""
    num_prompt, num_made = len(plan.prompt_ids), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_made, "total_tokens": num_prompt + num_made}


def event(content: object) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


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
    if plan.include_usage:
        chunk["usage"] = None
    return chunk


def _version(choices: Sequence[Choice]) -> int | None:
    return max((choice.version for choice in choices if choice.version is not None), default=None)


def _head(plan: RequestPlan, kind: str, version: int | None) -> dict[str, Any]:
    head = {
        "id": plan.completion_id,
        "object": kind,
        "created": int(plan.created_at),
        "model": plan.model,
        "system_fingerprint": f"{plan.policy}@v{version}",
        "policy_version": version,
    }
    if (is_asked := plan.ask_feedback) is not None:
        head["ask_feedback"] = is_asked
    return head


def _logprobs(plan: RequestPlan, tokens: Sequence[SampledToken], tokenizer: Tokenizer) -> dict[str, Any] | None:
    if not plan.logprobs:
        return None
    return {"content": [_logprob(token, tokenizer) for token in tokens], "refusal": None}


def _logprob(token: SampledToken, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token.id], skip_special_tokens=False)
    unfinished = "\ufffd" in text  # part of a character: its bytes are not those of the text
    return {
        "token": text,
        "logprob": token.logprob,
        "bytes": None if unfinished else list(text.encode()),
        "top_logprobs": [],
    }
