"""Checks a request before the batching manager sees it.

One bad number kills the manager for all requests (a temperature of 0 makes NaN), so nothing unchecked reaches it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from contracts.errors import ContextLengthExceeded, InvalidRequest

MIN_TEMPERATURE = 1e-3
"""Below this, logits divided by the temperature may overflow; 0 itself means greedy."""
_SEEDS = range(-(2**63), 2**63)


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`: the fields of vLLM's that we need. Other fields are ignored."""

    model: str
    prompt: list[int]
    """Token ids [T]; the engine takes no text."""
    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 is off."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out; 0 is off."""
    logprobs: int | None = None
    """Accepted for compatibility; the sampled token's log-prob is always returned."""
    stream: bool = False
    return_token_ids: bool = True
    stop_token_ids: list[int] | None = None
    """Token ids that end the answer, in addition to the model's own end tokens."""
    ignore_eos: bool = False
    """Do not stop at the model's own end tokens."""
    request_id: str | None = None
    n: int = 1
    stop: Any = None
    priority: int = 0
    """Above 0: not a user's request; accepted only while half of the engine's bounds are free."""
    seed: int | None = None
    """A signed 64-bit number. With the same version, prompt and sampling parameters, the same seed gives the same tokens in any
    batch, except for rounding: see services/engine/seeded.py."""


class ModelLimits(msgspec.Struct, frozen=True):
    """What one arm can serve: token ids below `vocab_size`, prompt and answer of `context` tokens together."""

    vocab_size: int
    context: int


def check_request(request: CompletionRequest, limits: ModelLimits) -> None:
    """Refuse a request that would break the manager, or that it would silently ignore in part.

    Raises:
        InvalidRequest: `param` names the field.
        ContextLengthExceeded: prompt and `max_tokens` together exceed the context.
    """
    _check_sampling(request)
    _check_tokens(request, limits)
    if request.stop is not None:
        raise InvalidRequest(
            "`stop` is not supported by this engine; leave it out and apply it to the answer", param="stop"
        )
    if request.n != 1:
        raise InvalidRequest("the engine makes one choice per request; send `n` requests", param="n")


def _check_sampling(request: CompletionRequest) -> None:
    temperature, top_p = request.temperature, request.top_p
    if not math.isfinite(temperature) or temperature < 0:
        raise InvalidRequest(f"temperature must be 0 (greedy) or positive, not {temperature}", param="temperature")
    if 0 < temperature < MIN_TEMPERATURE:
        raise InvalidRequest(
            f"temperature {temperature} is below {MIN_TEMPERATURE}; send 0 for greedy", param="temperature"
        )
    if not 0 < top_p <= 1:
        raise InvalidRequest(f"top_p must lie in (0, 1], not {top_p}", param="top_p")
    if request.top_k < -1:
        raise InvalidRequest(f"top_k must be 0 (off) or positive, not {request.top_k}", param="top_k")
    if not 0 <= request.min_p <= 1:
        raise InvalidRequest(f"min_p must lie in [0, 1], not {request.min_p}", param="min_p")
    if request.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {request.max_tokens}", param="max_tokens")
    if request.seed is not None and request.seed not in _SEEDS:
        raise InvalidRequest(f"seed must be a signed 64-bit number, not {request.seed}", param="seed")


def _check_tokens(request: CompletionRequest, limits: ModelLimits) -> None:
    if not request.prompt:
        raise InvalidRequest("the prompt is empty; send at least one token id", param="prompt")
    for name, ids in (("prompt", request.prompt), ("stop_token_ids", request.stop_token_ids or [])):
        if min(ids, default=0) < 0 or max(ids, default=0) >= limits.vocab_size:
            raise InvalidRequest(f"{name} has a token id outside [0, {limits.vocab_size})", param=name)
    wanted = len(request.prompt) + request.max_tokens
    if wanted > limits.context:
        raise ContextLengthExceeded(
            f"{len(request.prompt)} prompt tokens and max_tokens {request.max_tokens} make {wanted}, "
            f"more than this policy's context of {limits.context}; send fewer",
            param="max_tokens",
        )


def processor_arguments(request: CompletionRequest, vocab_size: int) -> dict[str, float | int]:
    """The arguments of the manager's per-request processors for a checked request: all of them, and the seed if there is one.

    Greedy is `top_k=1` at temperature 1, so its log-probs are those of a distribution over one token: 0.0. If two tokens
    share the largest logit exactly, one of them is drawn (log-prob -0.69); this can happen in bfloat16.
    """
    seed = {} if request.seed is None else {"seed": request.seed}
    if request.temperature == 0:
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, **seed}
    top_k = min(request.top_k, vocab_size) if request.top_k > 0 else vocab_size
    filters = {"top_k": top_k, "top_p": float(request.top_p), "min_p": float(request.min_p)}
    return {"temperature": float(request.temperature), **filters, **seed}


def stop_ids(request: CompletionRequest, end_ids: frozenset[int]) -> frozenset[int]:
    """The token ids that end the answer."""
    return (frozenset() if request.ignore_eos else end_ids) | frozenset(request.stop_token_ids or ())
