"""The text that a user made of an answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.records import Signal
from contracts.tasks import Task

_EDITORS = frozenset(("user", "operator"))
"""Whose edits are learned: a judge's text is a model's, and no cap of a person's votes holds for it."""


def edit_in(task: Task, signals: Iterable[Signal]) -> str | None:
    """The newest text that a person made of the answer: a correction, or the value of a signal that means an edit."""
    people = (signal for signal in signals if signal.submitter.kind in _EDITORS)
    for signal in sorted(people, key=lambda each: (each.at, each.id), reverse=True):
        rule = task.signals.get(signal.name)
        if rule is not None and signal.correction is not None:
            return signal.correction
        if rule is not None and rule.means == "edit" and isinstance(signal.value, str):
            return signal.value
    return None
