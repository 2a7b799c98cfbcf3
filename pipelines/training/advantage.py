"""How much better than expected each sample was. Pure; trackers are the only state and live in the checkpoint.

One generation per prompt is the normal case, so what to expect is tracked per baseline key. Trackers are read before
the batch that updates them: a sample must not lower its own advantage. Infra faults, null rewards and corrections of
what was learned before never come here, so they are in no baseline. A sample counts in baselines by its weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HALF_LIFE_NATS = 0.06
MIN_RETENTION, MAX_RETENTION = 0.875, 0.96
MAX_DRIFT = 1.0
"""Nats per token: by then everything old is forgotten as fast as can be."""
PRIOR = 0.5
STD_FLOOR = 0.05


@dataclass(frozen=True)
class Scored:
    """What the advantage needs to know of a sample."""

    reward: float
    baseline_key: str
    prompt: bytes
    weight: float = 1.0
    """How much it is believed, above 0: its share of every baseline. Staleness has no part in it."""


@dataclass(frozen=True)
class Part:
    """One component of a reward: its value in units of reward, and its share of the whole."""

    value: float
    weight: float


@dataclass(frozen=True)
class Advantages:
    """Of a batch: `values` float64 [N], and `scale`, what one unit of reward was multiplied by to make them.

    `surplus` float64 [N], in rewards: by how much each was above what would have been worth nothing; without it `values`.
    """

    values: np.ndarray
    scale: float = 1.0
    surplus: np.ndarray | None = None

    @property
    def above(self) -> np.ndarray:
        """The surplus [N]."""
        return self.values if self.surplus is None else self.surplus


class Tracker(Protocol):
    """What to expect of a key, learned from the rewards seen so far."""

    def expect(self, key: str) -> float:
        """The expected reward."""
        ...

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:
        """Learn one reward; one of little weight moves and forgets little, and none counts for more than one.

        `drift` is the KL in nats per token between the behaviour and the current policy.
        """
        ...

    def remember(self, keys: Iterable[str]) -> Mapping[str, Any]:
        """What is known of some keys, for `recall`."""
        ...

    def recall(self, known: Mapping[str, Any]) -> None:
        """Know of these keys what `remember` saw, and nothing else of them."""
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

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:
        """Discount the counts, then add the reward; one outside the range counts as the end it passed."""
        weight = min(weight, 1.0)
        # Not a number, and whatever would overflow, is as far as can be.
        drift = min(max(drift, 0.0), MAX_DRIFT) if drift < MAX_DRIFT else MAX_DRIFT
        retention = min(max(2.0 ** (-drift / HALF_LIFE_NATS), MIN_RETENTION), MAX_RETENTION) ** weight
        share = min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)
        successes, failures = self.counts.get(key, (PRIOR, PRIOR))
        self.counts[key] = (retention * successes + weight * share, retention * failures + weight * (1.0 - share))

    def remember(self, keys: Iterable[str]) -> dict[str, tuple[float, float] | None]:
        """The counts of some keys; None for a key never seen."""
        return {key: self.counts.get(key) for key in keys}

    def recall(self, known: Mapping[str, tuple[float, float] | None]) -> None:
        """Have these counts again."""
        for key, value in known.items():
            if value is None:
                self.counts.pop(key, None)
            else:
                self.counts[key] = value

    def rescaled(self, low: float, high: float) -> BetaTracker:
        """The same expectations and as much evidence, for another range of rewards; what lies outside moves to its end."""
        counts = {}
        for key, (successes, failures) in self.counts.items():
            share = min(max((self.expect(key) - low) / (high - low), 0.0), 1.0)
            counts[key] = (share * (successes + failures), (1.0 - share) * (successes + failures))
        return BetaTracker(low, high, counts)

    def to_json(self) -> dict[str, Any]:
        """Keys with their two counts."""
        return {"kind": "beta", "low": self.low, "high": self.high, "counts": {k: [*v] for k, v in self.counts.items()}}


@dataclass
class MovingAverageTracker:
    """An exponential moving average per key; a key's first reward, at full weight, is its first average."""

    retention: float = 0.95
    initial: float = 0.0
    averages: dict[str, float] = field(default_factory=dict)

    def expect(self, key: str) -> float:
        """The average, or `initial` for a key never seen."""
        return self.averages.get(key, self.initial)

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:  # noqa: ARG002 no use for drift
        """Move the average towards the reward."""
        pull = min(weight, 1.0) * (1.0 - self.retention if key in self.averages else 1.0)
        self.averages[key] = (1.0 - pull) * self.expect(key) + pull * reward

    def remember(self, keys: Iterable[str]) -> dict[str, float | None]:
        """The averages of some keys; None for a key never seen."""
        return {key: self.averages.get(key) for key in keys}

    def recall(self, known: Mapping[str, float | None]) -> None:
        """Have these averages again."""
        for key, value in known.items():
            if value is None:
                self.averages.pop(key, None)
            else:
                self.averages[key] = value

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


def advantages(samples: Sequence[Scored], tracker: Tracker, *, whiten: bool) -> Advantages:
    """Reward minus baseline per sample.

    The baseline is the mean of the *other* samples of the same prompt where the batch has any, else the tracker's.
    Whitening divides by at least STD_FLOOR, and leaves a lone sample alone: less its own mean it would teach nothing.
    """
    groups: dict[bytes, list[Scored]] = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(sample)
    raw = np.array([sample.reward - _baseline(sample, groups[sample.prompt], tracker) for sample in samples])
    return whitened(raw, [sample.weight for sample in samples]) if whiten else Advantages(raw)


def component_advantages(
    samples: Sequence[Scored], parts: Sequence[Mapping[str, Part]], tracker: Tracker
) -> Advantages:
    """Advantages of each component by itself, whitened over the samples that have it, then summed by weight.

    So a component whose values lie close together teaches as much as its weight says, and is not drowned by one whose
    values spread (GDPO, arXiv 2601.05242, with trackers and the batch for the group; weights add up to 1, so the sum is
    not normalised again). A component that is missing counts as its mean. With one component: the same as `advantages`.
    """
    values, scales, surplus = np.zeros(len(samples)), np.zeros(len(samples)), np.zeros(len(samples))
    for name in sorted({name for part in parts for name in part}):
        held = [index for index, part in enumerate(parts) if name in part]
        column = [component_of(samples[index], name, parts[index][name]) for index in held]
        share = np.array([parts[index][name].weight for index in held])
        found = advantages(column, tracker, whiten=True)
        values[held] += share * found.values
        scales[held] += share * found.scale
        surplus[held] += share * found.above
    return Advantages(values, float(scales.mean()) if len(samples) else 1.0, surplus)


def component_of(sample: Scored, name: str, part: Part) -> Scored:
    """One component of a sample, with a baseline of its own."""
    return replace(sample, reward=part.value, baseline_key=f"{sample.baseline_key}#{name}")


def whitened(raw: np.ndarray, weights: Sequence[float]) -> Advantages:
    """Weighted mean 0 and deviation 1 [N]; a lone sample stays as it is.

    `scale` never says more than sqrt(N), although a calm batch divides by less: one reward that differs by 1 among N
    would have made a deviation of 1 / sqrt(N) by itself, and a correction is such a one.
    """
    if len(raw) < 2:  # noqa: PLR2004 a lone sample
        return Advantages(raw)
    mean = float(np.average(raw, weights=weights))
    deviation = max(math.sqrt(np.average((raw - mean) ** 2, weights=weights)), STD_FLOOR)
    return Advantages((raw - mean) / deviation, min(1.0 / deviation, math.sqrt(len(raw))), raw - mean)


def _baseline(sample: Scored, group: Sequence[Scored], tracker: Tracker) -> float:
    others = [other for other in group if other is not sample]
    if not others:
        return tracker.expect(sample.baseline_key)
    return sum(other.weight * other.reward for other in others) / sum(other.weight for other in others)
