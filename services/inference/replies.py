"""The shapes of OpenAI's chat API. Pure.

Our replies add three fields to OpenAI's: `policy_version`, `sampling` (the parameters that were used; in a stream, in the first chunk of a
choice) and, if the task asks users for feedback, `ask_feedback`. Reasoning stands beside the content under both names that clients read,
`reasoning_content` and `reasoning`. With `return_token_ids` there are vLLM's `prompt_token_ids` and `token_ids`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from services.inference.answer import Choice, Delta
from services.inference.engine.wire import SampledToken
from services.inference.parts import CallPart
from services.inference.plan import RequestPlan

DONE = b"data: [DONE]\n\n"


def completion_body(plan: RequestPlan, choices: Sequence[Choice], tokenizer: Tokenizer) -> dict[str, Any]:
    """A whole answer."""
    shown = [
        {
            "index": choice.index,
            "message": message_of(choice.text, choice.reasoning, choice.calls),
            "logprobs": _logprobs(plan, choice.tokens, tokenizer),
            "finish_reason": _finish_reason(choice),
            **_token_ids(plan, choice.tokens),
        }
        for choice in choices
    ]
    return {
        **_head(plan, "chat.completion", _version(choices)),
        "sampling": plan.sampling,
        "choices": shown,
        "usage": usage(plan, choices),
        **_prompt_ids(plan),
    }


def message_of(text: str, reasoning: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    return message | _reasoning(reasoning)


def opening_chunk(plan: RequestPlan, choice: Choice) -> dict[str, Any]:
    """The first chunk of a choice: its role and sampling parameters."""
    chunk = _chunk(plan, choice, {"role": "assistant", "content": ""})
    return {**chunk, "sampling": plan.sampling_of(choice.index), **_prompt_ids(plan)}


def delta_chunk(plan: RequestPlan, choice: Choice, delta: Delta, tokenizer: Tokenizer) -> dict[str, Any]:
    """A chunk of new content, reasoning or calls."""
    shown = _reasoning(delta.reasoning)
    if delta.calls:
        shown["tool_calls"] = [_call_delta(part) for part in delta.calls]
    if delta.text or not shown:
        shown["content"] = delta.text
    chunk = _chunk(plan, choice, shown, logprobs=_logprobs(plan, delta.tokens, tokenizer))
    chunk["choices"][0] |= _token_ids(plan, delta.tokens)
    return chunk


def closing_chunk(plan: RequestPlan, choice: Choice) -> dict[str, Any]:
    """The chunk with the finish reason of a choice."""
    return _chunk(plan, choice, {}, finish_reason=_finish_reason(choice))


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


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _call_delta(part: CallPart) -> dict[str, Any]:
    if part.id is None:
        return {"index": part.number, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.number, "id": part.id, "type": "function", "function": function}


def _finish_reason(choice: Choice) -> str | None:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _prompt_ids(plan: RequestPlan) -> dict[str, Any]:
    return {"prompt_token_ids": plan.prompt_ids} if plan.request.return_token_ids else {}


def _token_ids(plan: RequestPlan, tokens: Sequence[SampledToken]) -> dict[str, Any]:
    return {"token_ids": [token.id for token in tokens]} if plan.request.return_token_ids else {}


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
    top = [_candidate(token_id, logprob, tokenizer) for token_id, logprob in token.top]
    return {**_candidate(token.id, token.logprob, tokenizer), "top_logprobs": top}


def _candidate(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    unfinished = "\ufffd" in text  # part of a character, so the bytes of the text are not its bytes
    return {"token": text, "logprob": logprob, "bytes": None if unfinished else list(text.encode())}
