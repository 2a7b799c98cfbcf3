"""What the sections of all followed servers have in common."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from contracts.assignments import Slot
from runtime.settings import Section
from weights.stores.port import REMOTE


class FollowedSection(Section):
    """One server for each slot."""

    slots: tuple[Slot, ...] = Field(default=("live", "candidate"), min_length=1)
    """The arm that each server serves. Without `candidate` nothing can be gated; without `canary` no version is proven on a few users
    first."""
    urls: tuple[str, ...] = ()
    """Servers that run already on this host, one per slot. They are followed, and neither started nor stopped."""
    region: str | None = None
    """Where these servers are. Default: the region of the home."""
    weights: str | None = Field(default=None, pattern=REMOTE)
    """Where versions are read, if not in the home's store: `http://HOST:PORT/PREFIX` of the region's `millrace cache`."""

    @model_validator(mode="after")
    def _count_urls(self) -> Self:
        if self.urls and len(self.urls) != len(self.slots):
            raise ValueError(
                f"urls names {len(self.urls)} servers for {len(self.slots)} slots: give one URL for each slot"
            )
        return self
