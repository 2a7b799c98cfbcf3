"""How the answers of each task are compared, from the task files and [train]. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.tasks import Task
from pipelines.release.train.answers import TaskRule
from runtime.train_settings import TrainSettings

_AGE_SHARE = 0.25
"""Of a train's patience: a longer default age would end every train before a single answer is old enough."""


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

    Both arms are compared at the same age, so any age is fair. The default is at most a quarter of `patience_seconds`: signals that
    may take weeks then count as far as they came.
    """
    if settings.age_seconds is not None:
        return settings.age_seconds
    longest = max([task.window_seconds, *(rule.window_seconds or 0.0 for rule in task.signals.values())])
    return min(longest, _AGE_SHARE * settings.patience_seconds)
