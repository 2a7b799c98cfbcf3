"""How the parts of a reward combine, declared: verifiers, and the rule that makes one number of everything."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.section import TaskSection

Role = Literal["gate", "component", "watch", "signal"]


class RewardRule(TaskSection):
    """What the reward is: gates scale how far the weighted sum of the components lies above `low`."""

    low: float = 0.0
    """The worst reward: what a model fault earns."""
    high: float = 1.0
    """The best one. The trainer's baselines take the range of the task files."""
    signals: float | None = Field(default=None, ge=0, le=1)
    """Weight of what users did; by default what the components leave of 1."""
    missing: Literal["null", "renormalise"] = "null"
    """A component that is missing by our own fault: no reward, or the others carry its weight. A gate is never guessed."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high <= self.low:
            raise ValueError("high must be above low")
        return self


class GraderRule(TaskSection):
    """What verifiers and judges have in common."""

    name: str = Field(min_length=1, max_length=64)
    """How its score is called."""
    role: Role = "gate"
    """gate: a failure makes the reward the worst one; component: part of the weighted sum; watch: kept, worth
    nothing; signal: where it says something and no user did, it speaks for the user (a judge of what came next)."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of a component; with those of judges and signals they add up to 1."""


class VerifierRule(GraderRule):
    """One check of the answer."""

    kind: str
    """Which verifier; `millrace score --list` names them."""
    deadline_seconds: float = Field(default=5.0, gt=0, le=600)
    """What takes longer is stopped: our fault, unless the answer alone is why (`code`, `math`, `sql`). Quick verifiers
    ignore it."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the kind needs, for example `schema`."""
