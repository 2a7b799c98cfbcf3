"""How much better than expected each sample was, and what the loss of its tokens is divided by. Pure; the state is in `trackers`.

One generation per prompt is the normal case, so the expected reward is tracked per baseline key. A batch reads the trackers
before it updates them: a sample must not lower its own advantage. Samples with an infrastructure fault or without a reward,
and corrections of trained samples, never come here, so no baseline contains them. A sample counts in baselines by its weight.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelines.training.known.experiences import (
    episode_of,
    first_version,
    group_of,
    num_tokens,
    prompt_of,
    weights_once,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience, Score
    from pipelines.training.learning.trackers import Tracker
    from pipelines.training.settings import TrainingSettings

STD_FLOOR = 0.05
SIGNALS = "signals"
"""All signals of users together are one component of a reward."""
TOTAL = "total"
_ROUNDING = 1e-6


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


class Part(NamedTuple):
    """One component of a reward: its value in units of reward, and its share of the whole."""

    value: float
    weight: float


class Advantages(NamedTuple):
    """The advantages of a batch, float64 [N]."""

    values: np.ndarray
    above: np.ndarray
    """In units of reward: how far each reward lies above the one with advantage 0."""
    scale: float = 1.0
    """The factor from one unit of reward to an advantage."""
    samples: Sequence[Scored] = ()
    """What the trackers shall learn: the samples, or their components."""


def advantages_of(experiences: Sequence[Experience], tracker: Tracker, settings: TrainingSettings) -> Advantages:
    """The advantages of a batch, read from the tracker before it is updated."""
    scored = _scored(experiences)
    if settings.normalise == "total":
        return advantages(scored, tracker, whiten=settings.whiten)
    return component_advantages(scored, [parts_of(item, *settings.reward_range) for item in experiences], tracker)


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
    found = whitened(raw, [sample.weight for sample in samples]) if whiten and not is_lone else Advantages(raw, raw)
    return found._replace(samples=samples)


def component_advantages(
    samples: Sequence[Scored], parts: Sequence[Mapping[str, Part]], tracker: Tracker
) -> Advantages:
    """Advantages of each component by itself, whitened over the samples that have it, then summed by weight.

    A component with a narrow spread then teaches as much as its weight says, instead of being drowned out by a component
    with a wide spread (GDPO, arXiv 2601.05242, with trackers and the batch in place of the group; weights add up to 1, so the
    sum is not normalised again). A missing component counts as its mean. One component gives the same as `advantages`.
    """
    values, scales, above = np.zeros((3, len(samples)))
    rows = [
        {name: component_of(sample, name, part) for name, part in each.items()}
        for sample, each in zip(samples, parts, strict=True)
    ]
    for name in sorted({name for part in parts for name in part}):
        held = [index for index, part in enumerate(parts) if name in part]
        column = [rows[index][name] for index in held]
        share = np.array([parts[index][name].weight for index in held])
        found = advantages(column, tracker, whiten=True)
        values[held] += share * found.values
        scales[held] += share * found.scale
        above[held] += share * found.above
    scale = float(scales.mean()) if len(samples) else 1.0
    return Advantages(values, above, scale, [component for row in rows for component in row.values()])


def component_of(sample: Scored, name: str, part: Part) -> Scored:
    """One component of a sample, with a baseline of its own."""
    return replace(sample, reward=part.value, baseline_key=f"{sample.baseline_key}#{name}")


def whitened(raw: np.ndarray, weights: Sequence[float]) -> Advantages:
    """Weighted mean 0 and deviation 1 [N]; a lone sample is unchanged.

    `scale` is capped at sqrt(N), although the deviation of a calm batch may be smaller. A correction uses `scale` for a
    reward that changed later, and one reward that differs by 1 among N gives a deviation of 1 / sqrt(N) by itself.
    """
    if len(raw) < 2:  # noqa: PLR2004 a lone sample
        return Advantages(raw, raw)
    mean = float(np.average(raw, weights=weights))
    deviation = max(math.sqrt(np.average((raw - mean) ** 2, weights=weights)), STD_FLOOR)
    return Advantages((raw - mean) / deviation, raw - mean, min(1.0 / deviation, math.sqrt(len(raw))))


def _peers(sample: Scored) -> object:
    # A session lasts longer than versions do, so those of a group rarely have the same one.
    return ("", sample.group or sample.episode) if sample.episode else (sample.prompt, sample.version)


def _baseline(sample: Scored, group: Sequence[Scored], tracker: Tracker) -> float:
    others = [
        (other.weight, other.reward)
        for other in group
        if other is not sample and (not sample.episode or other.episode != sample.episode)
    ]
    return _mean(others) if others else tracker.expect(sample.baseline_key, sample.version)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Of pairs of a weight and a value."""
    return sum(weight * value for weight, value in weighted) / sum(weight for weight, _ in weighted)


def parts_of(experience: Experience, low: float, high: float) -> dict[str, Part]:
    """Known components by name; if there are none, the whole reward as one component.

    Graders give a share in [0, 1], which is scaled to between `low` and `high`; signals give rewards. The signals get the weight
    that the graders leave of 1. If a gate refused the answer, every component gets the worst value, including graders that did
    not run: otherwise the refusal would teach nothing about them.
    """
    graders = [score for score in experience.scores if score.weight > 0 and not _is_signal(score)]
    left = 1.0 - sum(score.weight for score in graders)
    refused = experience.fault == "model"
    found = {
        score.name: Part(low if refused or score.value is None else low + (high - low) * score.value, score.weight)
        for score in graders
        if refused or (score.status == "scored" and score.value is not None)
    }
    said = [
        (score.weight, score.value)
        for score in experience.scores
        if _is_signal(score) and score.weight > 0 and score.status == "scored" and score.value is not None
    ]
    if (refused or said) and left > _ROUNDING:
        found[SIGNALS] = Part((experience.reward or 0.0) if refused else _mean(said), left)
    return found or {TOTAL: Part(experience.reward or 0.0, 1.0)}


def _is_signal(score: Score) -> bool:
    return score.grader.startswith("signal/")


def denominators(experiences: Sequence[Experience]) -> np.ndarray:
    """What the loss of each sample's tokens is divided by, above 0: float64 [N]. Counted before an objective masks anything.

        denominator = samples in the batch x mean tokens of the sample's task / temperature

    Within a task every token counts the same (DAPO, arXiv 2503.14476), but a task with long answers does not drown one with short
    ones: each has the weight of its samples. With one task at temperature 1 it is the batch's number of tokens.

    Several answers to one prompt are compared with each other, so each counts as one sample whatever its length: its own tokens take
    the place of the task's mean. The gradient of log softmax(logits / T) grows as 1 / T, so an answer sampled at .3 would pull three
    times as hard as one at 1.
    """
    lengths = [num_tokens([item]) for item in experiences]
    prompts = Counter((item.task, prompt_of(item)) for item in experiences)
    of_task: dict[str, list[int]] = defaultdict(list)
    for item, length in zip(experiences, lengths, strict=True):
        of_task[item.task].append(length)
    means = {task: sum(each) / len(each) for task, each in of_task.items()}
    found = np.ones(len(experiences))
    for index, (item, length) in enumerate(zip(experiences, lengths, strict=True)):
        has_others = prompts[item.task, prompt_of(item)] > 1
        mean = length if has_others else means[item.task]
        counts = [segment.loss_mask.count(1) for segment in item.segments]
        temperature = float(np.average([segment.sampling.temperature for segment in item.segments], weights=counts))
        found[index] = len(experiences) * mean / temperature
    return found


def _scored(experiences: Sequence[Experience]) -> list[Scored]:
    """One for each. A session counts as one sample: its calls share one weight, and version and group of its last call."""
    in_order = sorted(experiences, key=lambda item: 0 if item.share is None else item.share.index)
    last = {episode_of(item): item for item in in_order}
    found = []
    for item, weight in zip(experiences, weights_once(experiences), strict=True):
        if item.reward is None:
            raise ValueError(f"{item.key} has no reward")
        episode = episode_of(item)
        version, group = first_version(last[episode]), group_of(last[episode])
        alone = "" if item.share is None else episode
        found.append(Scored(item.reward, item.baseline_key, prompt_of(item), version, weight, alone, group))
    return found
