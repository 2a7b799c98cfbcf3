"""A check of an instruction: its parameters, and a pure function that returns why an answer fails, or ""."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer


class Unusable(ValueError):
    """The sample lacks something that the check needs. No model is trained on it."""


class Instruction(NamedTuple):
    """One check. `problem` gets the answer and an instance of `parameters`; it returns "" if the answer passes."""

    parameters: type[TaskSection]
    problem: Callable[[Answer, Any], str]


class NoParameters(TaskSection):
    """A check without parameters."""


def of_text(problem: Callable[[str], str]) -> Instruction:
    """A check of the text alone, without parameters."""
    return Instruction(NoParameters, lambda answer, _: problem(answer.text))


class AtLeast(TaskSection):
    """`value` or more."""

    value: int = Field(ge=1)

    def problem(self, count: int, what: str) -> str:
        """See `Count`."""
        return "" if count >= self.value else f"{count} {what}, {self.value} or more asked"


class AtMost(TaskSection):
    """`value` or fewer."""

    value: int = Field(ge=0)

    def problem(self, count: int, what: str) -> str:
        """See `Count`."""
        return "" if count <= self.value else f"{count} {what}, {self.value} or fewer asked"


class Count(TaskSection):
    """Exactly `value`, or between `at_least` and `at_most`."""

    value: int | None = Field(default=None, ge=0)
    at_least: int | None = Field(default=None, ge=0)
    at_most: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one(self) -> Self:
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if (self.value is None) == (not bounds):
            raise ValueError("it needs `value`, or `at_least` or `at_most`")
        if bounds != sorted(bounds):
            raise ValueError("`at_least` is above `at_most`")
        return self

    def problem(self, count: int, what: str) -> str:
        """Why a count is outside the bounds, or ""."""
        least = self.value if self.value is not None else self.at_least
        most = self.value if self.value is not None else self.at_most
        if least is not None and count < least:
            return f"{count} {what}, {least} or more asked"
        if most is not None and count > most:
            return f"{count} {what}, {most} or fewer asked"
        return ""


def counted(count: Callable[[str], int], what: str, bounds: type[Count | AtLeast | AtMost] = Count) -> Instruction:
    """A check of how many of something the answer has."""
    return Instruction(bounds, lambda answer, rule: rule.problem(count(answer.text), what))
