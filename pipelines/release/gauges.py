"""What Prometheus is told of arms, train, holds and webhooks: read from the database, so a standby replica says the same.

In: the passing of time. Out: gauges; and rows of webhooks that nobody needs are deleted. Waits for: the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import get_args

import structlog

from contracts import assignments, holds
from contracts.arms import DRAWN
from contracts.errors import MillraceError
from contracts.holds import HoldKind
from pipelines.release.train.repository import STOPPED, read_running
from pipelines.release.webhooks.repository import count_waiting, forget_old
from pipelines.release.webhooks.sending import FATES
from runtime.database import Database
from runtime.metrics import (
    HOLD_ACTIVE,
    HOLD_SECONDS,
    TRAIN_SHARE,
    TRAIN_STOPPED,
    WEBHOOK_TRIES,
    WEBHOOKS_OLDEST_SECONDS,
    WEBHOOKS_WAITING,
)

_LOOK_SECONDS, _FORGET_SECONDS = 5.0, 600.0
log = structlog.get_logger()


class ReleaseGauges:
    """See the module. `urls`: of the webhooks; `clock`: UTC epoch seconds."""

    def __init__(
        self, database: Database, policy: str, urls: Sequence[str], clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._policy = policy
        self._urls = urls
        self._clock = clock
        self._forget_at = 0.0
        for fate in FATES:
            WEBHOOK_TRIES.labels(fate)

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
        now = self._clock()
        with self._database.snapshot() as connection:
            arms = assignments.read(connection, self._policy)
            held = holds.read(connection, self._policy, now)
            since = holds.held_since(connection, self._policy, now)
            train = read_running(connection, self._policy)
            waiting = count_waiting(connection, self._policy, self._urls, now)
        for name in DRAWN:
            arm = arms.get(name)
            TRAIN_SHARE.labels(name).set(0.0 if arm is None or arm.version is None else arm.share)
        TRAIN_STOPPED.set(train is not None and train.state == STOPPED)
        for kind in get_args(HoldKind):
            HOLD_ACTIVE.labels(kind).set(held is not None and held.kind == kind)
        HOLD_SECONDS.set(0.0 if since is None else max(0.0, now - since))
        WEBHOOKS_WAITING.set(waiting.num)
        WEBHOOKS_OLDEST_SECONDS.set(0.0 if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at))
        self._forget(now)

    def _forget(self, now: float) -> None:
        if now < self._forget_at:
            return
        with self._database.transaction() as connection:
            forget_old(connection, self._policy, self._urls, now)
        self._forget_at = now + _FORGET_SECONDS
