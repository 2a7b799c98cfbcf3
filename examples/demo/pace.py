"""The pace of a demo's users: as fast as this machine can learn from them, and never so fast that training or the gate falls behind.

The first guess is a share of the rate at which the engine alone answers, as the base policy's evaluation showed. Then, every few seconds, the pace
falls by a quarter while anything is behind, and else rises by a little (additive increase, multiplicative decrease: Chiu and Jain 1989).
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any, NamedTuple

FULL_PACE, SLOWEST_PACE = 16.0, 4.0
"""Answers per second. Goals in seconds are stated at the full pace."""
_SHARE_OF_ENGINE = 0.15
"""The gate's sentinels and shadow take several times what users take, and the trainer wants its share of the cores."""
_RISE, _FALL = 0.5, 0.75
_MOST_UNTRAINED, _MOST_UNJUDGED_SECONDS, _MOST_LOOKS = 2.0, 15.0, 4.0
"""A version may wait for its verdict for so many seconds, or for so many times what the gate takes when nothing else works."""
_WAITING_SHARE = 0.75
_FEW_CORES = 1.5
_SAMPLES_ON_FEW_CORES, _SENTINELS_ON_FEW_CORES = 1.5, 120


class DemoLoad(NamedTuple):
    """How the loop keeps up."""

    answered: float
    """Answers per second that users got since the last look."""
    untrained: float
    """Samples of users whose window is over and that no version has learned from, in versions' worth of them."""
    unjudged_seconds: float
    """Age of the oldest version without a verdict; 0 without one."""


class PaceMaker:
    """Sets the pace.

    Args:
        alone: answers per second of the engine when nothing else works.
        sentinels: answers that the gate asks of each version.
    """

    def __init__(self, alone: float, sentinels: int) -> None:
        self._alone = alone
        self._most_unjudged = max(_MOST_UNJUDGED_SECONDS, _MOST_LOOKS * sentinels / alone)
        self.rate = _within(_SHARE_OF_ENGINE * alone)
        """Answers per second that users shall ask for."""
        self._rates = [self.rate]
        self._slowed = Counter[str]()

    def look(self, load: DemoLoad) -> float:
        """Adapt the pace, and return it."""
        behind = "training" if load.untrained > _MOST_UNTRAINED else ""
        behind = "the gate" if load.unjudged_seconds > self._most_unjudged else behind
        if behind:
            self.rate = _within(_FALL * self.rate)
            self._slowed[behind] += 1
        elif load.answered > _WAITING_SHARE * self.rate:
            # Otherwise users wait for their answers, and more of them would wait longer.
            self.rate = _within(self.rate + _RISE)
        self._rates.append(self.rate)
        return self.rate

    def figures(self) -> dict[str, Any]:
        """What pace it took, and why."""
        return {
            "engine_alone": round(self._alone, 1),
            "first": round(self._rates[0], 1),
            "mean": round(statistics.fmean(self._rates), 1),
            "slowest": round(min(self._rates), 1),
            "fastest": round(max(self._rates), 1),
            "slowed_for": dict(self._slowed),
        }


def _within(rate: float) -> float:
    return min(max(rate, SLOWEST_PACE), FULL_PACE)


def sizes_on(cores: float, samples: int, sentinels: int) -> tuple[int, int]:
    """How many samples a version learns from, and how many sentinels the gate asks of it, where `samples` and `sentinels` are usual.

    On about one core versions wait for the gate, not for the trainer, and the gate leaves the users too little of the engine.
    """
    if cores > _FEW_CORES:
        return samples, sentinels
    return round(_SAMPLES_ON_FEW_CORES * samples), min(sentinels, _SENTINELS_ON_FEW_CORES)


def tell_pace(pace: dict[str, Any]) -> str:
    """The figures in a sentence."""
    slowed = ", ".join(f"{times} times for {what}" for what, times in pace["slowed_for"].items())
    return (
        f"Users asked for {pace['mean']} answers a second in the mean ({pace['slowest']} to {pace['fastest']}). They began with "
        f"{pace['first']}, since the engine alone gives {pace['engine_alone']} here, and slowed down {slowed or 'never'}."
    )
