"""Retry start-up work while a server is away, with the same log lines and metrics as the worker loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import structlog

from contracts.errors import Unavailable
from pipelines.training.repository import CONSUMER_GROUP
from runtime.metrics import WAITS
from runtime.operations import step_done
from runtime.worker import RETRY_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

log = structlog.get_logger()

Result = TypeVar("Result")


def retried(stop: threading.Event, act: Callable[[], Result], *, retry_seconds: float = RETRY_SECONDS) -> Result | None:
    """The result of `act`, retried while it raises Unavailable; None if `stop` is set first."""
    while True:
        try:
            return act()
        except Unavailable as error:
            step_done()
            WAITS.labels(CONSUMER_GROUP).inc()
            log.warning("waiting", process=CONSUMER_GROUP, reason=error.message)
        if stop.wait(retry_seconds):
            return None
