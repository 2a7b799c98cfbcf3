"""The rules of the join, without I/O: which signals count, when an episode closes, what a state gives way to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from contracts.records import Generation, Outcome, Scalar, Signal
from contracts.tasks import Task

ORPHAN_SECONDS = 7 * 86_400.0
"""A signal waits so long for its answer; whoever made up an id, or forbade to log the answer, has none."""

SignalState = Literal["joined", "late"]


class Standing(NamedTuple):
    """What the ledger holds about one generation: who wrote its state, in which epoch, about which revision."""

    writer: str
    epoch: int
    revision: int


def deadline(generation: Generation, task: Task) -> float:
    """Signals received after it are late."""
    return generation.finished_at + task.window_seconds


def state_on_arrival(signal: Signal, closes_at: float) -> SignalState:
    """Judged by when feedback received it, so that a slow join never makes a signal late."""
    return "late" if signal.received_at > closes_at else "joined"


def superseded(signals: Sequence[Signal]) -> set[str]:
    """Ids that lost a conflict: the last word of the same submitter under the same name is another.

    Ties in time are broken by id, so that the result does not depend on the order of arrival.
    """
    last = {_place(signal): signal for signal in sorted(signals, key=lambda item: (item.at, item.id))}
    return {signal.id for signal in signals if _meaning(signal) != _meaning(last[_place(signal)])}


def _place(signal: Signal) -> tuple[str, str]:
    return signal.submitter.id, signal.name


def _meaning(signal: Signal) -> tuple[Scalar, str | None]:
    return signal.value, signal.correction


def is_decisive(task: Task, signals: Sequence[Signal]) -> bool:
    """True if the episode need not wait for its window: a decisive signal came, and its value is worth something."""
    said = ((task.signals.get(signal.name), signal.value) for signal in signals)
    return any(rule.decisive and rule.is_worth_something(value) for rule, value in said if rule)


def replaces(outcome: Outcome, standing: Standing, current_revision: int) -> bool:
    """Whether an outcome becomes the state of its generation.

    The trainer's word is final and its highest epoch wins; other writers speak only about the newest revision.
    """
    if outcome.state == "late":
        return False
    if outcome.writer == "training":
        return (True, outcome.epoch, outcome.revision) >= (
            standing.writer == "training",
            standing.epoch,
            standing.revision,
        )
    return standing.writer != "training" and outcome.revision >= current_revision
