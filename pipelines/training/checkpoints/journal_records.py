"""The records of the journal: a planned step, how it ended, and the state without weights. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from pipelines.training.samples.batches import Batch
from pipelines.training.state import Fate

if TYPE_CHECKING:
    from pipelines.training.learning.figures import StepResult

SCHEMA = 1


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record of a file."""

    schema: int = SCHEMA
    checkpoint: str
    epoch: int
    after_epoch: int = 0
    """The records before these are those of this epoch ..."""
    after_count: int = 0
    """... up to this number of them; epoch 0: the checkpoint itself."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """Everything that a step depends on besides weights, moments and trackers."""

    epoch: int
    step: int
    at: float
    """The clock of the step, UTC epoch seconds."""
    batch: Batch
    weights: dict[str, float]
    """Sample key to its weight in the step."""
    max_tokens: int
    """Which rows share a forward pass: sums in another order have other last bits."""
    num_threads: int
    random_state: dict[str, str] = msgspec.field(default_factory=dict)
    """Device to its generator's state in base64; empty: as at the step before."""


class GuardHistory(msgspec.Struct, frozen=True):
    """What the guard remembers, as in the state."""

    norms: list[tuple[float, float]]
    signs: dict[str, list[float]]


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """How a planned step ended."""

    step: int
    """Steps that were taken or skipped so far."""
    learned: list[str]
    """Keys of the rows that were learned in the end: without culprits, perhaps half of them. Empty: the weights did not change."""
    fates: dict[str, Fate]
    """Every fate that was decided."""
    max_tokens: int
    digest: str
    """See `digest_of`."""
    seconds: float
    guard: GuardHistory | None = None
    """The guard's history after the step, if repeating the step would not give it."""


class StateKept(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The trainer's state after the steps before this record, without what those steps give again."""

    epoch: int
    mark: int
    """Of the samples, see `samples`."""
    state: bytes
    """JSON of a `TrainerState`."""


JournalRecord = Plan | Ending | StateKept


def digest_of(result: StepResult) -> str:
    """A digest of a step's figures: each row's log-prob under the weights, each advantage, and the gradient's norm.

    It differs if the weights before the step, or the gradient, differ in any bit that matters.
    """
    figures: list[Any] = [result.metrics["gradient_norm"], result.samples, sorted(result.pulls.items())]
    return blake3(msgspec.msgpack.encode(figures)).hexdigest(16)
