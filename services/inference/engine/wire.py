"""The wire between inference and every kind of engine: vLLM's token-in-token-out route, `POST /inference/v1/generate`. Pure.

What is asked (`EngineRequest`), and what an answer is made of (`Piece`); `events` reads the stream. vLLM names the version of each
token in the last event only; our engine names it in each event that begins a span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from contracts.assignments import LIVE, SLOTS
from contracts.cache_salts import cache_salt
from contracts.errors import EngineFailed
from contracts.sampling import ExpertShape, Sampling, Span
from contracts.support import MOST_IDS

PATH = "/inference/v1/generate"


class System(msgspec.Struct, frozen=True):
    """The system that made the tokens: everything except the weights."""

    engine: str
    dtype: str | None
    raw_logprobs: bool = False
    """True if log-probs are those of the model before temperature, filters, biases, penalties and grammar."""

    def joined(self, other: System | None) -> System:
        """One system for an answer that two made: each is named."""
        if other is None or other == self:
            return self
        dtypes = [name for name in (other.dtype, self.dtype) if name]
        raw = self.raw_logprobs or other.raw_logprobs
        return System(_joined(other.engine, self.engine), _joined(*dtypes) if dtypes else None, raw)


class SampledToken(NamedTuple):
    """A sampled token and its log-prob when it was sampled."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at this place, as many as were asked for: id and log-prob, in order."""
    support: tuple[int, ...] | None = None
    """The ids that could be drawn at this place; None if that was not asked, or if they are too many."""


class RecordedExperts(NamedTuple):
    """The experts that each token of prompt and answer chose, except the last: uint16 [tokens, layers, chosen], little-endian."""

    ids: bytes
    shape: ExpertShape


class Piece(NamedTuple):
    """The tokens since the last piece. Span starts count tokens of the whole answer."""

    tokens: list[SampledToken]
    spans: list[Span]
    finish_reason: Literal["stop", "length"] | None
    experts: RecordedExperts | None = None
    """In the last piece, if the engine records them."""
    system: System | None = None
    """In the first piece of each engine that works on the answer, and wherever the engine says it."""
    lost_versions: bool = False
    """True: nobody can tell the versions of some tokens any more, so the answer has no spans at all."""
    num_cached: int | None = None
    """How many tokens of the prompt the engine had computed before, where it says so: ours in the first piece, others in the last."""


class EngineRequest(NamedTuple):
    """One answer to make."""

    model: str
    """The policy, or `POLICY@vN`."""
    prompt_ids: list[int]
    sampling: Sampling
    request_id: str
    background: bool = False
    """Not a user's request; users come first."""
    constraint: Mapping[str, Any] | None = None
    """The grammar of the answer, as vLLM's `structured_outputs`; None without one."""
    num_top: int = 0
    """How many of the likeliest tokens to report at each place."""
    with_support: bool = False
    """Whether to tell which tokens could be drawn at each place."""
    arm: str = "live"
    """The arm that was chosen; another one may answer if it holds the same version."""
    session: str | None = None
    """Requests of one session go to one replica while it serves."""
    any_version: bool = True
    """Whether another version of the arm may make or continue the answer; False if the caller named one."""
    cache_scope: str = ""
    """Who may share the beginnings of prompts with this one; empty: nobody."""
    cache_salt: str | None = None
    """The same for one version, as engines are told it: see `salted`."""

    def salted(self, version: int | None) -> EngineRequest:
        """The request for an engine that holds a version."""
        if not self.cache_scope:
            return self
        return self._replace(cache_salt=cache_salt(self.cache_scope, self.model.partition("@v")[0], version))

    @property
    def num_logprobs(self) -> int:
        """How many log-probs to ask for at each place. vLLM counts the sampled token among them."""
        if self.with_support:
            return MOST_IDS + 1  # one more than is kept, to see that none is left out
        return self.num_top + 1 if self.num_top else 0


def request_body(
    request: EngineRequest, made: Sequence[int] = (), model: str | None = "", *, tells_usage: bool = False
) -> bytes:
    """The JSON body of a request whose answer has the tokens `made` already; `model` None: the engine has only one.

    `tells_usage`: ask for an event behind the last token that tells how much of the prompt was computed before.

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
    if model is not None:
        body["model"] = model or request.model
        if request.arm in SLOTS and request.arm != LIVE:
            body["arm"] = request.arm  # our engine's: two slots may hold the version, and only this one keeps it
    if made:
        body["num_made"] = len(made)  # our engine's: penalties and grammar go on where they were
    if request.background:
        body["priority"] = 1
    return msgspec.json.encode(body | _about_caches(request, tells_usage=tells_usage))


def _about_caches(request: EngineRequest, *, tells_usage: bool) -> dict[str, Any]:
    salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    return salt | ({"stream_options": {"include_usage": True}} if tells_usage else {})


def new_spans(known: Sequence[Span], told: Sequence[Span]) -> list[Span]:
    """The spans that an event adds to those that are known: an engine may repeat what it said.

    Raises:
        EngineFailed: it names another version for a token than it did before.
    """
    spans, added = list(known), []
    for span in told:
        before = next((other for other in reversed(spans) if other.start <= span.start), None)
        if before is not None and before.version == span.version:
            continue
        if spans and span.start <= spans[-1].start:
            raise EngineFailed(f"the engine says v{span.version} for token {span.start}, and another version before")
        spans.append(span)
        added.append(span)
    return added


def together(first: Piece | None, second: Piece) -> Piece:
    """Two pieces as one."""
    if first is None:
        return second
    return Piece(
        [*first.tokens, *second.tokens],
        [*first.spans, *second.spans],
        second.finish_reason,
        second.experts,
        second.system or first.system,
        first.lost_versions or second.lost_versions,
        second.num_cached if first.num_cached is None else first.num_cached,
    )


def _joined(first: str, *others: str) -> str:
    return " + ".join(dict.fromkeys([*first.split(" + "), *others]))
