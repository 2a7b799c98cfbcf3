"""What Prometheus is told of arms, train, holds and webhooks: read from the database, so a standby replica says the same.

In: the passing of time. Out: gauges; and rows of webhooks that nobody needs are deleted. Waits for: the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import structlog

from contracts import assignments, holds
from contracts.arms import DRAWN, has_share
from contracts.errors import MillraceError
from contracts.holds import HoldKind
from pipelines.release.train.repository import STOPPED, read_running
from pipelines.release.webhooks.repository import count_waiting, forget_old
from pipelines.release.webhooks.sending import FATES
from runtime import metrics
from runtime.database import Database

_LOOK_SECONDS, _FORGET_SECONDS = 5.0, 600.0
log = structlog.get_logger()


@dataclass(eq=False)
class ReleaseGauges:
    """See the module. `urls`: of the webhooks; `clock`: UTC epoch seconds."""

    database: Database
    policy: str
    urls: Sequence[str]
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._forget_at = 0.0
        for fate in FATES:
            metrics.WEBHOOK_TRIES.labels(fate)

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set."""
        while not stop.is_set():
            try:
                self.look()
            except MillraceError as error:
                log.info("gauges are not renewed", reason=error.message)
            stop.wait(_LOOK_SECONDS)

    def look(self) -> None:
        """Set every gauge. Raises Unavailable."""
        now = self.clock()
        with self.database.snapshot() as connection:
            arms = assignments.read(connection, self.policy)
            held = holds.read(connection, self.policy, now)
            since = holds.held_since(connection, self.policy, now)
            train = read_running(connection, self.policy)
            waiting = count_waiting(connection, self.policy, self.urls, now)
        for name in DRAWN:
            arm = arms.get(name)
            metrics.TRAIN_SHARE.labels(name).set(arm.share if arm is not None and has_share(arm) else 0.0)
        metrics.TRAIN_STOPPED.set(train is not None and train.state == STOPPED)
        for kind in get_args(HoldKind):
            metrics.HOLD_ACTIVE.labels(kind).set(held is not None and held.kind == kind)
        metrics.HOLD_SECONDS.set(0.0 if since is None else max(0.0, now - since))
        metrics.WEBHOOKS_WAITING.set(waiting.num)
        metrics.WEBHOOKS_OLDEST_SECONDS.set(0.0 if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at))
        self._forget(now)

    def _forget(self, now: float) -> None:
        if now < self._forget_at:
            return
        with self.database.transaction() as connection:
            forget_old(connection, self.policy, self.urls, now)
        self._forget_at = now + _FORGET_SECONDS
