"""SQL of keys: which answer each means, and what waits for one.

Rows of `received_signal` are locked before those of `waiting_signal` are taken, and always in the order of their ids: who
takes a signal back, which is feedback, and who sends it on, which is us, wait for each other in one direction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Select, collate, delete, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from contracts.errors import StaleWrite
from contracts.records import Generation, Signal, decode_shape, encode
from contracts.tables import generation, join_key, received_signal, signal, waiting_signal
from contracts.tables.statements import among, delete_free, insert_all_new, update_all
from pipelines.episodes.keys.rules import SESSION, Answer, KeyName
from pipelines.episodes.repository import signal_row
from pipelines.episodes.samples import HeldSignal

_NAME = (join_key.c.tenant, join_key.c.kind, join_key.c.value)
_WAITING_ID = (waiting_signal.c.tenant, waiting_signal.c.id)
_RECEIVED_ID = (received_signal.c.tenant, received_signal.c.id)
_WAITING = (*_WAITING_ID, waiting_signal.c.record)
_IN_ORDER = (waiting_signal.c.received_at, *_WAITING_ID)


class Waiting(NamedTuple):
    """A signal that waits, and the answer that its key means. `received_at`: UTC epoch seconds."""

    tenant: str
    id: str
    record: bytes
    answer: Answer
    name: KeyName
    received_at: float


def answers(connection: Connection, names: Collection[KeyName]) -> dict[KeyName, Answer]:
    """What keys mean so far; locked."""
    statement = select(join_key).where(tuple_(*_NAME).in_(sorted(names))).order_by(*_NAME).with_for_update()
    rows = connection.execute(statement)
    return {KeyName(row.tenant, row.kind, row.value): Answer(row.completion_id, row.choice) for row in rows}


def save_answers(
    connection: Connection, held: Mapping[KeyName, Answer], meant: Mapping[KeyName, Answer], now: float
) -> None:
    """Write what keys mean now.

    Raises:
        StaleWrite: another worker met one of the new keys first.
    """
    changed = {name: answer for name, answer in meant.items() if held.get(name) != answer}
    rows = [name._asdict() | answer._asdict() | {"at": now} for name, answer in changed.items() if name not in held]
    if insert_all_new(connection, join_key, rows) != len(rows):
        raise StaleWrite("another worker wrote rows of join_key first", table="join_key")
    update_all(
        connection,
        join_key,
        [name._asdict() | answer._asdict() | {"at": now} for name, answer in changed.items() if name in held],
    )


def waiting(connection: Connection, meant: Mapping[KeyName, Answer], limit: int) -> list[Waiting]:
    """Signals that wait for one of these keys, the oldest first; what is over the limit is left for `answered`."""
    name = (waiting_signal.c.tenant, waiting_signal.c.kind, waiting_signal.c.value)
    columns = (*_WAITING, *name[1:], waiting_signal.c.received_at)
    statement = select(*columns).where(tuple_(*name).in_(sorted(meant))).order_by(*_IN_ORDER).limit(limit)
    rows = connection.execute(statement)
    names = ((row, KeyName(row.tenant, row.kind, row.value)) for row in rows)
    return [Waiting(row.tenant, row.id, row.record, meant[name], name, row.received_at) for row, name in names]


def answered(
    connection: Connection, partitions: Collection[int], sessions_before: float | None, limit: int
) -> list[Waiting]:
    """Signals that wait although their key means something, the oldest first.

    Args:
        connection: of the transaction that takes them.
        partitions: those that this process reads: of a session only they tell how far it was read.
        sessions_before: UTC epoch seconds; signals about sessions that came later wait on. None: all of them do.
        limit: how many.
    """
    same = [getattr(waiting_signal.c, column.name) == column for column in _NAME]
    own = (generation.c.completion_id == join_key.c.completion_id) & (generation.c.choice == join_key.c.choice)
    columns = (*_WAITING, waiting_signal.c.received_at, *_NAME[1:], join_key.c.completion_id, join_key.c.choice)
    is_due = waiting_signal.c.kind != SESSION
    if sessions_before is not None:
        is_read = generation.c.partition.in_(sorted(partitions)) & (waiting_signal.c.received_at < sessions_before)
        is_due = or_(is_due, is_read)
    statement: Select[Any] = (
        select(*columns).join(join_key, same[0] & same[1] & same[2]).outerjoin(generation, own).where(is_due)
    )
    rows = connection.execute(statement.order_by(*_IN_ORDER).limit(limit))
    return [
        Waiting(
            row.tenant,
            row.id,
            row.record,
            Answer(row.completion_id, row.choice),
            KeyName(row.tenant, row.kind, row.value),
            row.received_at,
        )
        for row in rows
    ]


def take(connection: Connection, found: Sequence[Waiting]) -> list[Signal]:
    """End the wait of those that still do, and tell feedback's row whom each is about; returns what to send.

    What was taken back meanwhile is sent as such.
    """
    if not found:
        return []
    retracted_at = _lock_received(connection, [item[:2] for item in found])
    free = _end_wait(connection, retracted_at)
    taken = []
    for item in found:
        if item[:2] in free:
            aimed = item.answer._asdict() | {"retracted": retracted_at[item[:2]] is not None}
            taken.append(msgspec.structs.replace(decode_shape(Signal, item.record), **aimed))
    rows = [
        {"tenant": said.tenant, "id": said.id, "record": encode(msgspec.structs.replace(said, retracted=False))}
        for said in taken
    ]
    update_all(connection, received_signal, rows)
    return taken


def settle(connection: Connection, received_before: float, retracted_before: float, limit: int) -> None:
    """Name what waited too long for an answer, or was taken back while it did: signals about no completion.

    What was taken back waits a little too: it says that somebody has its answer, whenever the join reads that.
    """
    same = (waiting_signal.c.tenant == received_signal.c.tenant) & (waiting_signal.c.id == received_signal.c.id)
    is_over = or_(
        waiting_signal.c.received_at < received_before,
        received_signal.c.retracted_at.is_not(None) & (waiting_signal.c.received_at < retracted_before),
    )
    statement = select(*_WAITING, received_signal.c.retracted_at).join(received_signal, same).where(is_over)
    # Whoever holds one of them is about to take it, or takes it back.
    locked = statement.order_by(*_RECEIVED_ID).limit(limit).with_for_update(of=received_signal, skip_locked=True)
    over = {(row.tenant, row.id): (row.record, row.retracted_at) for row in connection.execute(locked)}
    insert_all_new(connection, signal, [_settled_row(*over[name]) for name in _end_wait(connection, over)])


def forget(connection: Connection, before: float) -> None:
    """Delete the keys of answers that came before, but for one that another worker has a new answer for just now."""
    delete_free(connection, join_key, join_key.c.at < before)


def records(connection: Connection, wanted: Collection[Answer]) -> dict[Answer, Generation]:
    """The answers that are still held."""
    if not wanted:
        return {}
    ids = among(connection, generation.c.completion_id, {answer.completion_id for answer in wanted})
    rows = connection.execute(select(generation.c.completion_id, generation.c.choice, generation.c.record).where(ids))
    found = {Answer(row.completion_id, row.choice): row.record for row in rows}
    return {answer: decode_shape(Generation, wire) for answer, wire in found.items() if answer in wanted}


def receive(connection: Connection, said: Sequence[Signal]) -> list[Signal]:
    """Count signals of our own among those that were received, as feedback does; returns those whose ids were free."""
    if not said:
        return []
    rows = [
        {
            "tenant": item.tenant,
            "id": item.id,
            "body_hash": hashlib.blake2b(encode(item), digest_size=32).hexdigest(),
            "received_at": item.received_at,
            "record": encode(item),
        }
        for item in sorted(said, key=lambda item: (item.tenant, item.id))
    ]
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(received_signal).values(rows).on_conflict_do_nothing().returning(*_RECEIVED_ID)
    inserted = {(row.tenant, row.id) for row in connection.execute(statement)}
    return [item for item in said if (item.tenant, item.id) in inserted]


def _lock_received(connection: Connection, ids: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float | None]:
    """When each was taken back."""
    statement = select(*_RECEIVED_ID, received_signal.c.retracted_at).where(tuple_(*_RECEIVED_ID).in_(sorted(ids)))
    rows = connection.execute(statement.order_by(*_code_points(connection, _RECEIVED_ID)).with_for_update())
    return {(row.tenant, row.id): row.retracted_at for row in rows}


def _code_points(connection: Connection, columns: Sequence[Column[str]]) -> Sequence[ColumnElement[str]]:
    """The order in which Python sorts text, and feedback locks rows; a server's own may be another."""
    return columns if connection.dialect.name == "sqlite" else [collate(column, "C") for column in columns]


def _end_wait(connection: Connection, ids: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Delete rows; returns those that were there."""
    if not ids:
        return set()
    statement = delete(waiting_signal).where(tuple_(*_WAITING_ID).in_(sorted(ids))).returning(*_WAITING_ID)
    return {(row.tenant, row.id) for row in connection.execute(statement)}


def _settled_row(wire: bytes, retracted_at: float | None) -> dict[str, Any]:
    record = decode_shape(Signal, wire)
    if retracted_at is not None:
        return signal_row(HeldSignal(record, "retracted"))
    return signal_row(HeldSignal(record, "rejected", "never_logged"))
