"""A thread for each URL: it queues what happened, and sends what waits.

In: moves of arms, holds, and stops and ends of trains, as the database has them. Out: signed POSTs (`messages.py`). Waits: for the URL's answers;
nothing waits for this thread. A message is sent until it is accepted, after growing pauses, for 24 hours: at least once, in any order,
with the same id each time. After a 410 the URL is told nothing more, until `millrace policy webhook-test` is accepted.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import httpx
import structlog

from contracts.errors import MillraceError
from pipelines.release.webhooks import repository
from pipelines.release.webhooks.messages import WebhookEvent, read_secret
from pipelines.release.webhooks.repository import GIVEN_UP_SECONDS, Delivery
from pipelines.release.webhooks.sending import SEND_SECONDS, SignedUrl, WebhookTry, make_client, send
from pipelines.release.webhooks.settings import WebhookSettings
from runtime.database import Database
from runtime.metrics import WEBHOOK_TRIES
from runtime.settings import Settings

_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 1.0, 30.0
_CLAIM_SECONDS = 6 * SEND_SECONDS
"""A message that a process took and never reported on is due again after so long: the process was killed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3600.0
_SPREAD = 0.2
_AT_ONCE = 20

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class WebhookTeller:
    """See the module. `clock`: UTC epoch seconds."""

    database: Database
    _: KW_ONLY
    policy: str
    run: str
    to: SignedUrl
    client: httpx.Client
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._trains: set[str] = set()

    def tell(self, stop: threading.Event) -> None:
        """Tell until `stop` is set."""
        pause = _LOOK_SECONDS
        while not stop.is_set():
            try:
                self.look(stop)
                pause = _LOOK_SECONDS
            except Exception as error:
                expected = isinstance(error, MillraceError)
                log.warning("webhooks wait", reason=str(error), exc_info=not expected)
                pause = min(_LONGEST_LOOK_SECONDS, 2.0 * pause)
            stop.wait(pause)
        self.client.close()

    def look(self, stop: threading.Event) -> int:
        """Queue what is new, and send what is due; returns how many messages were sent.

        Raises MillraceError: the database is away; nothing is lost.
        """
        if not self._queue():
            return 0
        with self.database.snapshot() as connection:
            due = repository.find_due(connection, self.policy, self.to.url, self.clock(), _AT_ONCE)
        num_sent = 0
        for held in due:
            if stop.is_set() or not self._claim(held):
                continue
            tried = send(self.client, self.to, held.event, self.clock())
            num_sent += 1
            if self._settle(held, tried) == "gone":
                break
        return num_sent

    def _queue(self) -> bool:
        """Queue what is new. False: this URL is told nothing."""
        now = self.clock()
        with self.database.snapshot() as connection:
            known = repository.receiver(connection, self.policy, self.to.url)
            epochs = repository.newest_epochs(connection, self.policy)
            since = now if known is None else max(known.since, now - GIVEN_UP_SECONDS)
            of_trains = repository.find_train_events(connection, self.policy, self.run, since)
            new: list[WebhookEvent] = [event for event in of_trains if event.id not in self._trains]
            for arm, epoch in epochs.items():
                seen = self._seen.get(arm, 0)
                if epoch > seen and known is not None:
                    new += (
                        repository.find_moves(connection, self.policy, arm, seen, since)
                        if arm
                        else repository.find_holds(connection, self.policy, self.run, seen, since)
                    )
        if known is not None and known.problem:
            return False
        if known is None or new:
            with self.database.transaction() as connection:
                repository.know_receiver(connection, self.policy, self.to.url, now)
                repository.add(connection, self.policy, self.to.url, new, now)
        if known is not None:  # else another replica knew it first, since when is read again
            self._seen = epochs
        self._trains = {event.id for event in of_trains}
        return True

    def _claim(self, held: Delivery) -> bool:
        with self.database.transaction() as connection:
            return repository.claim(connection, held, self.clock() + _CLAIM_SECONDS)

    def _settle(self, held: Delivery, tried: WebhookTry) -> str:
        WEBHOOK_TRIES.labels(tried.fate).inc()
        now = self.clock()
        with self.database.transaction() as connection:
            if tried.fate == "accepted":
                repository.note_delivered(connection, held, now)
            else:
                pause = max(tried.wait_seconds, pause_before(held.num_tries + 2))
                repository.note_failed(connection, held, tried.says, now + pause)
            if tried.fate == "gone":
                repository.set_receiver_problem(connection, self.policy, self.to.url, tried.says)
        if tried.fate != "accepted":
            log.warning("webhook not accepted", id=held.event.id, times=held.num_tries + 1, reason=tried.says)
        return tried.fate


def pause_before(nth_try: int) -> float:
    """Seconds before a try: 5 before the second, then three times as long each time, at most an hour; varied by a fifth."""
    spread = random.uniform(1.0 - _SPREAD, 1.0 + _SPREAD)  # noqa: S311 so that a receiver that returns is not met by all at once
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 3.0 ** (nth_try - 2)) * spread


def tellers(
    settings: Settings, webhooks: WebhookSettings, clock: Callable[[], float]
) -> Iterator[Callable[[threading.Event], None]]:
    """A function for each URL, which tells it until an event is set. Without URLs no secret is made.

    Raises InvalidSettings: there is no usable secret.
    """
    secret = read_secret(settings.home) if webhooks.urls else b""
    for url in webhooks.urls:
        yield WebhookTeller(
            settings.database(),
            policy=settings.policy,
            run=settings.run,
            to=webhooks.signed(url, secret),
            client=make_client(),
            clock=clock,
        ).tell
