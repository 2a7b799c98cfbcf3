"""The shapes of OpenAI's chat API. Pure.

Our replies add three fields to OpenAI's: `policy_version`, `sampling` (the parameters that were used; in a stream, in the first chunk of a
choice) and, if the task asks users for feedback, `ask_feedback`. Reasoning stands beside the content under both names that clients read,
`reasoning_content` and `reasoning`. With `return_token_ids` there are vLLM's `prompt_token_ids` and `token_ids`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from contracts.answers.parts import CallPart
from contracts.errors import MillraceError
from engines.wire import SampledToken
from services.http import event
from services.inference.answer import Choice, Delta
from services.inference.completion import Completion
from services.inference.plan import RequestPlan

_UNFINISHED = "\ufffd"


class Replies(ABC):
    """The response of one completion, whole or in chunks. The chunks of a stream that ended well are followed by `end`."""

    end = b"data: [DONE]\n\n"

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole answer."""

    @abstractmethod
    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """The chunks for what one step added; none if the caller sees nothing of it."""

    @abstractmethod
    def closing(self) -> list[dict[str, Any]]:
        """The last chunks: finish reasons and, if the caller asked for it, the usage."""

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """The last chunk of a stream that fails: the status line has been sent."""
        return error.as_openai()

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """A chunk as a server-sent event."""
        return event(chunk)

    async def keep(self) -> None:  # noqa: B027 most dialects keep nothing
        """Keep what later requests of the conversation need. Called once, before the answer ends."""


class NamedEvents(Replies):
    """Each event has its type as its name."""

    end = b""

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """See `Replies`."""
        return f"event: {chunk['type']}\n".encode() + event(chunk)


MakeReplies = Callable[[Completion, Tokenizer], Replies]


class ChatReplies(Replies):
    """The response to a chat."""

    def __init__(self, completion: Completion, tokenizer: Tokenizer) -> None:
        self._plan, self._choices = completion.plan, completion.choices
        self._tokenizer, self._opened = tokenizer, set[int]()

    def body(self) -> dict[str, Any]:
        """See `Replies`."""
        plan = self._plan
        shown = [
            {
                "index": choice.index,
                "message": message_of(choice.text, choice.reasoning, choice.calls),
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": _finish_reason(choice),
                **token_ids(plan, choice.tokens),
            }
            for choice in self._choices
        ]
        return {
            **head([plan], "chat.completion", self._choices),
            "sampling": plan.sampling.in_full,
            "choices": shown,
            "usage": usage([plan], self._choices),
            **prompt_ids(plan),
        }

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """See `Replies`. The first chunk of a choice has its role and its sampling parameters."""
        plan, choice = self._plan, self._choices[delta.choice]
        if choice.index not in self._opened:
            self._opened.add(choice.index)
            chunk = self._chunk(choice, {"role": "assistant", "content": ""})
            yield {**chunk, "sampling": plan.sampling_of(choice.index).in_full, **prompt_ids(plan)}
        request = plan.request
        if delta.text or delta.reasoning or delta.calls or request.logprobs or request.return_token_ids:
            chunk = self._chunk(choice, _delta(delta), logprobs=self._logprobs(delta.tokens))
            chunk["choices"][0] |= token_ids(plan, delta.tokens)
            yield chunk

    def closing(self) -> list[dict[str, Any]]:
        """See `Replies`."""
        chunks = [self._chunk(choice, {}, finish_reason=_finish_reason(choice)) for choice in self._choices]
        if self._plan.request.includes_usage:
            chunks.append(usage_chunk([self._plan], "chat.completion.chunk", self._choices))
        return chunks

    def _chunk(
        self,
        choice: Choice,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        chunk = head([self._plan], "chat.completion.chunk", [choice])
        chunk["choices"] = [
            {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        ]
        if self._plan.request.includes_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if not self._plan.request.logprobs:
            return None
        return {"content": [logprob_of(token, self._tokenizer) for token in tokens], "refusal": None}


def message_of(text: str, reasoning: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    return message | _reasoning(reasoning)


def head(plans: Sequence[RequestPlan], kind: str, choices: Sequence[Choice]) -> dict[str, Any]:
    """What every reply of a request begins with."""
    plan, version = plans[0], max((c.version for c in choices if c.version is not None), default=None)
    return {
        "id": plan.completion_id,
        "object": kind,
        "created": int(plan.created_at),
        "model": plan.request.model,
        "system_fingerprint": fingerprint(plan.policy, version),
        "policy_version": version,
        **plan.asking,
    }


def fingerprint(policy: str, version: int | None) -> str | None:
    """The name of the weights that made an answer; None if nobody can tell their version, or not yet."""
    return None if version is None else f"{policy}@v{version}"


def usage(plans: Sequence[RequestPlan], choices: Sequence[Choice]) -> dict[str, Any]:
    """The numbers of tokens of prompts and answers. A prompt counts once however many choices it has, and so do its cached tokens."""
    num_prompt, num_made = sum(len(plan.prompt_ids) for plan in plans), sum(len(choice.tokens) for choice in choices)
    each = plans[0].request.num_choices
    num_cached = sum(
        min(choice.num_cached for choice in choices[start : start + each]) for start in range(0, len(choices), each)
    )
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_made,
        "total_tokens": num_prompt + num_made,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def usage_chunk(plans: Sequence[RequestPlan], kind: str, choices: Sequence[Choice]) -> dict[str, Any]:
    """The last chunk, if the caller asked for usage."""
    return {**head(plans, kind, choices), "choices": [], "usage": usage(plans, choices)}


def prompt_ids(plan: RequestPlan) -> dict[str, Any]:
    """The token ids of the prompt, if the caller asked for them."""
    return {"prompt_token_ids": plan.prompt_ids} if plan.request.return_token_ids else {}


def token_ids(plan: RequestPlan, tokens: Sequence[SampledToken]) -> dict[str, Any]:
    """The token ids of an answer or a part of it, if the caller asked for them."""
    return {"token_ids": [token.id for token in tokens]} if plan.request.return_token_ids else {}


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    """The text of one token alone; a part of a character has U+FFFD."""
    return str(tokenizer.decode([token_id], skip_special_tokens=False))


def logprob_of(token: SampledToken, tokenizer: Tokenizer) -> dict[str, Any]:
    """The log-prob of a token, and the tokens that might have stood there."""
    top = [_candidate(token_id, logprob, tokenizer) for token_id, logprob in token.top]
    return {**_candidate(token.id, token.logprob, tokenizer), "top_logprobs": top}


def _delta(delta: Delta) -> dict[str, Any]:
    shown = _reasoning(delta.reasoning)
    if delta.calls:
        shown["tool_calls"] = [_call_delta(part) for part in delta.calls]
    if delta.text or not shown:
        shown["content"] = delta.text
    return shown


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _call_delta(part: CallPart) -> dict[str, Any]:
    if part.id is None:
        return {"index": part.number, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.number, "id": part.id, "type": "function", "function": function}


def _finish_reason(choice: Choice) -> str | None:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _candidate(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    text = token_text(token_id, tokenizer)
    unfinished = _UNFINISHED in text  # part of a character, so the bytes of the text are not its bytes
    return {"token": text, "logprob": logprob, "bytes": None if unfinished else list(text.encode())}
