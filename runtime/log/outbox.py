"""State and messages in one transaction: messages wait in a table and are sent to the log after the commit.

    put(), in the worker's transaction ──▶ table `outbox` ──▶ Relay.flush(), after the commit ──▶ log

A batch costs one insert and one delete, however many messages it has: they share a row, or one row per partition.
A crash between append and delete sends a message twice; consumers keep the first of each (key, revision) or id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, select

from contracts.errors import RecordTooLarge
from contracts.event_log import EventLog, LogRecord, Message
from contracts.faults import FaultPoint, no_fault
from contracts.records import Record, encode
from contracts.tables import outbox
from contracts.tables.statements import among, insert_all
from contracts.topics import route_of_key
from runtime.database import Database
from runtime.log.dead_letters import keep_unsent

_BATCH = 200
_ROW_BYTES = 1_000_000
"""A row is closed once its messages have so many bytes, so that a batch of rows fits in memory."""
_MOST_OF_A_ROW = 1_000_000
_PACKED = ""
"""Topic of a row that holds several messages. Rows of earlier releases hold one, with its own topic."""


def message(topic: str, key: str, record: Record) -> Message:
    """The message for a record."""
    return Message(topic, route_of_key(key), key, encode(record))


def put(connection: Connection, process: str, messages: Sequence[Message], num_partitions: int = 1) -> None:
    """Add messages to the outbox of a process, in the transaction that caused them: one statement, one row per partition.

    `num_partitions`: of the log, if replicas share the outbox by partition. Else one row has them all.
    """
    parts: dict[int, list[Message]] = {}
    for item in messages:
        parts.setdefault(item.route % num_partitions, []).append(item)
    rows = [row for part in parts.values() for row in _rows(process, part)]
    if rows:
        insert_all(connection, outbox, rows)


def messages_of(row: Row[Any]) -> list[Message]:
    """The messages of a row of the outbox, in order."""
    if row.topic != _PACKED:
        return [Message(row.topic, row.route, row.key, row.value)]
    return msgspec.msgpack.decode(row.value, type=list[Message])


def waiting(connection: Connection, topic: str, process: str | None = None) -> Iterator[Message]:
    """Messages for a topic that are on their way to the log; of one process, or of all."""
    statement = select(outbox).where(outbox.c.topic.in_((topic, _PACKED))).order_by(outbox.c.id)
    if process is not None:
        statement = statement.where(outbox.c.process == process)
    for row in connection.execute(statement):
        yield from (item for item in messages_of(row) if item.topic == topic)


def _rows(process: str, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    held: list[Message] = []
    num_bytes = 0
    for item in messages:
        if held and num_bytes + item.num_bytes > _ROW_BYTES:
            yield _row(process, held)
            held, num_bytes = [], 0
        held.append(item)
        num_bytes += item.num_bytes
    yield _row(process, held)


def _row(process: str, held: Sequence[Message]) -> dict[str, Any]:
    value = msgspec.msgpack.encode(held)
    route, num = held[0].route, len(held)
    return {"process": process, "topic": _PACKED, "route": route, "key": "", "value": value, "num_messages": num}


@dataclass(eq=False)
class Relay:
    """Moves the outbox of one process to the log, in order. A message that the log will never take becomes a dead letter.

    `partitions`: those of this replica, so that no other one sends the same messages; None: all. When a partition moves, its new owner
    sends its messages.
    """

    process: str
    database: Database
    log: EventLog
    fault: FaultPoint = no_fault
    partitions: Callable[[], frozenset[int]] | None = None

    def flush(self) -> int:
        """Send all waiting messages; returns how many."""
        count, is_full = 0, True
        while is_full and (rows := self._take()):
            refused = self._append([item for row_id, held in rows for item in _numbered(row_id, held)])
            self.fault("relay: appended, not deleted")
            with self.database.transaction(gives_way=True) as connection:
                for record, error in refused:
                    keep_unsent(connection, self.process, record, error, time.time())
                connection.execute(delete(outbox).where(among(connection, outbox.c.id, [row_id for row_id, _ in rows])))
            self.fault("relay: deleted")
            count += sum(len(held) for _, held in rows)
            is_full = len(rows) == _BATCH
        return count

    def _append(self, batch: Sequence[tuple[int, Message]]) -> list[tuple[LogRecord, RecordTooLarge]]:
        """Append in order; returns messages that the log will never take, so that they do not block the ones behind them."""
        try:
            self.log.append([item for _, item in batch])
        except RecordTooLarge as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return self._append(batch[:half]) + self._append(batch[half:])
            [(number, (topic, route, key, value))] = batch
            return [(LogRecord(topic, route % self.log.num_partitions, -number, key, value, 0.0), error)]
        return []

    def _take(self) -> list[tuple[int, list[Message]]]:
        statement = select(outbox).where(outbox.c.process == self.process).order_by(outbox.c.id).limit(_BATCH)
        if self.partitions is not None:
            statement = statement.where((outbox.c.route % self.log.num_partitions).in_(self.partitions()))
        with self.database.snapshot() as connection:
            return [(row.id, messages_of(row)) for row in connection.execute(statement)]


def _numbered(row_id: int, held: Sequence[Message]) -> list[tuple[int, Message]]:
    """Each message with a number that no other message of any row ever has."""
    return [(row_id * _MOST_OF_A_ROW + place, item) for place, item in enumerate(held)]
