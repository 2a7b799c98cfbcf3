"""Verifiers by kind. Each is a file of this folder with a `VERSION` and a `build`; it is imported when a task names it."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, NamedTuple

from contracts.errors import InvalidTask
from contracts.tasks import Task
from rewards.graders import Grader, each
from rewards.verifiers.check import BatchVerifier, Builder, Context, Verifier


class Kind(NamedTuple):
    """One kind of verifier. `is_slow`: it runs beside others, and after the gates. contracts/tasks/gate.py has what it proves."""

    purpose: str
    is_slow: bool = False


KINDS: dict[str, Kind] = {
    "choice": Kind("the answer picks one letter, that of the reference"),
    "code": Kind("the answer's program gives the expected values, each input in a sandbox of its own", is_slow=True),
    "exact": Kind("the answer is the text of the reference, after a normalisation that the task names"),
    "function": Kind("your own reward function, with trl's signature, by import path", is_slow=True),
    "http": Kind("a reward server: prompts and completions in, rewards out", is_slow=True),
    "instruction": Kind("the answer has the form that was asked for, by any of some thirty checks"),
    "json_exact": Kind("the answer equals the JSON of the reference"),
    "json_schema": Kind("the answer is JSON that satisfies a schema"),
    "math": Kind("the boxed answer is worth the same as the reference", is_slow=True),
    "numeric": Kind("the answer commits to one number, that of the reference, within a tolerance"),
    "reasoning_gym": Kind("the answer solves a task of reasoning-gym, by its own scorer", is_slow=True),
    "regex": Kind("a pattern is found in the answer, is the whole of it, or is nowhere in it"),
    "sql": Kind("the answer's query gives the rows of the reference's, on two databases or more", is_slow=True),
    "token_f1": Kind("the share of words that answer and reference have in common, as F1"),
    "tool_call": Kind("the answer calls tools that exist, with arguments that satisfy their schemas"),
}


def graders_of(task: Task, names: Collection[str] | None = None) -> list[Grader]:
    """The verifiers of a task, ready to run; only those of `names`, if it is given.

    Raises:
        InvalidTask: an unknown kind, or a config that it does not take; with file, line and what to do.
    """
    graders = []
    for index, rule in enumerate(task.verifiers):
        if rule.kind not in KINDS:
            place = task.where("verifiers", index, "kind")
            raise InvalidTask(
                f"{place}: verifier {rule.name!r} kind: there is no verifier {rule.kind!r}; "
                f"there are {', '.join(sorted(KINDS))}"
            )
        if names is not None and rule.name not in names:
            continue
        module: Any = importlib.import_module(f"rewards.verifiers.{rule.kind}")
        built = built_by(module.build, task, index)
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


def built_by(builder: Builder, task: Task, index: int) -> Verifier | BatchVerifier:
    """One verifier of a task. Raises InvalidTask, as `graders_of`."""
    rule = task.verifiers[index]
    try:
        return builder(rule.config, Context(rule.deadline_seconds, task.folder))
    except InvalidTask as error:
        field = [int(part) if part.isdigit() else part for part in (error.param or "").split(".") if part]
        place = task.where("verifiers", index, "config", *field)
        named = f" config.{error.param}" if error.param else ""
        raise InvalidTask(f"{place}: verifier {rule.name!r} ({rule.kind}){named}: {error.message}") from error
