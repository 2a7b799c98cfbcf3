"""How much better than expected each sample was. Pure; trackers are the only state and live in the checkpoint.

One generation per prompt is the normal case, so the expected reward is tracked per baseline key. A batch reads the trackers
before it updates them: a sample must not lower its own advantage. Samples with an infrastructure fault or without a reward,
and corrections of trained samples, never come here, so no baseline contains them. A sample counts in baselines by its weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HALF_LIFE_NATS = 0.06
MIN_RETENTION, MAX_RETENTION = 0.875, 0.96
MAX_DRIFT = 1.0
"""Nats per token. From here on old rewards are forgotten at the fastest rate anyway."""
PRIOR = 0.5
STD_FLOOR = 0.05
MOST_KEYS = 20_000
"""Baseline keys that a tracker holds, about 1.5 MB in a checkpoint."""


@dataclass(frozen=True)
class Scored:
    """The part of a sample that its advantage depends on."""

    reward: float
    baseline_key: str
    prompt: bytes
    weight: float = 1.0
    """Confidence in the reward, above 0: the share in every baseline. Staleness is not part of it."""


@dataclass(frozen=True)
class Part:
    """One component of a reward: its value in units of reward, and its share of the whole."""

    value: float
    weight: float


@dataclass(frozen=True)
class Advantages:
    """The advantages of a batch: `values` float64 [N], and `scale`, the factor from one unit of reward to an advantage.

    `surplus` float64 [N], in units of reward: how far each reward lies above the one with advantage 0. None: `values`.
    """

    values: np.ndarray
    scale: float = 1.0
    surplus: np.ndarray | None = None

    @property
    def above(self) -> np.ndarray:
        """The surplus [N]."""
        return self.values if self.surplus is None else self.surplus


class Tracker(msgspec.Struct, tag_field="kind"):
    """The expected reward of each baseline key, learned from the rewards seen so far. JSON in the checkpoint."""

    def expect(self, key: str) -> float:
        """The expected reward."""
        raise NotImplementedError

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:
        """Learn one reward. A small `weight` moves and forgets little; weights above 1 count as 1.

        `drift` is the KL in nats per token between the behaviour and the current policy.
        """
        raise NotImplementedError

    def copy(self) -> Tracker:
        """An independent copy: updates of one do not change the other."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """State for the checkpoint; invert with `tracker_from_json`."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state


class BetaTracker(Tracker, tag="beta"):
    """Two discounted counts per key, for rewards between `low` and `high` (arXiv 2509.13232, SPO).

    The faster the policy moves, the sooner old rewards are forgotten: retention = 2^(-drift / 0.06), kept in
    [0.875, 0.96], so that between 8 and 25 rewards count.
    """

    low: float = 0.0
    high: float = 1.0
    counts: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)

    def expect(self, key: str) -> float:
        """The mean of the key's Beta distribution, on the scale of rewards."""
        successes, failures = self.counts.get(key, (PRIOR, PRIOR))
        return self.low + (self.high - self.low) * successes / (successes + failures)

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:
        """Discount the counts, then add the reward, clamped to the range."""
        weight = min(weight, 1.0)
        # NaN and values that would overflow count as the largest drift.
        drift = min(max(drift, 0.0), MAX_DRIFT) if drift < MAX_DRIFT else MAX_DRIFT
        retention = min(max(2.0 ** (-drift / HALF_LIFE_NATS), MIN_RETENTION), MAX_RETENTION) ** weight
        share = min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)
        successes, failures = self.counts.pop(key, (PRIOR, PRIOR))
        self.counts[key] = (retention * successes + weight * share, retention * failures + weight * (1.0 - share))
        _forget_oldest(self.counts)

    def copy(self) -> BetaTracker:
        """As in `Tracker`."""
        return BetaTracker(self.low, self.high, dict(self.counts))

    def rescaled(self, low: float, high: float) -> BetaTracker:
        """The same expectations and as much evidence for another range of rewards; values outside it are clamped."""
        counts = {}
        for key, (successes, failures) in self.counts.items():
            share = min(max((self.expect(key) - low) / (high - low), 0.0), 1.0)
            counts[key] = (share * (successes + failures), (1.0 - share) * (successes + failures))
        return BetaTracker(low, high, counts)


class MovingAverageTracker(Tracker, tag="moving_average"):
    """An exponential moving average per key. The first reward of a key, at full weight, is its first average."""

    retention: float = 0.95
    initial: float = 0.0
    averages: dict[str, float] = msgspec.field(default_factory=dict)

    def expect(self, key: str) -> float:
        """The average, or `initial` for a new key."""
        return self.averages.get(key, self.initial)

    def update(self, key: str, reward: float, drift: float, weight: float = 1.0) -> None:  # noqa: ARG002 no use for drift
        """Move the average towards the reward."""
        pull = min(weight, 1.0) * (1.0 - self.retention if key in self.averages else 1.0)
        expected = self.expect(key)
        self.averages.pop(key, None)
        self.averages[key] = (1.0 - pull) * expected + pull * reward
        _forget_oldest(self.averages)

    def copy(self) -> MovingAverageTracker:
        """As in `Tracker`."""
        return MovingAverageTracker(self.retention, self.initial, dict(self.averages))


def _forget_oldest(values: dict[str, Any]) -> None:
    """Drop the keys whose last reward is longest ago. A key of each user or document would otherwise stay."""
    while len(values) > MOST_KEYS:
        del values[next(iter(values))]


def tracker_from_json(state: dict[str, Any]) -> Tracker:
    """Invert `to_json` of either tracker."""
    return msgspec.convert(state, BetaTracker | MovingAverageTracker)


def advantages(samples: Sequence[Scored], tracker: Tracker, *, whiten: bool) -> Advantages:
    """Reward minus baseline per sample.

    The baseline is the mean of the *other* samples of the same prompt if the batch has any, else the tracker's.
    Whitening divides by at least STD_FLOOR. It skips a lone sample: minus its own mean, its advantage would be 0.
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

    A component with a narrow spread then teaches as much as its weight says, instead of being drowned out by a component
    with a wide spread (GDPO, arXiv 2601.05242, with trackers and the batch in place of the group; weights add up to 1, so the
    sum is not normalised again). A missing component counts as its mean. One component gives the same as `advantages`.
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
    """Weighted mean 0 and deviation 1 [N]; a lone sample is unchanged.

    `scale` is capped at sqrt(N), although the deviation of a calm batch may be smaller. A correction uses `scale` for a
    reward that changed later, and one reward that differs by 1 among N gives a deviation of 1 / sqrt(N) by itself.
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
