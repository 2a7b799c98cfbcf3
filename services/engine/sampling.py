"""Checks a request before the batching manager sees it: one bad number kills the manager for all (a temperature of 0 makes NaN)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from contracts.engines import Ability
from contracts.errors import ContextLengthExceeded, InvalidRequest
from contracts.packing import MOST_IDS
from services.engine.grammars import json_grammar, lark_grammar

MIN_TEMPERATURE = 1e-3
"""Below this, logits divided by the temperature may overflow; 0 itself means greedy."""
ABILITIES: frozenset[Ability] = frozenset(
    ("spans", "logprobs", "top_logprobs", "constraints", "penalties", "seed", "support")
)
"""What this engine can do with a tokenizer.json; without one it has no `constraints`."""
MAX_LOGPROBS = MOST_IDS + 1
"""The most log-probs per token that one request may ask for: the sampled token's, and enough others to see that none is left out."""
_RANGES = {
    "logprobs": (0, MAX_LOGPROBS),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
_MOST_BIAS, _MOST_DIGITS = 100.0, 10
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
    """Divides positive logits, and multiplies negative ones, of tokens in prompt or answer (Keskar et al. 2019, arXiv:1909.05858)."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it stands in the answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token of the answer."""
    structured_outputs: StructuredOutputs | None = None
    n: int = 1
    stop: Any = None

    @property
    def is_truncated(self) -> bool:
        """True if top-k or top-p leaves out tokens."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    @property
    def is_penalised(self) -> bool:
        """True if earlier tokens change the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def is_plain(self) -> bool:
        """True if tokens are drawn from the model's own logits."""
        is_changed = self.is_truncated or self.is_penalised or self.logit_bias
        return self.temperature == 1 and self.min_p == 0 and not is_changed


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
    """Refuse what would break the manager, or be ignored in part. Raises InvalidRequest, whose `param` is the field; ContextLengthExceeded."""
    params = request.sampling_params
    for param, says in (*_faults(params), *_token_faults(request, limits)):
        raise InvalidRequest(says, param=param)
    num_prompt, max_tokens = len(request.token_ids), params.max_tokens
    if num_prompt + max_tokens > limits.context:
        raise ContextLengthExceeded(
            f"{num_prompt} prompt tokens and max_tokens {max_tokens} make {num_prompt + max_tokens}, "
            f"more than this policy's context of {limits.context}; send fewer",
            param="max_tokens",
        )
    for param, says in _option_faults(request, limits):
        raise InvalidRequest(says, param=param)


def _faults(params: SamplingParams) -> Iterator[tuple[str, str]]:
    """What is wrong with the parameters that every request has: the field, and what to say."""
    given = params.temperature
    if not math.isfinite(given) or given < 0:
        yield "temperature", f"temperature must be 0 (greedy) or positive, not {given}"
    if 0 < given < MIN_TEMPERATURE:
        yield "temperature", f"temperature {given} is below {MIN_TEMPERATURE}; send 0 for greedy"
    if not 0 < params.top_p <= 1:
        yield "top_p", f"top_p must lie in (0, 1], not {params.top_p}"
    if params.top_k < -1:
        yield "top_k", f"top_k must be 0 (off) or positive, not {params.top_k}"
    if not 0 <= params.min_p <= 1:
        yield "min_p", f"min_p must lie in [0, 1], not {params.min_p}"
    if params.max_tokens < 1:
        yield "max_tokens", f"max_tokens must be at least 1, not {params.max_tokens}"
    if params.seed is not None and params.seed not in _SEEDS:
        yield "seed", f"seed must be a signed 64-bit number, not {params.seed}"


def _token_faults(request: GenerateRequest, limits: ModelLimits) -> Iterator[tuple[str, str]]:
    num_prompt, made = len(request.token_ids), request.num_made
    if num_prompt == 0:
        yield "token_ids", "the prompt is empty; send at least one token id"
    for name, ids in (
        ("token_ids", request.token_ids),
        ("stop_token_ids", request.sampling_params.stop_token_ids or []),
    ):
        if min(ids, default=0) < 0 or max(ids, default=0) >= limits.vocab_size:
            yield name, f"{name} has a token id outside [0, {limits.vocab_size})"
    if not 0 <= made < num_prompt:
        yield "num_made", f"num_made must lie in [0, {num_prompt}), not {made}"


def _option_faults(request: GenerateRequest, limits: ModelLimits) -> Iterator[tuple[str, str]]:
    params, salt = request.sampling_params, request.cache_salt
    for name, (least, most) in _RANGES.items():
        value = getattr(params, name)
        if value is not None and not least <= value <= most:
            yield name, f"{name} must lie in [{least:g}, {most:g}], not {value}"
    for token_id, bias in (params.logit_bias or {}).items():
        is_number = token_id.isascii() and token_id.isdecimal() and len(token_id) <= _MOST_DIGITS
        if not is_number or int(token_id) >= limits.vocab_size:
            yield "logit_bias", f"logit_bias has a token id outside [0, {limits.vocab_size})"
        if not -_MOST_BIAS <= bias <= _MOST_BIAS:
            yield "logit_bias", f"a logit_bias must lie in [{-_MOST_BIAS:g}, {_MOST_BIAS:g}], not {bias}"
    if params.stop is not None:
        yield "stop", "`stop` is not supported by this engine; leave it out and apply it to the answer"
    if salt is not None and not 1 <= len(salt) <= _MOST_SALT:
        yield "cache_salt", f"cache_salt takes 1 to {_MOST_SALT} characters"
    if params.n != 1:
        yield "n", "the engine makes one choice per request; send `n` requests"


def grammar_of(outputs: StructuredOutputs) -> str:
    """The grammar of an answer. Raises InvalidRequest unless exactly one field is set, InvalidSchema if the schema is not one."""
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
