"""What a demo must keep, and what it should reach. Pure.

A *promise* that is broken ends the demo with status 1: something is wrong with Millrace. A *figure* stands beside its goal with the
interval in which its true value lies (95%). Chance and a slow machine move figures, so they decide only if asked (`--strict`), and then one
fails only if its whole interval misses the goal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contracts.intervals import share_interval
from examples.demo.curves import BIN_SECONDS, Bin

_GAIN_POINTS = 0.02
"""A version that the gate finds this much better than all before it is a gain for users."""
_FELT_ANSWERS = 20
"""Half of the users have a version if half of so many answers in a row are by it or by one that is as good."""
LONGEST_WAIT = 40.0
"""Seconds in which half of the users should have a gain, however slow the machine is."""
_CERTAIN = 0.025
"""One side of a 95% interval."""


class DemoFigure(NamedTuple):
    """A measured value with its 95% interval, and its goal. None: that value was never reached."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    goal: float
    at_least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        """`met`; `within` if only a part of the interval misses the goal; `missed`."""
        if self._meets(self.value):
            return "met"
        return "within" if self._meets(self.high if self.at_least else self.low) else "missed"

    def _meets(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.goal if self.at_least else value <= self.goal


def share_figure(name: str, share: float | None, num: int, goal: float) -> DemoFigure:
    """A share of `num` cases that should be at least `goal`."""
    low, high = share_interval(share or 0.0, num)
    return DemoFigure(name, share, low, high, goal, at_least=True)


def exact_figure(name: str, value: float, goal: float, *, at_least: bool = False, unit: str = "") -> DemoFigure:
    """A value that was counted or timed, so that it has no interval."""
    return DemoFigure(name, value, value, value, goal, at_least, unit)


def reached(curve: Sequence[Bin], share: float) -> tuple[float | None, float | None, float | None]:
    """Seconds until users accept `share`: as measured, and the earliest and latest moment at which they may have begun to.

    Each is the end of a step of the curve, but the earliest: that is where its step begins.
    """

    def first(bound: int | None) -> float | None:
        for item in curve:
            at = item.accepted if bound is None else share_interval(item.accepted, item.num_signals)[bound]
            if at >= share:
                return item.seconds
        return None

    earliest = first(1)
    return first(None), None if earliest is None else max(earliest - BIN_SECONDS, 0.0), first(0)


def answers_until(clients: Sequence[Mapping[str, Any]], seconds: float | None) -> float | None:
    """Answers that users saw within so many seconds of the first signal."""
    if seconds is None:
        return None
    first = min(float(item["at"]) for item in clients if item["kind"] == "signal")
    answers = [item for item in clients if item["kind"] == "generation" and float(item["at"]) < first + seconds]
    return len(answers)


def waits_for_gains(clients: Sequence[Mapping[str, Any]], verdicts: Sequence[tuple[int, float, float]]) -> list[float]:
    """Seconds from each verdict that is a gain to the answer with which half of the users have it.

    What they never had counts as the time until they left, if that was longer than LONGEST_WAIT; else nothing is known about it.

    Args:
        clients: the users' own list.
        verdicts: version, time and accuracy of each accepted verdict, in order.
    """
    answers = sorted(
        (float(item["at"]), item["version"])
        for item in clients
        if item["kind"] == "generation" and item["version"] is not None
    )
    accuracies, best, waits = {version: accuracy for version, _, accuracy in verdicts}, -1.0, list[float]()
    for version, at, accuracy in verdicts:
        gains, best = accuracy >= best + _GAIN_POINTS, max(best, accuracy)
        later = [(when, accuracies.get(made_by, -1.0) >= accuracy) for when, made_by in answers if when >= at]
        # Version 0 is where users begin; and what is judged when they leave is felt by nobody.
        if not gains or version == 0 or not later:
            continue
        until = next(iter(_felt(later)), None)
        if until is not None or later[-1][0] - at > LONGEST_WAIT:
            waits.append((later[-1][0] if until is None else until) - at)
    return waits


def _felt(answers: Sequence[tuple[float, bool]]) -> list[float]:
    """The times at which at least half of the last answers were as good."""
    return [
        answers[end - 1][0]
        for end in range(_FELT_ANSWERS, len(answers) + 1)
        if 2 * sum(good for _, good in answers[end - _FELT_ANSWERS : end]) >= _FELT_ANSWERS
    ]


def median_figure(name: str, values: Sequence[float], goal: float, unit: str) -> DemoFigure:
    """The median, with the interval of its order statistics (distribution-free); of all values if they are few."""
    ordered, num = sorted(values), len(values)
    if not ordered:
        return DemoFigure(name, None, None, None, goal, unit=unit)
    rank, mass = 0, 0.5**num
    while mass <= _CERTAIN and rank < num // 2:
        rank += 1
        mass += math.comb(num, rank) * 0.5**num
    rank = max(rank - 1, 0)
    return DemoFigure(name, ordered[(num - 1) // 2], ordered[rank], ordered[num - 1 - rank], goal, unit=unit)


def p_better(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Probability of as many cases gained, among those that changed, if no version is better: the exact sign test, one-sided."""
    gained = sum(new and not old for old, new in zip(before, after, strict=True))
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    changed = gained + lost
    as_many = sum(math.comb(changed, number) for number in range(gained, changed + 1))
    return float(as_many / 2**changed)


def ungated(clients: Sequence[Mapping[str, Any]], verdicts: Sequence[tuple[int, float, float]]) -> list[int]:
    """Versions that answered users before the gate had accepted them."""
    accepted = {version: at for version, at, _ in verdicts}
    answers = [item for item in clients if item["kind"] == "generation" and item["version"]]
    return sorted(
        {int(item["version"]) for item in answers if float(item["at"]) < accepted.get(int(item["version"]), math.inf)}
    )


def broken_promises(summary: Mapping[str, Any], *, learns: bool) -> list[str]:
    """What went wrong, in words. Empty: all is well.

    Args:
        summary: see `summary.summarise`.
        learns: the run is long enough that the last version must be better than the base.
    """
    kept = {
        f"{summary['failed_requests']} requests failed": not summary["failed_requests"],
        "the ledger does not balance": summary["ledger_balanced"],
        f"processes ended by themselves: {_endings(summary['ended'])}": not summary["ended"],
        f"versions that learned have no verdict: {_numbers(summary['unjudged'])}": not summary["unjudged"],
        f"versions answered users before the gate had accepted them: {_numbers(summary['ungated'])}": not summary[
            "ungated"
        ],
        "no version passed the gate": summary["versions_shipped"] > 0,
        "an engine computes with other weights than those that were published": summary.get("weights_exact")
        is not False,
        "sessions lost tokens that need not be computed twice": not summary.get("breaks_unexplained"),
    }
    if learns:
        kept["the last version is not better than the base, on the same cases"] = summary["p_better"] <= _CERTAIN
    return [what for what, is_kept in kept.items() if not is_kept]


def _endings(ended: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} with status {status}" for name, statuses in ended.items() for status in statuses)


def _numbers(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions))
