"""Metrics of a weight store; the package `weights` itself imports no metrics."""

from __future__ import annotations

from runtime.metrics import WEIGHT_JUNK, WEIGHT_SNAPSHOT_EXPIRES


class WeightStoreMetrics:
    """Counts what a process meets in its weight store."""

    def count_junk(self, code: str) -> None:
        """Count an object that could not be used; `code` names the reason."""
        WEIGHT_JUNK.labels(code).inc()

    def note_snapshot(self, expires_at: float) -> None:
        """Note until when the current list of versions is valid, UTC epoch seconds."""
        WEIGHT_SNAPSHOT_EXPIRES.set(expires_at)
