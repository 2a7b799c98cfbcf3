"""What users did, as scores: the task file says what each value is worth. Version 1."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.records import Score, Signal
from contracts.tasks import Task

VERSION = 1


def score_signals(task: Task, signals: Iterable[Signal]) -> list[Score]:
    """One score for each signal that is worth something, in the order in which the task declares them.

    The first decides (weight 1); the others are kept with weight 0. Of several under one name the newest counts.
    """
    newest = {signal.name: signal for signal in sorted(signals, key=lambda item: (item.at, item.id))}
    scores: list[Score] = []
    for name, rule in task.signals.items():
        value = rule.reward_of(newest[name].value) if name in newest else None
        if value is not None:
            weight = 0.0 if scores else 1.0
            scores.append(Score(name=name, grader=f"signal/{VERSION}#{task.hash}", value=value, weight=weight))
    return scores
