"""`instruction`: the answer has the form that was asked for, by any number of small checks.

The checks come from the task file, or with each sample in `metadata.reference`, a JSON list of the same tables:

    [[verifiers.config.checks]]
    check = "max_words"
    value = 100

An answer that is empty or invisible fails, because it would pass every check that only forbids something. Look-alike letters
cannot satisfy a required part or hide a forbidden one: see `lookalikes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from contracts.errors import InvalidTask
from contracts.tasks.section import TaskSection
from examples.verifiers.instructions import INSTRUCTIONS
from examples.verifiers.instructions.rule import Instruction, Unusable
from rewards.verifiers.check import (
    Answer,
    Check,
    Context,
    Verifier,
    after_reasoning,
    bad_reference,
    read_config,
    right,
    unlabelled,
    wrong,
)
from rewards.verifiers.lookalikes import plain
from rewards.verifiers.registry import Kind
from rewards.verifiers.strict_json import NotJson, read_json

VERSION = 3
KIND = Kind("the answer has the form that was asked for, by any of some thirty checks")
_LINE_END = re.compile(r"\r\n?|\u2028")
MAX_CHECKS = 100


class Config(TaskSection):
    """Settings in the task file."""

    checks: tuple[dict[str, Any], ...] = Field(default=(), max_length=MAX_CHECKS)
    """`check` names the check (docs/rewards.md has the list). The other keys are its parameters."""
    from_reference: bool | None = None
    """Whether each sample has further checks in `metadata.reference`. By default only if there are no checks here."""
    score: Literal["all", "share"] = "all"
    """`all`: one failed check fails the answer; `share`: the value is the share of checks that pass."""


class RequestedCheck(NamedTuple):
    """A check with its parameters."""

    name: str
    instruction: Instruction
    parameters: TaskSection


def build(config: Mapping[str, Any], context: Context = Context()) -> Verifier:  # noqa: B008 immutable
    """See `Builder`."""
    del context
    rule = read_config(Config, config)
    always = _read_checks(rule.checks, "checks")
    from_reference = not always if rule.from_reference is None else rule.from_reference
    if not always and not from_reference:
        raise InvalidTask("it needs [[verifiers.config.checks]], or from_reference = true", param="checks")

    def check(answer: Answer) -> Check:
        asked = always
        if from_reference:
            if answer.reference is None:
                return unlabelled("no metadata.reference")
            try:
                asked = [*always, *_read_reference(answer.reference)]
            except ValueError as error:
                return bad_reference(str(error))
        return _followed(answer, asked, rule.score)

    return after_reasoning(check)


def _followed(answer: Answer, asked: Sequence[RequestedCheck], score: str) -> Check:
    answer = answer._replace(text=_LINE_END.sub("\n", plain(answer.text)).replace("\u2029", "\n\n"))
    if not answer.text.strip():
        return wrong("the answer is empty")
    try:
        problems = [(item.name, item.instruction.problem(answer, item.parameters)) for item in asked]
    except Unusable as error:
        return bad_reference(str(error))
    failed = [f"{name}: {problem}" for name, problem in problems if problem]
    if not failed:
        return right()
    if score == "all" or len(failed) == len(problems):
        return wrong("; ".join(failed))
    return Check(1.0 - len(failed) / len(problems), reason="; ".join(failed)[:200])


def _read_reference(reference: str) -> list[RequestedCheck]:
    """Raises ValueError; the message says what is wrong."""
    try:
        given = read_json(reference)
    except NotJson as error:
        raise ValueError(f"metadata.reference is not JSON: {error}") from error
    if not isinstance(given, list) or not 0 < len(given) <= MAX_CHECKS:
        raise ValueError(f"metadata.reference is not a JSON list of 1 to {MAX_CHECKS} checks")
    try:
        return _read_checks(given, "")
    except InvalidTask as error:
        raise ValueError(f"metadata.reference {error.param}: {error.message}") from error


def _read_checks(given: Sequence[Any], param: str) -> list[RequestedCheck]:
    """Raises InvalidTask; `param` is the path to the field."""
    asked = []
    for index, item in enumerate(given):
        place = f"{param}.{index}" if param else str(index)
        if not isinstance(item, Mapping) or not isinstance(item.get("check"), str):
            raise InvalidTask("it needs `check`, the name of a check", param=place)
        name = item["check"]
        if name not in INSTRUCTIONS:
            known = ", ".join(sorted(INSTRUCTIONS))
            raise InvalidTask(f"no check {name[:40]!r}; there are {known}", param=f"{place}.check")
        instruction = INSTRUCTIONS[name]
        try:
            parameters = read_config(instruction.parameters, {key: item[key] for key in item if key != "check"})
        except InvalidTask as error:
            field = f"{place}.{error.param}" if error.param else place
            raise InvalidTask(f"{name}: {error.message}", param=field) from error
        asked.append(RequestedCheck(name, instruction, parameters))
    return asked
