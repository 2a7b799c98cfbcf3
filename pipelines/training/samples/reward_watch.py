"""Find rewards that turned: flipped labels, a broken grader. Each looks honest alone; together they are not what was expected.

For each task and part of the reward, a tracker knows what each version earned so far. The surprise of a batch is the mean of reward
less expectation, as a share of the range of rewards. A task is suspect, and its samples are quarantined, if any part's surprise lies

    below -max(LEAST_DROP, ERRORS standard errors)   or   above max(LEAST_RISE, ERRORS standard errors)

A policy learns to earn more, so a rise must be larger. Versions have expectations of their own, so neither a rollback nor a late
reward is a surprise. A session that was judged as a whole counts once. A new task, and one whose file changed, is not watched until it
has an expectation. Smaller jumps pass: at 64 samples a flip is found if the task earned more than .66 or less than .25 of the range.
A task that stays suspect for `hold_seconds` is believed from then on: the world changed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.training.known.experiences import episode_of, first_version, weights_once
from pipelines.training.learning.advantages import parts_of
from pipelines.training.learning.trackers import BetaTracker, tracker_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience

REWARD_SPIKE = "reward_spike"
LEAST_DROP, LEAST_RISE = 0.25, 0.5
ERRORS = 5.0
LARGEST_DEVIATION = 0.5
"""Of a reward between 0 and 1."""
LEAST_EVIDENCE = 20.0
"""Rewards that an expectation must stand for before anything can be a surprise."""
LEAST_SAMPLES = 16
"""Smaller batches are judged together with the samples before them."""
MOST_NAMES = 1_000
"""Parts of tasks whose last rewards are held, and suspect tasks."""
WHOLE = "reward"


class Suspicion(NamedTuple):
    """A task whose rewards jumped."""

    task: str
    part: str
    surprise: float
    """Mean of reward less expectation, as a share of the range."""
    num_samples: int


class WatchMemory(NamedTuple):
    """What the watch knows of the tasks of some samples, as JSON."""

    levels: dict[str, Any]
    recent: dict[str, list[float]]
    suspect_since: dict[str, float]


class RewardWatch:
    """What each task's rewards were, by part and version."""

    def __init__(self, low: float, high: float, hold_seconds: float) -> None:
        self._low, self._high, self._hold = low, high, hold_seconds
        self.levels = BetaTracker(low=low, high=high)
        self.suspect_since: dict[str, float] = {}
        """Task to UTC epoch seconds."""
        self._recent: dict[str, deque[float]] = {}

    def take(self, levels: dict[str, Any], suspect_since: Mapping[str, float]) -> None:
        """Continue with what a checkpoint holds."""
        tracker = tracker_from_json(levels)
        if isinstance(tracker, BetaTracker):
            self.levels = tracker.rescaled(self._low, self._high)
        self.suspect_since = dict(suspect_since)

    def memory(self, samples: Sequence[Experience]) -> WatchMemory:
        """What `suspicions` of these samples depends on."""
        names = {f"{_task(item)}#{part}" for item in samples for part in self._values(item)}
        known = {name: self.levels.entries[name] for name in names if name in self.levels.entries}
        levels = BetaTracker(known, sum(map(len, known.values())), self._low, self._high)
        recent = {name: list(self._recent[name]) for name in names if name in self._recent}
        return WatchMemory(levels.to_json(), recent, dict(self.suspect_since))

    def remember(self, memory: WatchMemory) -> None:
        """Continue with what `memory` gave."""
        self.take(memory.levels, memory.suspect_since)
        self._recent = {name: deque(values, maxlen=LEAST_SAMPLES) for name, values in memory.recent.items()}

    def suspicions(self, samples: Sequence[Experience], now: float) -> list[Suspicion]:
        """The worst part of each task that must not be trained now."""
        worst: dict[str, Suspicion] = {}
        for name, (task, part, surprises) in self._surprises(samples).items():
            recent = self._recent[name] = self._recent.pop(name, deque(maxlen=LEAST_SAMPLES))
            recent.extend(surprises)
            judged = surprises if len(surprises) >= LEAST_SAMPLES else list(recent)
            surprise = sum(judged) / len(judged)
            error = ERRORS * LARGEST_DEVIATION / math.sqrt(len(judged))
            jumped = surprise < -max(LEAST_DROP, error) or surprise > max(LEAST_RISE, error)
            found = Suspicion(task, part, surprise, len(judged))
            if jumped and (task not in worst or abs(surprise) > abs(worst[task].surprise)):
                worst[task] = found
        for task in {_task(item) for item in samples} - worst.keys():
            self.suspect_since.pop(task, None)
        self._forget()
        return [
            found
            for task, found in sorted(worst.items())
            if now - self.suspect_since.setdefault(task, now) < self._hold
        ]

    def _forget(self) -> None:
        """Keep what was judged last. A task has other names after each change of its file."""
        for names in (self._recent, self.suspect_since):
            while len(names) > MOST_NAMES:
                del names[next(iter(names))]

    def _surprises(self, samples: Sequence[Experience]) -> dict[str, tuple[str, str, list[float]]]:
        """By name: the task, the part, and one surprise for each episode."""
        found: dict[str, tuple[str, str, dict[str, list[float]]]] = {}
        for item in samples:
            version = first_version(item)
            for part, value in self._values(item).items():
                name = f"{_task(item)}#{part}"
                if self.levels.evidence(name, version) >= LEAST_EVIDENCE:
                    surprise = (value - self.levels.expect(name, version)) / (self._high - self._low)
                    episodes = found.setdefault(name, (_task(item), part, {}))[2]
                    episodes.setdefault(episode_of(item), []).append(surprise)
        return {
            name: (task, part, [sum(calls) / len(calls) for calls in episodes.values()])
            for name, (task, part, episodes) in found.items()
        }

    def learned(self, samples: Sequence[Experience]) -> None:
        """These samples were trained: they are what to expect from now on."""
        for item, weight in zip(samples, weights_once(samples), strict=True):
            for part, value in self._values(item).items():
                self.levels.update(f"{_task(item)}#{part}", first_version(item), value, weight)

    def _values(self, item: Experience) -> dict[str, float]:
        parts = {name: part.value for name, part in parts_of(item, self._low, self._high).items()}
        values = {**parts, WHOLE: item.reward or 0.0}
        return {name: min(max(value, self._low), self._high) for name, value in values.items()}


def _task(item: Experience) -> str:
    """A provider earns what it earns, whatever this policy does."""
    return f"{item.task}@{item.task_hash}" + (f"/{item.origin}" if item.origin else "")


def of_tasks(samples: Sequence[Experience], suspicions: Sequence[Suspicion]) -> set[str]:
    """Keys of the samples of suspect tasks."""
    tasks = {found.task for found in suspicions}
    return {item.key for item in samples if _task(item) in tasks}
