"""Verifiers by kind, and how one is run so that its own failure is never the model's."""

from __future__ import annotations

from typing import NamedTuple

from contracts.errors import InvalidTask
from contracts.records import Score
from contracts.tasks import Task, VerifierRule
from rewards.verifiers import json_exact, json_schema
from rewards.verifiers.check import Answer, Builder, Check, Verifier

_KINDS: dict[str, tuple[Builder, int]] = {
    "json_exact": (json_exact.build, 1),
    "json_schema": (json_schema.build, 1),
}


class Grader(NamedTuple):
    """A verifier that stands in a task."""

    rule: VerifierRule
    verifier: Verifier
    label: str

    def score(self, answer: Answer) -> Score:
        """Run it. An exception is an infrastructure fault: no reward, and nobody's blame."""
        try:
            found = self.verifier(answer)
        except Exception as error:  # noqa: BLE001 a broken grader must not stop the others, nor count against the model
            found = Check(None, status="unscored", fault="infra", reason=f"{type(error).__name__}: {error}"[:200])
        weight = self.rule.weight if self.rule.role == "component" else 0.0
        return Score(
            name=self.rule.name,
            grader=self.label,
            value=found.value,
            weight=weight,
            status=found.status,
            fault=found.fault,
            reason=found.reason,
        )


def graders_of(task: Task) -> list[Grader]:
    """The verifiers of a task, ready to run.

    Raises:
        InvalidTask: an unknown kind, or a config that it does not take.
    """
    graders = []
    for rule in task.verifiers:
        if rule.kind not in _KINDS:
            raise InvalidTask(f"task {task.name!r}: no verifier {rule.kind!r}; there are {sorted(_KINDS)}")
        build, version = _KINDS[rule.kind]
        graders.append(Grader(rule, build(rule.config), f"{rule.kind}/{version}#{task.hash}"))
    return graders
