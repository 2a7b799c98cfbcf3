"""SGLang's own route, `POST /generate`, behind the same pieces as every other engine. Pure.

Read in the wheel of SGLang 0.5.23: `srt/managers/io_struct.py` (GenerateReqInput), `srt/sampling/sampling_params.py`,
`srt/managers/tokenizer_manager.py` (what an event holds), `srt/layers/sampler.py` (log-probs). Only fakes of these shapes were tested.

An event holds the tokens since the last one with `--incremental-streaming-output`, else all so far; `completion_tokens` tells which
are new either way. Versions come with the last event. Log-probs are those after temperature,
penalties and bias, and before top_k, top_p and min_p, so a filtered answer is recorded with `raw_logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from contracts.errors import EngineFailed, EngineRestarted, InvalidRequest
from contracts.sampling import Sampling, Span
from services.inference.engine.events import UNREADABLE, CachedTokens, EngineFault, LogProb, TokenId, shown, version_of
from services.inference.engine.wire import EngineRequest, Piece, SampledToken, System

PATH = "/generate"
_BAD_REQUEST, _SERVER_ERROR = 400, 500
_SHOWN_CHARACTERS = 300


class _Finish(msgspec.Struct):
    type: Literal["stop", "length", "abort"]
    message: str | None = None
    status_code: int | None = None


class _WeightVersion(msgspec.Struct):
    version: str
    start: int


class _Meta(msgspec.Struct):
    completion_tokens: int
    finish_reason: _Finish | None = None
    output_token_logprobs: list[tuple[LogProb, TokenId, str | None]] = []
    output_top_logprobs: list[list[tuple[float, TokenId, str | None]] | None] = []
    weight_versions: list[_WeightVersion] | None = None
    cached_tokens: CachedTokens | None = None


class _Event(msgspec.Struct):
    output_ids: list[TokenId] = []
    meta_info: _Meta | None = None
    error: EngineFault | None = None


_EVENT = msgspec.json.Decoder(_Event)


def sglang_system(system: System, sampling: Sampling) -> System:
    """The system that is recorded: with filters, log-probs are not those of the distribution sampled from."""
    is_filtered = sampling.top_p < 1.0 or sampling.top_k != 0 or sampling.min_p != 0
    return msgspec.structs.replace(system, raw_logprobs=True) if is_filtered else system


def sglang_body(request: EngineRequest, made: Sequence[int], model: str | None = None) -> bytes:  # noqa: ARG001 it has one model
    """The JSON body of a request whose answer has the tokens `made` already."""
    sampling = request.sampling
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "max_new_tokens": sampling.max_tokens - len(made),
        "skip_special_tokens": False,
    }
    if sampling.logit_bias:
        params["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    body: dict[str, Any] = {
        "rid": f"{request.request_id}+{len(made)}" if made else request.request_id,
        "input_ids": [*request.prompt_ids, *made],
        "sampling_params": params,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": request.num_top,
        "stream": True,
    }
    if request.cache_salt is not None:
        body["extra_key"] = request.cache_salt
    return msgspec.json.encode(body)


class SglangReader:
    """Reads the events of one stream, in order.

    Args:
        request: what was asked for.
        offset: number of its first token in the answer.
    """

    def __init__(self, request: EngineRequest, offset: int) -> None:
        self._offset = offset
        self._num_top = request.num_top
        self._num_seen = 0

    def __call__(self, data: bytes) -> Piece:
        """One event. It may have no token.

        Raises:
            EngineRestarted: the engine aborted the request.
            InvalidRequest: it refuses the request.
            EngineFailed: the engine reports a failure, or the event cannot be used.
        """
        try:
            event = _EVENT.decode(data)
        except UNREADABLE as error:
            raise EngineFailed(f"the engine sent an event that cannot be used: {error}: {shown(data)}") from error
        if event.error is not None:
            message = f"the engine failed: {event.error.message[:_SHOWN_CHARACTERS]}"
            raise InvalidRequest(message) if str(event.error.code) == str(_BAD_REQUEST) else EngineFailed(message)
        if event.meta_info is None:
            raise EngineFailed(f"the engine sent an event without meta_info: {shown(data)}")
        meta = event.meta_info
        if meta.finish_reason is not None and meta.finish_reason.type == "abort":
            raise _aborted(meta.finish_reason)
        tokens = self._new(event.output_ids, meta)
        reason = None if meta.finish_reason is None else meta.finish_reason.type
        spans = self._spans(meta) if reason is not None else []
        return Piece(tokens, spans, reason if reason != "abort" else None, num_cached=meta.cached_tokens)

    def _new(self, ids: list[int], meta: _Meta) -> list[SampledToken]:
        count = meta.completion_tokens - self._num_seen
        logprobs, tops = meta.output_token_logprobs, meta.output_top_logprobs
        if count == 0:
            return []
        if count < 0 or len(ids) < count or len(logprobs) < count or (self._num_top and len(tops) < count):
            raise EngineFailed(
                f"the engine sent {len(ids)} token ids with {len(logprobs)} log-probs where {count} are new; each token needs both"
            )
        if any(entry[1] != token_id for token_id, entry in zip(ids[-count:], logprobs[-count:], strict=True)):
            raise EngineFailed("the engine sent log-probs of other tokens than it sampled")
        self._num_seen = meta.completion_tokens
        places = tops[-count:] if self._num_top else [None] * count
        return [
            SampledToken(token_id, entry[0], tuple((top[1], top[0]) for top in (place or [])[: self._num_top]))
            for token_id, entry, place in zip(ids[-count:], logprobs[-count:], places, strict=True)
        ]

    def _spans(self, meta: _Meta) -> list[Span]:
        """The spans of the whole answer; none if a label is not one of our versions."""
        told = meta.weight_versions or []
        starts = [entry.start for entry in told]
        if starts and (starts != sorted(set(starts)) or starts[0] != 0 or starts[-1] >= max(1, meta.completion_tokens)):
            raise EngineFailed(
                f"the engine sent versions of tokens that are not valid: {shown(msgspec.json.encode(told))}"
            )
        found = [(self._offset + entry.start, version_of(entry.version)) for entry in told]
        spans = [Span(start, version) for start, version in found if version is not None]
        return spans if len(spans) == len(found) else []


def _aborted(finish: _Finish) -> EngineRestarted | InvalidRequest | EngineFailed:
    message = f"the engine aborted the request: {(finish.message or 'no reason given')[:_SHOWN_CHARACTERS]}"
    if finish.status_code is None:
        return EngineRestarted(message)
    return InvalidRequest(message) if finish.status_code < _SERVER_ERROR else EngineFailed(message)
