"""Section [learning] of a task file: what the trainer learns from an answer besides its reward."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from contracts.tasks.section import Misplaced, TaskSection


class LearningRule(TaskSection):
    """The weights of the streams that a step mixes. Each stream is a mean over its own count; 0: off."""

    rl: float = Field(default=1.0, ge=0)
    """Rewards of sampled answers."""
    ce: float = Field(default=0.0, ge=0)
    """Edits as targets. What a user changed weighs four times as much as what stayed. Answers that users approved are targets too: a
    provider's, and without `rl` all."""
    pair: float = Field(default=0.0, ge=0)
    """Edits as better than the answers that they replace (DPO)."""
    thumb: float = Field(default=0.0, ge=0)
    """What users said of answers that they did not edit, as good or bad (KTO)."""

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if not (self.rl or self.ce or self.pair or self.thumb):
            raise Misplaced("every stream is off, so nothing is learned; give one a weight above 0", "rl")
        return self

    @property
    def reads_edits(self) -> bool:
        """True if the text of an edit is learned."""
        return self.ce > 0 or self.pair > 0
