"""Settings of the process `release`: the section [release]."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from contracts.settings import Section


class ReleaseSettings(Section):
    """How a candidate is judged."""

    sentinels: Path | None = None
    """JSON lines of {"messages": [...], "reference": "..."}; without it a candidate needs only finite log-probs of
    nothing, that is, it is accepted unseen."""
    tolerance: float = Field(default=0.03, ge=0)
    """How far below the best accepted version a candidate's accuracy may be."""
    refusals_before_rollback: int = Field(default=3, ge=1)
    """After so many refusals in a row the trainer goes back to the live version."""
    concurrency: int = Field(default=32, ge=1)
    """Sentinel requests in flight."""
    max_tokens: int = Field(default=32, ge=1)
    """Longest sentinel answer, in tokens."""
    patience_seconds: float = Field(default=60.0, gt=0)
    """How long to wait until the engine holds a candidate, and then for its scores."""
