"""The thread that sends acknowledged signals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contracts.event_log import Message
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.outbox import Relay, put
from services.feedback.repository import PROCESS
from services.feedback.writer import RelayThread
from tests.unit.services.serving import wait_until


class Buggy(LocalLog):
    """A log whose client breaks in a way that nobody expected, once."""

    is_broken = True

    def append(self, messages: Sequence[Message]) -> None:
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError("a mistake in the client")
        super().append(messages)


def test_an_unexpected_error_does_not_end_the_relaying(database: Database, tmp_path: Path) -> None:
    with database.transaction() as connection:
        put(connection, PROCESS, [Message("signals", 0, "k", b"a")])
    log = Buggy(tmp_path / "log")
    thread = RelayThread(database, Relay(PROCESS, database, log), retry_seconds=0.01)
    thread.start()
    wait_until(lambda: bool(log.read("signals", 0, 0, 1)))
    thread.stop()
    assert not log.is_broken
    log.close()
