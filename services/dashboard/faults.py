"""Faults of the dashboard itself: a part that cannot be shown is counted and logged, and the rest of the page is shown."""

from __future__ import annotations

import structlog

from runtime.log.dead_letters import traceback_of
from runtime.metrics import DASHBOARD_FAULTS

log = structlog.get_logger()


def note_fault(what: str, error: Exception) -> None:
    """Count a fault under `what` and log its traceback."""
    DASHBOARD_FAULTS.labels(what).inc()
    log.error("cannot be shown", what=what, traceback=traceback_of(error))
