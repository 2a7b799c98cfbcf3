"""Reads and checks the body of `POST /v1/completions`, OpenAI's API from before chats. Pure.

A prompt is given to the model as it is: no template is put around it, and control strings in it become control tokens, because its
caller writes the whole prompt. For those who read the answer later it is logged as one turn of a user.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from services.http import read_json
from services.inference.bounds import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    check_biases,
    check_metadata,
    check_numbers,
    check_stops,
)
from services.inference.fields import StreamOptions, chat_notes, explain
from services.inference.requests import ChatRequest

_IDS = 2**31
_LARGE = 2**18
"""Bytes; a larger body is checked before it is decoded."""
_MAX_LISTED = 2**20
"""Bytes of a prompt that is a list."""
_MAX_IDS = 2**18
"""Its elements; commas in texts count too."""


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
_STRUCTS = ((re.compile(r""), PromptBody), (re.compile(r"stream_options"), StreamOptions))


class _Outline(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")


def parse_prompts(body: bytes) -> list[ChatRequest]:
    """Read and check a body; one request for each of its prompts.

    Raises:
        InvalidRequest: `param` names the field.
        Unsupported: the field is not served, or unknown.
    """
    if len(body) > _LARGE:
        _check_size(body)
    try:
        read = read_json(PromptBody, body)
    except InvalidRequest as error:
        raise explain(error, _STRUCTS) from error
    _check_served(read)
    check_numbers(read)
    check_metadata(read.metadata or {})
    if read.logprobs is not None and not 0 <= read.logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"logprobs must lie in [0, {MAX_TOP_LOGPROBS}], not {read.logprobs}", param="logprobs")
    given = dict(zip(_SAME, _same(read), strict=True))
    given |= {"logprobs": read.logprobs is not None, "top_logprobs": read.logprobs or None}
    given |= {"logit_bias": check_biases(read.logit_bias or {})}
    requests = [ChatRequest(messages=[], prompt=prompt, **given) for prompt in _several(read.prompt)]
    check_stops(requests[0].stops)
    if len(requests) * requests[0].num_choices > MAX_CHOICES:
        raise InvalidRequest(
            f"prompt takes up to {MAX_CHOICES} answers in one request, n for each prompt; send fewer", param="prompt"
        )
    return requests


def prompt_notes() -> dict[str, str]:
    """As `chat_notes`, for `/v1/completions`."""
    notes = {name: text for name, text in chat_notes().items() if name in PromptBody.__struct_fields__}
    notes["seed"] = "A signed 64-bit number; each choice gets a seed derived from it."
    notes |= {"return_token_ids": "vLLM's: the response has the token ids of prompt and answer."}
    notes["logprobs"] = f"From 0 to {MAX_TOP_LOGPROBS}."
    notes |= dict.fromkeys(("echo", "suffix", "best_of"), "Not served; a value that changes nothing is accepted.")
    return notes


def _check_size(body: bytes) -> None:
    prompt = bytes(read_json(_Outline, body).prompt)
    if len(prompt) > _MAX_LISTED and not prompt.startswith(b'"'):
        raise InvalidRequest(f"a list of prompts takes up to {_MAX_LISTED // 2**20} MiB; send fewer", param="prompt")
    if not prompt.startswith(b'"') and prompt.count(b",") > _MAX_IDS:
        raise InvalidRequest(f"a list of prompts takes up to {_MAX_IDS:,} token ids; send fewer", param="prompt")
    if len(body) - len(prompt) > _LARGE:
        raise InvalidRequest(f"everything but `prompt` takes up to {_LARGE // 2**10} KiB", param=None)


def _several(prompt: str | list[Any]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if len(kinds) != 1:
        raise InvalidRequest("prompt is a text, a list of texts, token ids, or a list of token ids", param="prompt")
    prompts = [prompt] if kinds == {int} else prompt
    if any(not isinstance(ids, str) and ids and not 0 <= min(ids) <= max(ids) < _IDS for ids in prompts):
        raise InvalidRequest("prompt: token ids are not negative", param="prompt")
    return prompts


def _check_served(read: PromptBody) -> None:
    if read.echo:
        raise Unsupported("`echo` is not supported: log-probs of prompts are not known; send false", param="echo")
    if read.suffix:
        raise Unsupported("`suffix` is not supported; leave it out", param="suffix")
    if read.best_of not in (None, 1):
        raise Unsupported("`best_of` is not supported; send `n`, and choose among the answers", param="best_of")
