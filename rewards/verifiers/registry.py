"""Verifiers by kind. Each is a file of this folder with a `VERSION` and a `build`; it is imported when a task names it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from contracts.errors import InvalidTask
from contracts.tasks import Task
from rewards.graders import Grader, each
from rewards.verifiers.check import BatchVerifier, Context


class Kind(NamedTuple):
    """One kind of verifier. `is_slow`: it runs beside others, and after the gates."""

    purpose: str
    is_slow: bool = False


KINDS: dict[str, Kind] = {
    "json_exact": Kind("the answer equals the JSON of the reference"),
    "json_schema": Kind("the answer is JSON that satisfies a schema"),
}


def graders_of(task: Task) -> list[Grader]:
    """The verifiers of a task, ready to run.

    Raises:
        InvalidTask: an unknown kind, or a config that it does not take; with file, line and what to do.
    """
    graders = []
    for index, rule in enumerate(task.verifiers):
        if rule.kind not in KINDS:
            place = task.where("verifiers", index, "kind")
            raise InvalidTask(f"{place}: no verifier {rule.kind!r}; there are {', '.join(sorted(KINDS))}")
        module: Any = importlib.import_module(f"rewards.verifiers.{rule.kind}")
        context = Context(rule.deadline_seconds, task.folder)
        try:
            built = module.build(rule.config, context)
        except InvalidTask as error:
            field = (error.param or "").split(".") if error.param else []
            place = task.where("verifiers", index, "config", *field)
            raise InvalidTask(f"{place}: verifier {rule.name!r} ({rule.kind}): {error.message}") from error
        graders.append(
            Grader(
                name=rule.name,
                role=rule.role,
                weight=rule.weight if rule.role == "component" else 0.0,
                label=f"{rule.kind}/{module.VERSION}#{task.hash}",
                is_slow=KINDS[rule.kind].is_slow,
                check_all=built.check_all if isinstance(built, BatchVerifier) else each(built),
            )
        )
    return graders
