"""A clock that tests move, and a handler that sends every record on."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from contracts.event_log import LogRecord, Message
from runtime.batch import Handler


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Echo(Handler[LogRecord]):
    """Sends every record on."""

    name = "echo"
    topics: tuple[str, ...] = ("signals",)
    batch_size = 500

    def prepare(self, items: Sequence[LogRecord]) -> Sequence[LogRecord]:
        return items

    def read(self, record: LogRecord) -> LogRecord:
        return record

    def handle(self, connection: Connection, items: Sequence[LogRecord]) -> list[Message]:
        del connection
        return [Message("outcomes", 0, record.key, record.value) for record in items]
