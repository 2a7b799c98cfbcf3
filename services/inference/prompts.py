"""Reads and checks the body of `POST /v1/completions`, OpenAI's API from before chats. Pure.

A prompt is given to the model as it is: no template is put around it, and control strings in it become control tokens, because its
caller writes the whole prompt. For those who read the answer later it is logged as one turn of a user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer

from contracts.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from services.http import read_json
from services.inference.bounds import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    check_biases,
    check_metadata,
    check_numbers,
    check_stops,
)
from services.inference.fields import StreamOptions, explain
from services.inference.plain_tokenizer import bounded_ids
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


_SAME = tuple(name for name in PromptBody.__struct_fields__ if name in ChatRequest.__struct_fields__)
_same = attrgetter(*(name for name in _SAME if name not in ("logprobs", "logit_bias")))


_STRUCTS = ((re.compile(r""), PromptBody), (re.compile(r"stream_options"), StreamOptions))


class _Outline(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw(b"")


class Prompt(NamedTuple):
    """One of the prompts of a request. `ids` None: `request.messages` has its text, which is not encoded yet."""

    request: ChatRequest
    ids: list[int] | None


def parse_prompts(body: bytes) -> list[Prompt]:
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
    names = (name for name in _SAME if name not in ("logprobs", "logit_bias"))
    given = dict(zip(names, _same(read), strict=True))
    given |= {"logprobs": read.logprobs is not None, "top_logprobs": read.logprobs or None}
    given |= {"logit_bias": check_biases(read.logit_bias or {})}
    prompts = [_prompt(prompt, given) for prompt in _several(read.prompt)]
    check_stops(prompts[0].request.stops)
    if len(prompts) * prompts[0].request.num_choices > MAX_CHOICES:
        raise InvalidRequest(
            f"prompt takes up to {MAX_CHOICES} answers in one request, n for each prompt; send fewer", param="prompt"
        )
    return prompts


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, context: int, most_characters: int) -> list[int]:
    """The token ids of a prompt. Releases the GIL while it encodes.

    Raises:
        InvalidRequest: it has no token, or an id that the policy does not have.
        ContextLengthExceeded: it is longer than the context.
    """
    if prompt.ids is None:
        text = prompt.request.messages[0]["content"]
        if len(text) > most_characters:
            raise ContextLengthExceeded(
                f"the prompt has {len(text)} characters; this policy's context of {context} tokens holds at most "
                f"{most_characters}",
                param="prompt",
            )
        ids = bounded_ids(tokenizer.encode_batch_fast([text], add_special_tokens=True)[0], context, "prompt")
    else:
        ids = prompt.ids[:context]
        unknown = next((token_id for token_id in ids if tokenizer.id_to_token(token_id) is None), None)
        if unknown is not None:
            raise InvalidRequest(f"prompt: {unknown} is not a token of this policy", param="prompt")
    if (num := len(ids if prompt.ids is None else prompt.ids)) >= context:
        raise ContextLengthExceeded(
            f"the prompt has {num} tokens; this policy's context is {context}, answer included", param="prompt"
        )
    if not ids:
        raise InvalidRequest("prompt has no token; send at least one", param="prompt")
    return ids


def with_text(prompt: Prompt, tokenizer: Tokenizer) -> ChatRequest:
    """The request with the text of its prompt, for those who read it later. Releases the GIL while it decodes."""
    if prompt.ids is None:
        return prompt.request
    [text] = tokenizer.decode_batch([prompt.ids], skip_special_tokens=False)
    return msgspec.structs.replace(prompt.request, messages=[{"role": "user", "content": text}])


def _check_size(body: bytes) -> None:
    prompt = bytes(read_json(_Outline, body).prompt)
    if len(prompt) > _MAX_LISTED and not prompt.startswith(b'"'):
        raise InvalidRequest(f"a list of prompts takes up to {_MAX_LISTED // 2**20} MiB; send fewer", param="prompt")
    if not prompt.startswith(b'"') and prompt.count(b",") > _MAX_IDS:
        raise InvalidRequest(f"a list of prompts takes up to {_MAX_IDS:,} token ids; send fewer", param="prompt")
    if len(body) - len(prompt) > _LARGE:
        raise InvalidRequest(f"everything but `prompt` takes up to {_LARGE // 2**10} KiB", param=None)


def _several(prompt: str | Sequence[Any]) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [list(prompt)]
    if len(kinds) != 1:
        raise InvalidRequest("prompt is a text, a list of texts, token ids, or a list of token ids", param="prompt")
    return list(prompt)


def _prompt(prompt: str | list[int], given: dict[str, Any]) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(ChatRequest(messages=[{"role": "user", "content": prompt}], **given), None)
    if prompt and not 0 <= min(prompt) <= max(prompt) < _IDS:
        raise InvalidRequest("prompt: token ids are not negative", param="prompt")
    return Prompt(ChatRequest(messages=[], **given), prompt)


def _check_served(read: PromptBody) -> None:
    if read.echo:
        raise Unsupported("`echo` is not supported: log-probs of prompts are not known; send false", param="echo")
    if read.suffix:
        raise Unsupported("`suffix` is not supported; leave it out", param="suffix")
    if read.best_of not in (None, 1):
        raise Unsupported("`best_of` is not supported; send `n`, and choose among the answers", param="best_of")
