"""How much better than expected each sample was. Pure; trackers are the only state and live in the checkpoint.

One generation per prompt is the normal case, so what to expect is tracked per baseline key. Trackers are read before
the batch that updates them: a sample must not lower its own advantage. Infra faults and null rewards never come here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

HALF_LIFE_NATS = 0.06
MIN_RETENTION, MAX_RETENTION = 0.875, 0.96
PRIOR = 0.5
STD_FLOOR = 0.05


@dataclass(frozen=True)
class Scored:
    """What the advantage needs to know of a sample."""

    reward: float
    baseline_key: str
    prompt: bytes


class Tracker(Protocol):
    """What to expect of a key, learned from the rewards seen so far."""

    def expect(self, key: str) -> float:
        """The expected reward."""
        ...

    def update(self, key: str, reward: float, drift: float) -> None:
        """Learn one reward. `drift` is the KL in nats per token between the behaviour and the current policy."""
        ...

    def to_json(self) -> dict[str, Any]:
        """State for the checkpoint."""
        ...


@dataclass
class BetaTracker:
    """Two discounted counts per key, for rewards between `low` and `high` (arXiv 2509.13232, SPO).

    The faster the policy moves, the sooner old rewards are forgotten: retention = 2^(-drift / 0.06), kept in
    [0.875, 0.96], so that between 8 and 25 rewards count.
    """

    low: float = 0.0
    high: float = 1.0
    counts: dict[str, tuple[float, float]] = field(default_factory=dict)

    def expect(self, key: str) -> float:
        """The mean of the key's Beta distribution, on the scale of rewards."""
        successes, failures = self.counts.get(key, (PRIOR, PRIOR))
        return self.low + (self.high - self.low) * successes / (successes + failures)

    def update(self, key: str, reward: float, drift: float) -> None:
        """Discount the counts, then add the reward; one outside the range counts as the end it passed."""
        retention = min(max(2.0 ** (-drift / HALF_LIFE_NATS), MIN_RETENTION), MAX_RETENTION)
        share = min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)
        successes, failures = self.counts.get(key, (PRIOR, PRIOR))
        self.counts[key] = (retention * successes + share, retention * failures + 1.0 - share)

    def to_json(self) -> dict[str, Any]:
        """Keys with their two counts."""
        return {"kind": "beta", "low": self.low, "high": self.high, "counts": {k: [*v] for k, v in self.counts.items()}}


@dataclass
class MovingAverageTracker:
    """An exponential moving average per key; a key's first reward is its first average."""

    retention: float = 0.95
    initial: float = 0.0
    averages: dict[str, float] = field(default_factory=dict)

    def expect(self, key: str) -> float:
        """The average, or `initial` for a key never seen."""
        return self.averages.get(key, self.initial)

    def update(self, key: str, reward: float, drift: float) -> None:  # noqa: ARG002 an average has no use for drift
        """Move the average towards the reward."""
        average = self.averages.get(key, reward)
        self.averages[key] = self.retention * average + (1.0 - self.retention) * reward

    def to_json(self) -> dict[str, Any]:
        """Keys with their averages."""
        return {
            "kind": "moving_average",
            "retention": self.retention,
            "initial": self.initial,
            "averages": self.averages.copy(),
        }


def tracker_from_json(state: dict[str, Any]) -> Tracker:
    """Invert `to_json` of either tracker."""
    if state["kind"] == "beta":
        counts = {key: (pair[0], pair[1]) for key, pair in state["counts"].items()}
        return BetaTracker(low=state["low"], high=state["high"], counts=counts)
    return MovingAverageTracker(
        retention=state["retention"], initial=state["initial"], averages=dict(state["averages"])
    )


def advantages(samples: Sequence[Scored], tracker: Tracker, *, whiten: bool) -> np.ndarray:
    """Reward minus baseline per sample, float64 [N].

    The baseline is the mean of the *other* samples of the same prompt where the batch has any, else the tracker's.
    Whitening divides by at least STD_FLOOR, and leaves a lone sample alone: less its own mean it would teach nothing.
    """
    groups: dict[bytes, list[float]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(sample.reward)
    raw = np.array([sample.reward - _baseline(sample, groups[sample.prompt], tracker) for sample in samples])
    if not whiten or len(samples) < 2:  # noqa: PLR2004 a lone sample
        return raw
    whitened: np.ndarray = (raw - raw.mean()) / max(float(raw.std()), STD_FLOOR)
    return whitened


def _baseline(sample: Scored, group: list[float], tracker: Tracker) -> float:
    if len(group) == 1:
        return tracker.expect(sample.baseline_key)
    return (sum(group) - sample.reward) / (len(group) - 1)
