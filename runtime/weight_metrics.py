"""What a process counts of its weight store; `weights` itself knows no metrics."""

from __future__ import annotations

from runtime.metrics import WEIGHT_JUNK, WEIGHT_SNAPSHOT_EXPIRES


class WeightStoreMetrics:
    """What a process sees of its weight store."""

    def count_junk(self, code: str) -> None:
        """An object could not be used; `code` of what is wrong with it."""
        WEIGHT_JUNK.labels(code).inc()

    def note_snapshot(self, expires_at: float) -> None:
        """The list of versions at hand is good until then, UTC epoch seconds."""
        WEIGHT_SNAPSHOT_EXPIRES.set(expires_at)
