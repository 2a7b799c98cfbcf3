"""State and messages in one transaction: messages wait in a table and are sent to the log after the commit.

    put(), in the worker's transaction ──▶ table `outbox` ──▶ Relay.flush(), after the commit ──▶ log

A crash between append and delete sends a message twice; consumers keep the first of each (key, revision) or id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete, select

from contracts.errors import RecordTooLarge
from contracts.event_log import EventLog, LogRecord, Message
from contracts.faults import FaultPoint, no_fault
from contracts.records import Record, encode
from contracts.tables import outbox
from contracts.tables.statements import among, insert_all
from contracts.topics import route_of_key
from runtime.database import Database
from runtime.log.dead_letters import keep_unsent

_BATCH = 1000


def message(topic: str, key: str, record: Record) -> Message:
    """The message for a record."""
    return Message(topic, route_of_key(key), key, encode(record))


def put(connection: Connection, process: str, messages: Sequence[Message]) -> None:
    """Add messages to the outbox of a process, in the transaction that caused them."""
    if messages:
        insert_all(connection, outbox, [{"process": process, **item._asdict()} for item in messages])


class Relay:
    """Moves the outbox of one process to the log, in order. A message that the log will never take becomes a dead letter.

    Args:
        process: owner of the outbox.
        database: has the outbox.
        log: receives the messages.
        fault: fault points for crash tests.
        partitions: the partitions of this replica, so that no other replica sends the same messages. Default: all. When a
            partition moves, its new owner sends its messages.
    """

    def __init__(
        self,
        process: str,
        database: Database,
        log: EventLog,
        fault: FaultPoint = no_fault,
        partitions: Callable[[], frozenset[int]] | None = None,
    ) -> None:
        self._process = process
        self._database = database
        self._log = log
        self._fault = fault
        self._partitions = partitions

    def flush(self) -> int:
        """Send all waiting messages; returns how many."""
        count = 0
        while batch := self._take():
            refused = self._append(batch)
            self._fault("relay: appended, not deleted")
            with self._database.transaction() as connection:
                for record, error in refused:
                    keep_unsent(connection, self._process, record, error, time.time())
                ids = among(connection, outbox.c.id, [row_id for row_id, _ in batch])
                connection.execute(delete(outbox).where(ids))
            self._fault("relay: deleted")
            count += len(batch)
        return count

    def _append(self, batch: Sequence[tuple[int, Message]]) -> list[tuple[LogRecord, RecordTooLarge]]:
        """Append in order; returns messages that the log will never take, so that they do not block the ones behind them."""
        try:
            self._log.append([item for _, item in batch])
        except RecordTooLarge as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return self._append(batch[:half]) + self._append(batch[half:])
            [(row_id, (topic, route, key, value))] = batch
            return [(LogRecord(topic, route % self._log.num_partitions, -row_id, key, value, 0.0), error)]
        return []

    def _take(self) -> list[tuple[int, Message]]:
        statement = select(outbox).where(outbox.c.process == self._process).order_by(outbox.c.id).limit(_BATCH)
        if self._partitions is not None:
            statement = statement.where((outbox.c.route % self._log.num_partitions).in_(self._partitions()))
        with self._database.snapshot() as connection:
            return [
                (row.id, Message(row.topic, row.route, row.key, row.value)) for row in connection.execute(statement)
            ]
