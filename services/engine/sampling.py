"""Checks a request before the batching manager sees it.

One bad number kills the manager for all requests (a temperature of 0 makes NaN), so nothing unchecked reaches it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from contracts.engines import Ability
from contracts.errors import ContextLengthExceeded, InvalidRequest
from contracts.packing import MOST_IDS
from services.engine.grammars import json_grammar, lark_grammar
from services.engine.sequence import SamplingOptions

MIN_TEMPERATURE = 1e-3
"""Below this, logits divided by the temperature may overflow; 0 itself means greedy."""
ABILITIES: frozenset[Ability] = frozenset(
    ("spans", "logprobs", "top_logprobs", "constraints", "penalties", "seed", "support")
)
"""What this engine can do with a tokenizer.json; without one it has no `constraints`."""
MAX_LOGPROBS = MOST_IDS + 1
"""The most log-probs per token that one request may ask for: the sampled token's, and enough others to see that none is left out."""
_MOST_BIAS, _MOST_PENALTY, _MOST_REPETITION = 100.0, 2.0, 100.0
_MOST_DIGITS = 10
_SEEDS = range(-(2**63), 2**63)
_OUTPUTS = "structured_outputs"
_MOST_SALT = 128
_JSON_OBJECT = '{"type":"object"}'


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The grammar of an answer: exactly one field is set."""

    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A JSON schema, or its text in a string. It is never decoded here, so that its depth harms nothing."""
    json_object: bool | None = None
    """True: any JSON object."""
    grammar: str | None = None
    """Lark text in llguidance's dialect, with `%json`."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of an answer are sampled: the fields of vLLM's that we need. Others are refused by name."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 is off."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out; 0 is off."""
    seed: int | None = None
    """A signed 64-bit number. With the same version, prompt and sampling parameters, the same seed gives the same tokens in any
    batch, except for rounding: see services/engine/seeded.py."""
    logprobs: int | None = None
    """How many entries `top_logprobs` of each token has: the sampled token first, then the likeliest others in order. The sampled
    token's own log-prob is always returned."""
    stop_token_ids: list[int] | None = None
    """Token ids that end the answer, in addition to the model's own end tokens."""
    ignore_eos: bool = False
    """Do not stop at the model's own end tokens."""
    logit_bias: dict[str, float] | None = None
    """Token id, in digits, to what is added to its logit."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    structured_outputs: StructuredOutputs | None = None
    n: int = 1
    stop: Any = None


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /inference/v1/generate`, as vLLM reads it: token ids in, token ids out. Other fields are ignored."""

    model: str
    token_ids: list[int]
    """The prompt [T]; the engine takes no text."""
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    request_id: str | None = None
    num_made: int = 0
    """How many of the prompt's last tokens belong to the answer: it continues after a restart. They count for penalties, and the
    grammar goes on after them. vLLM ignores this field."""
    arm: str | None = None
    """The slot that answers if it holds the version that `model` names; else any slot that does. vLLM ignores this field."""
    cache_salt: str | None = None
    """Which requests may share the beginnings of their prompts: those with the same text; without one, none. As vLLM's field."""
    priority: int = 0
    """Above 0: not a user's request; accepted only while half of the engine's bounds are free."""


class ModelLimits(msgspec.Struct, frozen=True):
    """What one arm can serve: token ids below `vocab_size`, prompt and answer of `context` tokens together."""

    vocab_size: int
    context: int


def check_request(request: GenerateRequest, limits: ModelLimits) -> None:
    """Refuse a request that would break the manager, or that it would silently ignore in part.

    Raises:
        InvalidRequest: `param` names the field.
        ContextLengthExceeded: prompt and `max_tokens` together exceed the context.
    """
    params = request.sampling_params
    _check_sampling(params)
    _check_tokens(request, limits)
    _check_options(params, limits)
    if params.stop is not None:
        raise InvalidRequest(
            "`stop` is not supported by this engine; leave it out and apply it to the answer", param="stop"
        )
    if request.cache_salt is not None and not 1 <= len(request.cache_salt) <= _MOST_SALT:
        raise InvalidRequest(f"cache_salt takes 1 to {_MOST_SALT} characters", param="cache_salt")
    if params.n != 1:
        raise InvalidRequest("the engine makes one choice per request; send `n` requests", param="n")


def _check_options(params: SamplingParams, limits: ModelLimits) -> None:
    if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(f"logprobs must lie in [0, {MAX_LOGPROBS}], not {params.logprobs}", param="logprobs")
    if not 1 / _MOST_REPETITION <= params.repetition_penalty <= _MOST_REPETITION:
        least = 1 / _MOST_REPETITION
        text = f"repetition_penalty must lie in [{least:g}, {_MOST_REPETITION:g}], not {params.repetition_penalty}"
        raise InvalidRequest(text, param="repetition_penalty")
    for name, value in (("frequency_penalty", params.frequency_penalty), ("presence_penalty", params.presence_penalty)):
        if not -_MOST_PENALTY <= value <= _MOST_PENALTY:
            raise InvalidRequest(f"{name} must lie in [-{_MOST_PENALTY:g}, {_MOST_PENALTY:g}], not {value}", param=name)
    for token_id, value in (params.logit_bias or {}).items():
        is_number = token_id.isascii() and token_id.isdecimal() and len(token_id) <= _MOST_DIGITS
        if not is_number or int(token_id) >= limits.vocab_size:
            raise InvalidRequest(f"logit_bias has a token id outside [0, {limits.vocab_size})", param="logit_bias")
        if not -_MOST_BIAS <= value <= _MOST_BIAS:
            text = f"a logit_bias must lie in [-{_MOST_BIAS:g}, {_MOST_BIAS:g}], not {value}"
            raise InvalidRequest(text, param="logit_bias")


def _check_sampling(params: SamplingParams) -> None:
    temperature, top_p = params.temperature, params.top_p
    if not math.isfinite(temperature) or temperature < 0:
        raise InvalidRequest(f"temperature must be 0 (greedy) or positive, not {temperature}", param="temperature")
    if 0 < temperature < MIN_TEMPERATURE:
        raise InvalidRequest(
            f"temperature {temperature} is below {MIN_TEMPERATURE}; send 0 for greedy", param="temperature"
        )
    if not 0 < top_p <= 1:
        raise InvalidRequest(f"top_p must lie in (0, 1], not {top_p}", param="top_p")
    if params.top_k < -1:
        raise InvalidRequest(f"top_k must be 0 (off) or positive, not {params.top_k}", param="top_k")
    if not 0 <= params.min_p <= 1:
        raise InvalidRequest(f"min_p must lie in [0, 1], not {params.min_p}", param="min_p")
    if params.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {params.max_tokens}", param="max_tokens")
    if params.seed is not None and params.seed not in _SEEDS:
        raise InvalidRequest(f"seed must be a signed 64-bit number, not {params.seed}", param="seed")


def _check_tokens(request: GenerateRequest, limits: ModelLimits) -> None:
    params, num_prompt = request.sampling_params, len(request.token_ids)
    if num_prompt == 0:
        raise InvalidRequest("the prompt is empty; send at least one token id", param="token_ids")
    for name, ids in (("token_ids", request.token_ids), ("stop_token_ids", params.stop_token_ids or [])):
        if min(ids, default=0) < 0 or max(ids, default=0) >= limits.vocab_size:
            raise InvalidRequest(f"{name} has a token id outside [0, {limits.vocab_size})", param=name)
    if not 0 <= request.num_made < num_prompt:
        raise InvalidRequest(f"num_made must lie in [0, {num_prompt}), not {request.num_made}", param="num_made")
    wanted = num_prompt + params.max_tokens
    if wanted > limits.context:
        raise ContextLengthExceeded(
            f"{num_prompt} prompt tokens and max_tokens {params.max_tokens} make {wanted}, "
            f"more than this policy's context of {limits.context}; send fewer",
            param="max_tokens",
        )


def options_of(params: SamplingParams) -> SamplingOptions:
    """The options of checked parameters."""
    return SamplingOptions(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        logit_bias={int(token_id): value for token_id, value in (params.logit_bias or {}).items()},
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        num_logprobs=params.logprobs or 0,
    )


def grammar_of(outputs: StructuredOutputs) -> str:
    """The grammar of an answer.

    Raises:
        InvalidRequest: not exactly one of the fields is set.
        InvalidSchema: the schema is not one.
    """
    given = [outputs.json is not msgspec.UNSET, outputs.json_object is not None, outputs.grammar is not None]
    if sum(given) != 1 or outputs.json_object is False:
        raise InvalidRequest(
            "structured_outputs takes exactly one of json, json_object: true and grammar", param=_OUTPUTS
        )
    if outputs.grammar is not None:
        return lark_grammar(outputs.grammar)
    if outputs.json is msgspec.UNSET:
        return json_grammar(_JSON_OBJECT)
    written = bytes(outputs.json)
    return json_grammar(msgspec.json.decode(written, type=str) if written.startswith(b'"') else written.decode())


def stop_ids(params: SamplingParams, end_ids: frozenset[int]) -> frozenset[int]:
    """The token ids that end the answer. A grammar allows the model's end only where the answer is complete, so it always ends it."""
    is_endless = params.ignore_eos and params.structured_outputs is None
    return (frozenset() if is_endless else end_ids) | frozenset(params.stop_token_ids or ())
