"""Settings of the process `release`: the section [release]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from runtime.settings import Section

_RETIRED = frozenset(("tolerance", "max_tokens"))
"""Settings of older releases, which are ignored: the sign test replaced `tolerance`, and tasks set `max_tokens`."""


class ReleaseSettings(Section):
    """How a candidate is judged."""

    sentinels: Path | None = None
    """JSON lines of {"messages": [...], "reference": ..., "task": ...}. A task without sentinels is ungated, and so is a home
    without this file."""
    refusals_before_rollback: int = Field(default=3, ge=1)
    """After this many refusals in a row, the trainer goes back to the live version."""
    concurrency: int = Field(default=32, ge=1)
    """Sentinel requests in flight."""
    patience_seconds: float = Field(default=60.0, gt=0)
    """How long to wait until the engine holds a version and has answered. After that there is no verdict, and release tries again."""

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, given: Any) -> Any:
        return (
            {name: value for name, value in given.items() if name not in _RETIRED} if isinstance(given, dict) else given
        )
