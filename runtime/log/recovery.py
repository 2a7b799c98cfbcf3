"""After a restore beside a log that is as it was: signals that feedback acknowledged after the backup are in the log alone.

In: the log from the join's position on. Out: their rows in `received_signal`, so that the ledger knows who acknowledged them, and a client that
sends one again is told so. What they said is lost nowhere: the join reads it from the log. Waits for: the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select, update

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog
from contracts.records import Signal, decode_shape, encode
from contracts.tables import position, received_signal
from contracts.tables.statements import insert_new
from contracts.topics import SIGNALS

ANY_BODY = ""
"""Hash of a body that is not known: the same id is a repeat, whatever it says."""
_JOIN = "episodes"
_PAGE = 1000


def recover_signals(connection: Connection, log: EventLog, now: float) -> int:
    """Store signals that the log has and nobody received; returns how many. A second call finds none.

    `log`: not one that was lost, see `loss_detection.losses`; `now`: for retractions, whose time is not in the log.

    Raises Unavailable, Damaged: the log cannot be read.
    """
    num_new = 0
    for record in _unread(connection, log):
        row = {"tenant": record.tenant, "id": record.id, "body_hash": ANY_BODY, "received_at": record.received_at}
        num_new += insert_new(connection, received_signal, {**row, "record": encode(record)})
        if record.retracted:
            mine = (received_signal.c.tenant == record.tenant, received_signal.c.id == record.id)
            stands = received_signal.c.retracted_at.is_(None)
            connection.execute(update(received_signal).where(*mine, stands).values(retracted_at=now))
    return num_new


def _unread(connection: Connection, log: EventLog) -> Iterator[Signal]:
    columns = (position.c.partition, position.c.next_offset)
    mine = (position.c.consumer_group == _JOIN, position.c.topic == SIGNALS)
    positions = {row.partition: row.next_offset for row in connection.execute(select(*columns).where(*mine))}
    for partition, end in log.ends(SIGNALS).items():
        offset = positions.get(partition, 0)
        while offset < end and (records := log.read(SIGNALS, partition, offset, _PAGE)):
            for record in records:
                try:
                    yield decode_shape(Signal, record.value)
                except InvalidRecord:
                    continue  # the join makes it a dead letter
            offset = records[-1].offset + 1
