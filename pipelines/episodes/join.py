"""The rules of the join, without I/O: which signals count, and when an episode closes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from contracts.records import Generation, Scalar, Signal
from contracts.tasks import Task
from contracts.tasks.signals import SignalRule

ORPHAN_SECONDS = 7 * 86_400.0
"""A signal waits so long for its answer; whoever made up an id, or forbade to log the answer, has none."""

SignalState = Literal["joined", "late"]


class Standing(NamedTuple):
    """What the ledger holds about one generation: who wrote its state, in which epoch, about which revision."""

    writer: str
    epoch: int
    revision: int
    sequence: int = 0


def deadline(generation: Generation, task: Task, name: str | None = None) -> float:
    """Signals of this name that are received after it are late; without a name: the end of the task's own window."""
    rule = task.signals.get(name) if name else None
    return generation.finished_at + ((rule and rule.window_seconds) or task.window_seconds)


def first_close(generation: Generation, task: Task, *, is_decided: bool) -> float:
    """When the first episode is due: at once if a decisive signal came, else at the end of the task's window.

    In either case not before the end of the quarantine.
    """
    due = generation.finished_at if is_decided else deadline(generation, task)
    return max(due, quarantined_until(generation, task))


def quarantined_until(generation: Generation, task: Task) -> float:
    """Nothing is emitted before. Without a quarantine it is over, whatever clocks say."""
    seconds = task.trust.quarantine_seconds
    return generation.finished_at + seconds if seconds > 0 else -math.inf


def last_close(generation: Generation, task: Task, signals: Sequence[Signal]) -> float | None:
    """When the last declared signal that has not come yet would be late; None if none is slower than the task's window.

    Until then every episode is provisional.
    """
    heard = {signal.name for signal in signals}
    windows = [rule.window_seconds or 0.0 for name, rule in task.signals.items() if name not in heard]
    slowest = max(windows, default=0.0)
    return generation.finished_at + slowest if slowest > task.window_seconds else None


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


def is_decisive(task: Task, about: Generation, signals: Sequence[Signal]) -> bool:
    """True if the episode need not wait for its window: a decisive signal came, and it is worth something."""
    said = ((task.signals.get(signal.name), signal) for signal in signals)
    return any(_decides(rule, signal, about) for rule, signal in said if rule)


def _decides(rule: SignalRule, signal: Signal, about: Generation) -> bool:
    # That an answer was shown counts only where nothing else came, which is not known before the window ends.
    if not rule.decisive or rule.means == "shown":
        return False
    is_slip = rule.min_seconds > 0 and signal.at - about.finished_at < rule.min_seconds
    return not is_slip and rule.is_worth_something(signal.value)
