"""The section [gpu] of millrace.toml."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from runtime.settings import Section


class GpuSettings(Section):
    """The cards of a home."""

    pool: tuple[int, ...] = ()
    """Cards that `millrace up` moves between engine replicas and the trainer, by number; with `device = "cpu"`, places that stand for
    cards. Empty: none is moved."""
    floor: int = Field(default=1, ge=1)
    """Engine replicas that users keep, whatever the trainer could do with their cards."""
    requests_per_card: int = Field(default=32, ge=1)
    """Requests in flight that one replica carries within the latency that users shall see."""

    @model_validator(mode="after")
    def _check_pool(self) -> Self:
        if len(set(self.pool)) < len(self.pool) or min(self.pool, default=0) < 0:
            raise ValueError(f"pool names each card once, by its number from 0: {', '.join(map(str, self.pool))}")
        if self.pool and self.floor >= len(self.pool):
            raise ValueError(
                f"floor = {self.floor} leaves nothing of a pool of {len(self.pool)} cards to move: at most {len(self.pool) - 1}, or leave pool out"
            )
        return self
