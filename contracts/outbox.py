"""State and message in one transaction: messages wait in a table and are relayed to the log after the commit.

A crash between append and delete appends a message twice; consumers keep the first of each (key, revision) or id.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from contracts.database import Database
from contracts.event_log import EventLog, Message
from contracts.faults import FaultPoint, no_fault
from contracts.records import Record, encode
from contracts.tables import outbox
from contracts.topics import route_of_key

_BATCH = 500


def message(topic: str, key: str, record: Record) -> Message:
    """A record, ready for the log."""
    return Message(topic, route_of_key(key), key, encode(record))


def put(connection: Connection, process: str, messages: Sequence[Message]) -> None:
    """Add messages to the outbox of a process, inside the transaction of their cause."""
    if messages:
        connection.execute(insert(outbox), [{"process": process, **item._asdict()} for item in messages])


class Relay:
    """Moves one process's outbox to the log, in order."""

    def __init__(self, process: str, database: Database, log: EventLog, fault: FaultPoint = no_fault) -> None:
        self._process = process
        self._database = database
        self._log = log
        self._fault = fault

    def flush(self) -> int:
        """Relay everything that waits; returns how many."""
        count = 0
        while batch := self._take():
            self._log.append([item for _, item in batch])
            self._fault("relay: appended, not deleted")
            with self._database.transaction() as connection:
                connection.execute(delete(outbox).where(outbox.c.id.in_([row_id for row_id, _ in batch])))
            self._fault("relay: deleted")
            count += len(batch)
        return count

    def _take(self) -> list[tuple[int, Message]]:
        statement = select(outbox).where(outbox.c.process == self._process).order_by(outbox.c.id).limit(_BATCH)
        with self._database.snapshot() as connection:
            return [
                (row.id, Message(row.topic, row.route, row.key, row.value)) for row in connection.execute(statement)
            ]
