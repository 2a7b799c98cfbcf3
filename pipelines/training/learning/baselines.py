"""The advantages of a batch and the samples that move the trackers, as the settings choose them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.training.learning.advantage import Advantages, Scored, advantages, component_advantages, component_of
from pipelines.training.learning.batch import episode_of, first_version, group_of, prompt_of, weights_once
from pipelines.training.learning.components import parts_of
from pipelines.training.learning.trackers import BetaTracker, MovingAverageTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience
    from pipelines.training.learning.advantage import Part
    from pipelines.training.learning.trackers import Tracker
    from pipelines.training.settings import TrainingSettings


def new_tracker(settings: TrainingSettings) -> Tracker:
    """The tracker of a trainer that never trained."""
    if settings.baseline == "beta":
        low, high = settings.reward_range
        return BetaTracker(low=low, high=high)
    return MovingAverageTracker(initial=sum(settings.reward_range) / 2)


def in_range(tracker: Tracker, settings: TrainingSettings) -> Tracker:
    """The tracker on today's scale of rewards: task files may have changed since it was saved."""
    if not isinstance(tracker, BetaTracker) or (tracker.low, tracker.high) == settings.reward_range:
        return tracker
    return tracker.rescaled(*settings.reward_range)


def advantages_of(experiences: Sequence[Experience], tracker: Tracker, settings: TrainingSettings) -> Advantages:
    """The advantages of a batch, read from the tracker before it is updated."""
    scored = _scored(experiences)
    if settings.normalise == "components":
        return component_advantages(scored, _parts(experiences, settings), tracker)
    return advantages(scored, tracker, whiten=settings.whiten)


def baseline_samples(experiences: Sequence[Experience], settings: TrainingSettings) -> list[Scored]:
    """The samples, or their components, that update the trackers."""
    scored = _scored(experiences)
    if settings.normalise == "total":
        return scored
    return [
        component_of(sample, name, part)
        for sample, parts in zip(scored, _parts(experiences, settings), strict=True)
        for name, part in parts.items()
    ]


def _scored(experiences: Sequence[Experience]) -> list[Scored]:
    """One for each. A session counts as one sample: its calls share one weight, and version and group of its last call."""
    last = {episode_of(item): item for item in sorted(experiences, key=_index)}
    found = []
    for item, weight in zip(experiences, weights_once(experiences), strict=True):
        episode = episode_of(item)
        found.append(
            Scored(
                _reward(item),
                item.baseline_key,
                prompt_of(item),
                first_version(last[episode]),
                weight,
                episode if item.share is not None else "",
                group_of(last[episode]),
            )
        )
    return found


def _index(experience: Experience) -> int:
    return 0 if experience.share is None else experience.share.index


def _parts(experiences: Sequence[Experience], settings: TrainingSettings) -> list[dict[str, Part]]:
    return [parts_of(item, *settings.reward_range) for item in experiences]


def _reward(experience: Experience) -> float:
    if experience.reward is None:
        raise ValueError(f"{experience.key} has no reward")
    return experience.reward
