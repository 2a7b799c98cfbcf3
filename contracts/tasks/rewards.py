"""Sections of a task file: verifiers, and [reward], which combines all parts into one number."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.section import TaskSection

Role = Literal["gate", "component", "watch", "signal"]


class RewardRule(TaskSection):
    """The reward: gates multiply the distance of the components' weighted sum from `low`."""

    low: float = 0.0
    """The worst reward, which a model fault gets."""
    high: float = 1.0
    """The best reward. The trainer's baselines use the range of the task files."""
    signals: float | None = Field(default=None, ge=0, le=1)
    """Weight of users' signals. Default: 1 minus the weights of the components."""
    missing: Literal["null", "renormalise"] = "null"
    """If a component is missing because of an infrastructure fault: no reward, or the others share its weight. A missing gate
    always means no reward."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high <= self.low:
            raise ValueError("high must be above low")
        return self


class GraderRule(TaskSection):
    """Fields that verifiers and judges share."""

    name: str = Field(min_length=1, max_length=64)
    """Name of its score."""
    role: Role = "gate"
    """gate: a failure gives the worst reward; component: part of the weighted sum; watch: recorded, without effect; signal:
    used if no user sent a signal (for judges of the user's next message)."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of a component. All components and the signals must add up to 1."""


class VerifierRule(GraderRule):
    """One check of the answer."""

    kind: str
    """The verifier; `millrace score --list` shows all kinds."""
    deadline_seconds: float = Field(default=5.0, gt=0, le=600)
    """A slower verifier is stopped. That is an infrastructure fault, unless only the answer can be the reason (`code`, `math`,
    `sql`). Fast verifiers ignore this."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Options of the kind, for example `schema`."""
