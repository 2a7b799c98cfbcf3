"""After a restore beside a log that is as it was: signals that feedback acknowledged after the backup are in the log alone.

In: the log from the join's position on. Out: their rows in `received_signal`, so that the ledger knows who acknowledged them, and a client that
sends one again is told so. What they said is lost nowhere: the join reads it from the log. Waits for: the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select, update

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, LogRecord, pages_of
from contracts.records import Signal, decode_shape, encode
from contracts.tables import position, received_signal
from contracts.tables.statements import insert_new
from contracts.topics import SIGNALS

ANY_BODY = ""
"""Hash of a body that is not known: the same id is a repeat, whatever it says."""
JOIN = "episodes"


def recover_signals(connection: Connection, log: EventLog, now: float) -> int:
    """Store signals that the log has and nobody received; returns how many. A second call finds none.

    `log`: not one that was lost, see `loss_detection.losses`; `now`: for retractions, whose time is not in the log.

    Raises Unavailable, Damaged: the log cannot be read.
    """
    num_new = 0
    for logged in unread_by_join(connection, log, SIGNALS):
        try:
            record = decode_shape(Signal, logged.value)
        except InvalidRecord:
            continue  # the join makes it a dead letter
        row = {"tenant": record.tenant, "id": record.id, "body_hash": ANY_BODY, "received_at": record.received_at}
        num_new += insert_new(connection, received_signal, {**row, "record": encode(record)})
        if record.retracted:
            mine = (received_signal.c.tenant == record.tenant, received_signal.c.id == record.id)
            stands = received_signal.c.retracted_at.is_(None)
            connection.execute(update(received_signal).where(*mine, stands).values(retracted_at=now))
    return num_new


def join_positions(connection: Connection, topic: str) -> dict[int, int]:
    """Partition to the next offset of the join."""
    mine = (position.c.consumer_group == JOIN, position.c.topic == topic)
    rows = connection.execute(select(position.c.partition, position.c.next_offset).where(*mine))
    return {row.partition: row.next_offset for row in rows}


def unread_by_join(connection: Connection, log: EventLog, topic: str) -> Iterator[LogRecord]:
    """What the join has not read yet."""
    positions = join_positions(connection, topic)
    for partition, end in log.ends(topic).items():
        for records in pages_of(log, topic, partition, positions.get(partition, 0), end):
            yield from records
