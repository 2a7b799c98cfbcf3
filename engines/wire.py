"""What inference asks of any engine (`EngineRequest`), what answers are made of (`Piece`), and how a kind is asked (`Wire`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from contracts.cache_salts import cache_salt
from contracts.errors import EngineFailed
from contracts.packing import MOST_IDS
from contracts.sampling import ExpertShape, Sampling, Span


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
    """A sampled token and its log-prob when it was sampled. `top`: id and log-prob of the likeliest ones at this place, in order."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
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
    """How many tokens of the prompt the engine had computed before, if it says so: ours in the first piece, others in the last."""


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
    """The grammar of the answer, as vLLM's `structured_outputs`."""
    num_top: int = 0
    """How many of the likeliest tokens to report at each place."""
    with_support: bool = False
    """Whether to tell which tokens could be drawn there."""
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
    adapter: int | None = None
    """The version to name to an engine that holds several as adapters; None: it holds one, or knows by the arm."""

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


def adapter_name(policy: str, version: int) -> str:
    """What an engine calls a version that it holds as an adapter; version 0 is the base under them."""
    return f"{policy}@v{version}" if version else policy


class Wire(NamedTuple):
    """A route, and what goes over it."""

    path: str
    body: Callable[[EngineRequest, Sequence[int]], bytes]
    """The body of a request, with the tokens made so far."""
    reader: Callable[[EngineRequest, int], Callable[[bytes], Piece]]
    """Reads one stream, whose first token has this number in the answer."""
    can_continue: Callable[[EngineRequest], bool]
    """Whether the engine can go on in the middle of an answer."""
    tells_usage_last: bool = False
    """True: an event after the last token tells how much of the prompt was computed before."""


def new_spans(known: Sequence[Span], told: Sequence[Span]) -> list[Span]:
    """The spans that an event adds: an engine may repeat what it said. Raises EngineFailed: it names another version for a token than before."""
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
