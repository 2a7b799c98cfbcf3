"""Checks a request before the batching manager sees it.

One bad number kills the manager for all requests (a temperature of 0 makes NaN), so nothing unchecked reaches it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from contracts.engines import Ability
from contracts.errors import ContextLengthExceeded, InvalidRequest

MIN_TEMPERATURE = 1e-3
"""Below this, logits divided by the temperature may overflow; 0 itself means greedy."""
ABILITIES: frozenset[Ability] = frozenset(("spans", "logprobs", "seed"))
"""What this engine can do; `check_request` refuses what needs another ability."""
_SEEDS = range(-(2**63), 2**63)


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The grammar of an answer: exactly one field is set."""

    json: dict[str, Any] | None = None
    """A JSON schema."""
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
    _check_supported(params)
    if params.stop is not None:
        raise InvalidRequest(
            "`stop` is not supported by this engine; leave it out and apply it to the answer", param="stop"
        )
    if params.n != 1:
        raise InvalidRequest("the engine makes one choice per request; send `n` requests", param="n")


def _check_supported(params: SamplingParams) -> None:
    asked = {
        "logprobs": (params.logprobs or 0) != 0,
        "logit_bias": bool(params.logit_bias),
        "repetition_penalty": params.repetition_penalty != 1.0,
        "frequency_penalty": params.frequency_penalty != 0.0,
        "presence_penalty": params.presence_penalty != 0.0,
        "structured_outputs": params.structured_outputs is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InvalidRequest(f"this engine does not support `{name}`; leave it out", param=name)


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
    wanted = num_prompt + params.max_tokens
    if wanted > limits.context:
        raise ContextLengthExceeded(
            f"{num_prompt} prompt tokens and max_tokens {params.max_tokens} make {wanted}, "
            f"more than this policy's context of {limits.context}; send fewer",
            param="max_tokens",
        )


def processor_arguments(params: SamplingParams, vocab_size: int) -> dict[str, float | int]:
    """The arguments of the manager's per-request processors for checked parameters: all of them, and the seed if there is one.

    Greedy is `top_k=1` at temperature 1, so its log-probs are those of a distribution over one token: 0.0. If two tokens
    share the largest logit exactly, one of them is drawn (log-prob -0.69); this can happen in bfloat16.
    """
    seed = {} if params.seed is None else {"seed": params.seed}
    if params.temperature == 0:
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, **seed}
    top_k = min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size
    filters = {"top_k": top_k, "top_p": float(params.top_p), "min_p": float(params.min_p)}
    return {"temperature": float(params.temperature), **filters, **seed}


def stop_ids(params: SamplingParams, end_ids: frozenset[int]) -> frozenset[int]:
    """The token ids that end the answer."""
    return (frozenset() if params.ignore_eos else end_ids) | frozenset(params.stop_token_ids or ())
