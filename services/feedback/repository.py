"""The tables of feedback: what was received, under which id, and how often it was refused or repeated."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, update

from contracts.database import insert_new
from contracts.outbox import message, put
from contracts.records import Signal, decode, encode
from contracts.tables import received_signal, signal, signal_count
from contracts.topics import SIGNALS
from services.feedback.requests import Received

PROCESS = "feedback"

Count = Literal["duplicate", "conflict", "rejected"]
Fate = Literal["accepted", "duplicate", "conflict"]


class Stored(NamedTuple):
    """A signal as it was first received. `retracted_at`: UTC epoch seconds, None if it stands."""

    signal: Signal
    retracted_at: float | None


class Joined(NamedTuple):
    """What became of a signal, as the join wrote it."""

    state: str
    reason: str
    revision: int | None


def add(connection: Connection, received: Received) -> tuple[Fate, float]:
    """Store a signal and its message; its fate, and when its id was first received.

    An id is taken once and for all within a tenant; the same id with other content is a conflict.
    """
    record = received.signal
    row = {
        "id": record.id,
        "tenant": record.tenant,
        "body_hash": received.body_hash,
        "received_at": record.received_at,
        "record": encode(record),
    }
    if insert_new(connection, received_signal, row):
        put(connection, PROCESS, [message(SIGNALS, record.key, record)])
        return "accepted", record.received_at
    statement = select(received_signal.c.body_hash, received_signal.c.received_at)
    first = connection.execute(statement.where(*_is(record.tenant, record.id))).one()
    fate: Literal["duplicate", "conflict"] = "duplicate" if first.body_hash == received.body_hash else "conflict"
    count(connection, fate)
    return fate, first.received_at


def count(connection: Connection, state: Count, num: int = 1) -> None:
    """Add to the count of items that were received and not stored."""
    insert_new(connection, signal_count, {"state": state, "count": 0})
    connection.execute(
        update(signal_count).where(signal_count.c.state == state).values(count=signal_count.c.count + num)
    )


def find(connection: Connection, tenant: str, signal_id: str) -> Stored | None:
    """A tenant's signal; other tenants' do not exist for it."""
    statement = select(received_signal).where(*_is(tenant, signal_id))
    row = connection.execute(statement).one_or_none()
    return None if row is None else Stored(decode(Signal, row.record), row.retracted_at)


def find_joined(connection: Connection, record: Signal) -> Joined | None:
    """What the join made of it; None while it has not seen it."""
    statement = select(signal.c.state, signal.c.reason, signal.c.revision).where(
        signal.c.completion_id == record.completion_id, signal.c.tenant == record.tenant, signal.c.id == record.id
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else Joined(*row)


def retract(connection: Connection, retraction: Signal, now: float) -> None:
    """Note that a signal was taken back, and send it again as such."""
    statement = update(received_signal).where(*_is(retraction.tenant, retraction.id))
    connection.execute(statement.values(retracted_at=now))
    put(connection, PROCESS, [message(SIGNALS, retraction.key, retraction)])


def _is(tenant: str, signal_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return received_signal.c.tenant == tenant, received_signal.c.id == signal_id
