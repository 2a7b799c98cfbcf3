"""How much better than expected each sample was. Pure; the state is in `trackers`.

One generation per prompt is the normal case, so the expected reward is tracked per baseline key. A batch reads the trackers
before it updates them: a sample must not lower its own advantage. Samples with an infrastructure fault or without a reward,
and corrections of trained samples, never come here, so no baseline contains them. A sample counts in baselines by its weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipelines.training.learning.trackers import Tracker

STD_FLOOR = 0.05


@dataclass(frozen=True)
class Scored:
    """The part of a sample that its advantage depends on."""

    reward: float
    baseline_key: str
    prompt: bytes
    version: int = 0
    """The version that began the answer: what it was expected to earn is the baseline."""
    weight: float = 1.0
    """Confidence in the reward, above 0: the share in every baseline. Staleness is not part of it."""
    episode: str = ""
    """Samples with the same one are calls of one session, with one reward; empty: the sample is alone."""
    group: str = ""
    """Sessions with the same one try the same thing; empty: the session is in no group."""


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


def advantages(samples: Sequence[Scored], tracker: Tracker, *, whiten: bool) -> Advantages:
    """Reward minus baseline per sample.

    The calls of a session have one baseline: the mean of the *other* sessions of its group, of any version, if the batch has any,
    else what the tracker expected. For any other sample it is the mean of the *other* samples of the same prompt and version, or
    what the tracker expected of that version.
    Whitening divides by at least STD_FLOOR. It skips a lone sample: minus its own mean, its advantage would be 0.
    """
    groups: dict[object, list[Scored]] = defaultdict(list)
    for sample in samples:
        groups[_peers(sample)].append(sample)
    raw = np.array([sample.reward - _baseline(sample, groups[_peers(sample)], tracker) for sample in samples])
    # The calls of a single session are like a lone sample: minus their own mean, their advantages would be 0.
    is_lone = bool(samples) and bool(samples[0].episode) and len({sample.episode for sample in samples}) == 1
    return whitened(raw, [sample.weight for sample in samples]) if whiten and not is_lone else Advantages(raw)


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


def _peers(sample: Scored) -> object:
    # A session lasts longer than versions do, so those of a group rarely have the same one.
    return ("", sample.group or sample.episode) if sample.episode else (sample.prompt, sample.version)


def _baseline(sample: Scored, group: Sequence[Scored], tracker: Tracker) -> float:
    others = [
        other for other in group if other is not sample and (not sample.episode or other.episode != sample.episode)
    ]
    if not others:
        return tracker.expect(sample.baseline_key, sample.version)
    return sum(other.weight * other.reward for other in others) / sum(other.weight for other in others)
