"""How the answers of each task are compared, from the task files and [train]. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.tasks import Task
from pipelines.release.train.answers import TaskRule
from runtime.train_settings import TrainSettings

_AGES = 4.0
"""A train gets at least so many times the age of its slowest task: else hardly an answer would be old enough before it ends."""


def task_rules(tasks: Mapping[str, Task], settings: TrainSettings) -> dict[str, TaskRule]:
    """The rule of each task, by name."""
    return {name: TaskRule(has_primary(task), comparing_age(task, settings)) for name, task in tasks.items()}


def has_primary(task: Task) -> bool:
    """Whether its answers can get a reward: from signals that are worth something, or from graders that count."""
    heard = task.signals_weight > 0 and (
        any(rule.worths for rule in task.signals.values()) or any(rule.role == "signal" for rule in task.grader_rules)
    )
    return heard or task.components_weight > 0


def comparing_age(task: Task, settings: TrainSettings) -> float:
    """The age in seconds at which answers are compared: `age_seconds`, or the longest window of the task.

    Both arms are compared at the same age, so any age is fair at which answers have their rewards: the task's own window. Signals with a
    longer window count as far as they came within `longest_age_seconds`.
    """
    if settings.age_seconds is not None:
        return settings.age_seconds
    longest = max([task.window_seconds, *(rule.window_seconds or 0.0 for rule in task.signals.values())])
    return max(task.window_seconds, min(longest, settings.longest_age_seconds))


def patience_of(rules: Mapping[str, TaskRule], settings: TrainSettings) -> float:
    """How many seconds a train gets: `patience_seconds`, or four times the age at which its slowest task is compared."""
    slowest = max((rule.age_seconds for rule in rules.values() if rule.has_primary), default=0.0)
    return max(settings.patience_seconds, _AGES * slowest)
