"""The rules of the join, without I/O: which signals count, and when an episode closes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from contracts.records import Generation, Scalar, Signal
from contracts.tasks import Task
from contracts.tasks.signals import SignalRule

ORPHAN_SECONDS = 7 * 86_400.0
"""How long a signal waits for its answer. There is none if the id was made up, or if the answer must not be logged."""
IMPORTED_SECONDS = 60.0
"""How long an imported answer waits for what its import says of it. Without that, each would be scored twice."""

SUPERSEDED = "superseded"
"""Reason of a sample that a later try of its request replaced."""
TOO_MANY = "too_many_signals"
"""Reason of a signal that does not count because others about its answer came before it."""
MOST_OF_SUBMITTER, MOST_OF_ANSWER = 32, 128
"""Signals that count, about one answer: of one submitter, and of all. No product says so much about an answer; a flood does. Each batch
reads them all, and each revision carries them: about 20 answers at their limit fit into a transaction of 50 ms.
"""
SignalState = Literal["joined", "late"]


def is_cut(record: Generation) -> bool:
    """True if the answer ended early: the client left, or the engine failed."""
    return record.finish_reason in {"cancelled", "error"}


def rejection(signal: Signal, about: Generation, task: Task | None) -> str:
    """Why a signal does not count at all; empty if it does."""
    if task is None or signal.name not in task.signals:
        return "undeclared_signal"
    return "other_tenant" if signal.tenant != about.tenant else ""


def deadline(generation: Generation, task: Task, said: Signal | None = None) -> float:
    """When such a signal begins to be late; without one: the end of the task's own window."""
    rule = task.signals.get(said.name) if said else None
    ended_at = _ended_at(generation, [said] if said else [])
    return ended_at + ((rule and rule.window_seconds) or task.window_seconds)


def _ended_at(generation: Generation, signals: Sequence[Signal]) -> float:
    """When the answer ended, or the last one of the session that a signal is about."""
    return max(generation.finished_at, *(said.share.ended_at for said in signals if said.share), -math.inf)


def first_close(generation: Generation, task: Task, *, is_decided: bool) -> float:
    """When the first episode is due: at once if a decisive signal came, else at the end of the task's window.

    Never before the end of the quarantine.
    """
    due = generation.finished_at if is_decided else deadline(generation, task)
    return max(due, quarantined_until(generation, task))


def idle_at(generation: Generation, task: Task, session_at: float) -> float:
    """When the session of an answer has been idle for the task's window, or is longer than the task's [credit] lets it be.

    `session_at`: when its newest answer ended. Without [credit]: -inf.
    """
    if task.credit is None:
        return -math.inf
    return min(session_at + task.window_seconds, generation.finished_at + task.credit.longest_seconds)


def quarantined_until(generation: Generation, task: Task) -> float:
    """No episode is sent before this time. Without a quarantine: -inf, so that clocks do not matter."""
    seconds = task.trust.quarantine_seconds
    return generation.finished_at + seconds if seconds > 0 else -math.inf


def last_close(generation: Generation, task: Task, signals: Sequence[Signal]) -> float | None:
    """When the slowest declared signal that has not come yet would be late; None if that is within the task's own window.

    Until then every episode is provisional.
    """
    heard = {signal.name for signal in signals}
    windows = [rule.window_seconds or 0.0 for name, rule in task.signals.items() if name not in heard]
    slowest = max(windows, default=0.0)
    return _ended_at(generation, signals) + slowest if slowest > task.window_seconds else None


def state_on_arrival(signal: Signal, about: Generation, closes_at: float) -> SignalState:
    """Compares the time at which feedback received the signal, so that a slow join never makes it late.

    An imported signal was received long after it was given, so its own time counts.
    """
    came_at = signal.at if about.purpose == "imported" else signal.received_at
    return "late" if came_at > closes_at else "joined"


def crowded_out(said: Signal, held: Sequence[Signal]) -> Signal | None:
    """Which signal does not count once `said` came, because there are too many: itself or one of `held`; None if there is room.

    A submitter's last word under each name counts. Where its room is used up, the last word takes the place of one that the same submitter
    took back, then of its oldest signal that is no last word, then of the word before it; never of somebody else's.

    Args:
        said: was just read, and was not read before.
        held: what counts of the same tenant about the same answer, with what was superseded, and `retracted` where it was taken back.
    """
    if len(held) < MOST_OF_SUBMITTER:
        return None
    own = [signal for signal in held if signal.submitter.id == said.submitter.id]
    if len(own) < MOST_OF_SUBMITTER and len(held) < MOST_OF_ANSWER:
        return None
    standing = sorted((signal for signal in own if not signal.retracted), key=_order)
    last = {_place(signal): signal for signal in standing}
    before = last.get(_place(said))
    if said.retracted or (before is not None and not _overrules(said, before)):
        return said
    gone = sorted((signal for signal in own if signal.retracted), key=_order)
    overruled = (signal for signal in standing if last[_place(signal)] is not signal)
    return next(iter((*gone, *overruled)), before or said)


def _overrules(said: Signal, before: Signal) -> bool:
    return _order(said) > _order(before) and _opinion(said) != _opinion(before)


def superseded(signals: Sequence[Signal]) -> set[str]:
    """Ids of signals that lost a conflict: the same submitter later gave another value under the same name.

    Equal times are ordered by id, so that the result does not depend on the order of arrival.
    """
    if len(signals) == 1:
        return set()
    last = {_place(signal): signal for signal in sorted(signals, key=_order)}
    return {signal.id for signal in signals if _opinion(signal) != _opinion(last[_place(signal)])}


def _order(signal: Signal) -> tuple[float, str]:
    return signal.at, signal.id


def _place(signal: Signal) -> tuple[str, str]:
    return signal.submitter.id, signal.name


def _opinion(signal: Signal) -> tuple[Scalar, str | None]:
    return signal.value, signal.correction


def is_decisive(task: Task, about: Generation, signals: Sequence[Signal]) -> bool:
    """True if the episode need not wait for its window: a decisive signal came, and its value is worth something."""
    said = ((task.signals.get(signal.name), signal) for signal in signals)
    return any(_decides(rule, signal, about) for rule, signal in said if rule)


def _decides(rule: SignalRule, signal: Signal, about: Generation) -> bool:
    # A `shown` signal counts only if no other signal comes, which is not known before the window ends.
    if not rule.decisive or rule.means == "shown":
        return False
    is_slip = rule.min_seconds > 0 and signal.at - about.finished_at < rule.min_seconds
    return not is_slip and rule.is_worth_something(signal.value)
