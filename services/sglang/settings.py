"""The SGLang servers of a host: the section [sglang] of millrace.toml."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from contracts.assignments import Slot
from runtime.settings import Section


class SglangSettings(Section):
    """One server for each slot. They are followed, and neither started nor stopped."""

    urls: tuple[str, ...] = Field(min_length=1)
    """Of servers on this host, one per slot: they read the files of versions from its disk."""
    slots: tuple[Slot, ...] = Field(default=("live", "candidate"), min_length=1)
    """The arm that each server serves. Without `candidate` nothing can be gated; without `canary` no version is proven on a few users
    first."""
    name: str = Field(default="sglang", pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Beginning of the names of the replicas; another one for each host."""
    region: str | None = None
    """Where these servers are. Default: the region of the home."""

    weights: str | None = Field(default=None, pattern=r"^(https?|s3)://")
    """Where versions are read, if not in the home's store: `http://HOST:PORT/PREFIX` of the region's `millrace cache`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.urls) != len(self.slots):
            raise ValueError(
                f"urls names {len(self.urls)} servers for {len(self.slots)} slots: give one URL for each slot"
            )
        return self
