"""vLLM's token-in-token-out route, `POST /inference/v1/generate`, which our engine serves too: what is sent, and what is read. Pure.

vLLM names the version of each token in the last event only; our engine names it in each event that begins a span. Nothing is filled
in: a token needs its id and a finite log-prob, else the answer is refused.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from contracts.errors import EngineFailed, EngineRestarted, GrammarStuck, InvalidRequest, MillraceError
from contracts.packing import MOST_IDS
from contracts.sampling import ExpertShape, Span
from engines.wire import EngineRequest, Piece, RecordedExperts, SampledToken, System

PATH = "/inference/v1/generate"
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SHOWN_CHARACTERS = 300

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_NEVER_DRAWN = -9999.0
"""What vLLM writes for a log-prob of minus infinity."""
LogProb = Annotated[float, msgspec.Meta(gt=_NEVER_DRAWN, le=1e-2)]
"""The logarithm of a probability; anything above rounding error is wrong."""


class EngineFault(msgspec.Struct):
    """An error object of an engine."""

    message: str = "no reason given"
    code: str | int | None = None
    param: str | None = None


class _TopLogprob(msgspec.Struct):
    token_id: TokenId
    logprob: float


class _TokenLogprob(msgspec.Struct):
    token_id: TokenId
    logprob: LogProb
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _WeightVersion(msgspec.Struct):
    version: str
    start: int


class _Choice(msgspec.Struct):
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    text: str | None = None
    weight_versions: list[_WeightVersion] | None = None
    routed_experts: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    system: System | None = None
    error: EngineFault | None = None


_EVENT = msgspec.json.Decoder(_Event)
_FAULTS: dict[str, type[MillraceError]] = {kind.code: kind for kind in (EngineRestarted, GrammarStuck)}
_FAULTS["400"] = InvalidRequest  # vLLM begins the stream before it reads a grammar
_VERSION = re.compile(r"v?(0|[1-9][0-9]{0,17})")


def route_body(request: EngineRequest, made: Sequence[int]) -> dict[str, Any]:
    """What every engine is told of a request whose answer has the tokens `made` already.

    Every parameter with a default in a model's generation configuration is given, because vLLM takes them from there.
    """
    sampling = request.sampling
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens - len(made),
        "logprobs": request.num_logprobs,
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if sampling.frequency_penalty:
        params["frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        params["presence_penalty"] = sampling.presence_penalty
    if sampling.logit_bias:
        params["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if request.constraint is not None:
        params["structured_outputs"] = request.constraint
    body: dict[str, Any] = {
        "request_id": request.request_id,
        "token_ids": [*request.prompt_ids, *made],
        "stream": True,
        "sampling_params": params,
    }
    if request.background:
        body["priority"] = 1
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return body


def reader_of(request: EngineRequest, offset: int) -> Callable[[bytes], Piece]:
    """Reads the events of one stream, whose first token has number `offset` in the answer."""
    return partial(read_event, offset=offset, num_top=request.num_top, with_support=request.with_support)


def read_event(data: bytes, offset: int, num_top: int = 0, *, with_support: bool = False) -> Piece:
    """One event of a stream whose first token has number `offset` in the answer. An event may have no token.

    Raises EngineRestarted: the engine lost the request, or ended it without an answer; GrammarStuck: the grammar of the answer cannot go
    on; EngineFailed: the engine reports a failure, or the event cannot be used.
    """
    try:
        event = _EVENT.decode(data)
    except UNREADABLE as error:
        raise EngineFailed(f"the engine sent an event that cannot be used: {error}: {shown(data)}") from error
    if event.error is not None:
        kind = _FAULTS.get(str(event.error.code), EngineFailed)
        raise kind(f"the engine failed: {event.error.message[:_SHOWN_CHARACTERS]}")
    details = None if event.usage is None else event.usage.prompt_tokens_details
    num_cached = None if details is None else details.cached_tokens
    if len(event.choices) != 1:
        if event.choices:
            raise EngineFailed(f"the engine sent {len(event.choices)} choices to a request for one")
        return Piece([], [], None, system=event.system, num_cached=num_cached)
    choice = event.choices[0]
    if choice.finish_reason == "abort":
        raise EngineRestarted("the engine aborted the request")
    told = choice.weight_versions
    return Piece(
        _tokens(choice, num_top, with_support=with_support),
        _spans(told, offset) if told else [],
        choice.finish_reason,
        _experts(choice.routed_experts) if choice.routed_experts else None,
        event.system,
        num_cached=num_cached,
    )


def _tokens(choice: _Choice, num_top: int, *, with_support: bool) -> list[SampledToken]:
    ids, content = choice.token_ids or [], (choice.logprobs.content if choice.logprobs else None) or []
    if len(ids) != len(content) or (choice.text and not ids):
        raise EngineFailed(
            f"the engine sent {len(ids)} token ids with {len(content)} log-probs"
            f"{' and text' if choice.text else ''}; each token needs its id and its log-prob"
        )
    if [entry.token_id for entry in content] != ids:
        raise EngineFailed("the engine sent log-probs of other tokens than it sampled")
    if num_top == 0 and not with_support:
        return [SampledToken(entry.token_id, entry.logprob) for entry in content]
    return [
        SampledToken(entry.token_id, entry.logprob, _top(entry, num_top), _support(entry) if with_support else None)
        for entry in content
    ]


def _top(entry: _TokenLogprob, num_top: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted(entry.top_logprobs, key=lambda other: -other.logprob)  # the sampled token comes first on the wire
    return tuple((other.token_id, other.logprob) for other in ranked[:num_top])


def _support(entry: _TokenLogprob) -> tuple[int, ...] | None:
    """The ids that could be drawn; None if they are more than a record takes."""
    drawable = {other.token_id for other in entry.top_logprobs if other.logprob > _NEVER_DRAWN} | {entry.token_id}
    return tuple(sorted(drawable)) if len(drawable) <= MOST_IDS else None


def _spans(told: list[_WeightVersion], offset: int) -> list[Span]:
    """The spans of an event; none if a label is not one of our versions, as on a replica that was never updated."""
    starts = [entry.start for entry in told]
    if starts != sorted(set(starts)) or starts[0] < 0 or starts[-1] >= 2**31:
        raise EngineFailed(f"the engine sent versions of tokens that are not valid: {shown(msgspec.json.encode(told))}")
    spans = [Span(offset + e.start, version) for e in told if (version := version_of(e.version)) is not None]
    return spans if len(spans) == len(told) else []


def version_of(label: str) -> int | None:
    """The version that an engine calls so; None if it is not one of ours, as `default` or `v6-to-v7`."""
    match = _VERSION.fullmatch(label)
    return None if match is None else int(match[1])


def _experts(text: str) -> RecordedExperts:
    try:
        array = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise EngineFailed(f"the engine sent experts that cannot be read: {error}") from error
    if array.ndim != 3 or array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() < 2**16):  # noqa: PLR2004 the dimensions of ExpertShape
        raise EngineFailed(f"the engine sent experts of shape {array.shape} and type {array.dtype}")
    return RecordedExperts(array.astype("<u2").tobytes(), ExpertShape(*array.shape))


def shown(content: bytes) -> str:
    """The first characters that an engine sent, for a message."""
    return content[:_SHOWN_CHARACTERS].decode(errors="replace")
