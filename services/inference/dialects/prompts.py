"""OpenAI's completions API, the one from before chats: reads and checks the body of `POST /v1/completions`, and shapes the answer. Pure.

A prompt is given to the model as it is: no template is put around it, and control strings in it become control tokens, because its
caller writes the whole prompt. For those who read the answer later it is logged as one turn of a user.

The answers to several prompts are numbered through. If there are several prompts, each answer has the `completion_id` and the `choice`
by which feedback refers to it; else these are the id of the response and the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from tokenizers import Tokenizer

from contracts.errors import InvalidRequest, Unsupported, field_error
from engines.wire import SampledToken
from services.http import read_json
from services.inference import bounds
from services.inference.answer import Delta
from services.inference.completion import Completion
from services.inference.fields import StreamOptions, chat_notes, read_fields
from services.inference.replies import Replies, head, prompt_ids, token_ids, token_text, usage, usage_chunk
from services.inference.requests import ChatRequest

_IDS = 2**31
_LARGE = 2**18
"""Bytes; a larger body is checked before it is decoded."""
_MAX_LISTED = 2**20
"""Bytes of a prompt that is a list."""
_MAX_IDS = 2**18
"""Its elements; commas in texts count too."""
_KIND = "text_completion"


class PromptBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The known fields."""

    model: str
    prompt: str | list[str | int | list[int]]
    """A text, token ids, or several of either."""
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: int | None = None
    """How many of the likeliest tokens to report at each place, beside the sampled one."""
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    return_token_ids: bool | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


PROMPT_EXAMPLE: dict[str, Any] = {"model": "reservations", "prompt": "A table for", "max_tokens": 8}
_OWN = ("prompt", "logprobs", "logit_bias")
_SAME = [name for name in PromptBody.__struct_fields__ if name in ChatRequest.__struct_fields__ and name not in _OWN]
_same = attrgetter(*_SAME)


class _Outline(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")


def parse_prompts(body: bytes) -> list[ChatRequest]:
    """Read and check a body; one request for each of its prompts. Raises InvalidRequest, Unsupported: `param` names the field."""
    if len(body) > _LARGE:
        _check_size(body)
    read = read_fields(PromptBody, body)
    _check_served(read)
    bounds.check_numbers(read)
    bounds.check_metadata(read.metadata or {})
    if read.logprobs is not None and not 0 <= read.logprobs <= bounds.MAX_TOP_LOGPROBS:
        raise field_error("logprobs", f"must lie in [0, {bounds.MAX_TOP_LOGPROBS}], not {read.logprobs}")
    given = dict(zip(_SAME, _same(read), strict=True))
    given |= {"logprobs": read.logprobs is not None, "top_logprobs": read.logprobs or None}
    given |= {"logit_bias": bounds.check_biases(read.logit_bias or {})}
    requests = [ChatRequest(messages=[], prompt=prompt, **given) for prompt in _several(read.prompt)]
    bounds.check_stops(requests[0].stops)
    if len(requests) * requests[0].num_choices > bounds.MAX_CHOICES:
        most = f"takes up to {bounds.MAX_CHOICES} answers in one request, n for each prompt; send fewer"
        raise field_error("prompt", most)
    return requests


def prompt_notes() -> dict[str, str]:
    """As `chat_notes`, for `/v1/completions`."""
    notes = {name: text for name, text in chat_notes().items() if name in PromptBody.__struct_fields__}
    notes["seed"] = "A signed 64-bit number; each choice gets a seed derived from it."
    notes |= {"return_token_ids": "vLLM's: the response has the token ids of prompt and answer."}
    notes["logprobs"] = f"From 0 to {bounds.MAX_TOP_LOGPROBS}."
    notes |= dict.fromkeys(("echo", "suffix", "best_of"), "Not served; a value that changes nothing is accepted.")
    return notes


def _check_size(body: bytes) -> None:
    prompt = bytes(read_json(_Outline, body).prompt)
    if not prompt.startswith(b'"') and (len(prompt) > _MAX_LISTED or prompt.count(b",") > _MAX_IDS):
        most = f"{_MAX_LISTED // 2**20} MiB" if len(prompt) > _MAX_LISTED else f"{_MAX_IDS:,} token ids"
        raise InvalidRequest(f"a list of prompts takes up to {most}; send fewer", param="prompt")
    if len(body) - len(prompt) > _LARGE:
        raise InvalidRequest(f"everything but `prompt` takes up to {_LARGE // 2**10} KiB", param=None)


def _several(prompt: str | list[Any]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if len(kinds) != 1:
        raise field_error("prompt", "is a text, a list of texts, token ids, or a list of token ids")
    prompts = [prompt] if kinds == {int} else prompt
    if any(not isinstance(ids, str) and ids and not 0 <= min(ids) <= max(ids) < _IDS for ids in prompts):
        raise InvalidRequest("prompt: token ids are not negative", param="prompt")
    return prompts


def _check_served(read: PromptBody) -> None:
    if read.echo:
        raise Unsupported("`echo` is not supported: log-probs of prompts are not known; send false", param="echo")
    if read.suffix:
        raise bounds.unserved("suffix")
    if read.best_of not in (None, 1):
        raise bounds.unserved("best_of", "send `n`, and choose among the answers")


class PromptReplies(Replies):
    """The response to one or more prompts."""

    def __init__(self, completion: Completion, tokenizer: Tokenizer) -> None:
        self._plans, self._plan_of = completion.plans, completion.plan_of
        self._choices, self._tokenizer = completion.choices, tokenizer
        self._num_characters = [0] * len(self._choices)
        self._opened = set[int]()

    def body(self) -> dict[str, Any]:
        """See `Replies`."""
        shown = [
            {
                **self._choice(position, choice.text, choice.tokens),
                **prompt_ids(self._plan_of[position]),
                "finish_reason": choice.finish_reason,
            }
            for position, choice in enumerate(self._choices)
        ]
        return {
            **head(self._plans, _KIND, self._choices),
            "sampling": self._plans[0].sampling.in_full,
            "choices": shown,
            "usage": usage(self._plans, self._choices),
        }

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """See `Replies`."""
        position, plan = delta.choice, self._plan_of[delta.choice]
        opens = position not in self._opened
        if not (opens or delta.text or plan.request.logprobs or plan.request.return_token_ids):
            return
        self._opened.add(position)
        choice = self._choice(position, delta.text, delta.tokens)
        if opens:
            sampling = plan.sampling_of(self._choices[position].index).in_full
            yield {**self._chunk(position, choice | prompt_ids(plan)), "sampling": sampling}
        else:
            yield self._chunk(position, choice)

    def closing(self) -> list[dict[str, Any]]:
        """See `Replies`."""
        chunks = [
            self._chunk(position, {**self._choice(position, "", ()), "finish_reason": choice.finish_reason})
            for position, choice in enumerate(self._choices)
        ]
        if self._plans[0].request.includes_usage:
            chunks.append(usage_chunk(self._plans, _KIND, self._choices))
        return chunks

    def _chunk(self, position: int, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**head(self._plans, _KIND, [self._choices[position]]), "choices": [choice]}
        if self._plans[0].request.includes_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, position: int, text: str, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        plan, choice = self._plan_of[position], self._choices[position]
        logprobs = self._logprobs(position, tokens) if tokens and plan.request.logprobs else None
        shown = {"index": position, "text": text, "logprobs": logprobs, "finish_reason": None}
        address = {"completion_id": plan.completion_id, "choice": choice.index} if len(self._plans) > 1 else {}
        return shown | token_ids(plan, tokens) | address

    def _logprobs(self, position: int, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        texts = [token_text(token.id, self._tokenizer) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._num_characters[position])
            self._num_characters[position] += len(text)
        top = [self._top(token) for token in tokens] if self._plans[0].request.top_logprobs else None
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _top(self, token: SampledToken) -> dict[str, float]:
        """By text, the likeliest first; the sampled token is always there."""
        found: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.id, token.logprob)):
            found.setdefault(token_text(token_id, self._tokenizer), logprob)
        return found
