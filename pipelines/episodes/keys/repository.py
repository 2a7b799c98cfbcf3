"""SQL of keys: which answer each key means, and which signals wait for an answer.

Rows of `received_signal` are locked before those of `waiting_signal` are deleted, and always in the order of their ids: feedback,
which takes signals back, and this process, which sends them on, cannot deadlock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Row, and_, collate, delete, func, or_, select, tuple_, update

from contracts.errors import StaleWrite
from contracts.ids import parse_sample_key
from contracts.records import Generation, Signal, decode_shape, encode
from contracts.tables import generation, join_key, received_signal, session_call, signal, waiting_signal
from contracts.tables.statements import among, among_rows, delete_free, insert_all_new, keys_of_new, update_all
from contracts.turns import SessionShare
from pipelines.episodes.join import is_cut
from pipelines.episodes.keys.rules import SESSION, AnswerRef, KeyName, SessionCall, session_of
from pipelines.episodes.repository import signal_row
from pipelines.episodes.samples import HeldSignal

_NAME = (join_key.c.tenant, join_key.c.kind, join_key.c.value)
_WAITING_ID = (waiting_signal.c.tenant, waiting_signal.c.id)
_SESSION = (session_call.c.tenant, session_call.c.session_id)
_RECEIVED_ID = (received_signal.c.tenant, received_signal.c.id)
_WAITING = (*_WAITING_ID, waiting_signal.c.record)
_IN_ORDER = (waiting_signal.c.received_at, *_WAITING_ID)

MOST_CALLS = 2_000
"""Of a session: what is said of it reaches the newest ones."""

WaitingId = tuple[str, str]
FIRST: WaitingId = ("", "")


class WaitingSignal(NamedTuple):
    """A signal that waits for an answer, and the answer that its key means. `received_at`: UTC epoch seconds."""

    tenant: str
    id: str
    record: bytes
    answer: AnswerRef
    name: KeyName
    received_at: float
    share: SessionShare | None = None
    """Of the answer, in a session that the signal judges as a whole."""


def answers(connection: Connection, names: Collection[KeyName]) -> dict[KeyName, AnswerRef]:
    """The answers of keys so far; locks their rows."""
    statement = select(join_key).where(among_rows(connection, _NAME, names)).order_by(*_NAME).with_for_update()
    rows = connection.execute(statement)
    return {KeyName(row.tenant, row.kind, row.value): AnswerRef(row.completion_id, row.choice) for row in rows}


def save_answers(
    connection: Connection, held: Mapping[KeyName, AnswerRef], meant: Mapping[KeyName, AnswerRef], now: float
) -> None:
    """Store the answers of keys, where they changed. Raises StaleWrite: another worker stored one of the new keys first."""
    changed = {name: answer for name, answer in meant.items() if held.get(name) != answer}
    rows = {name: name._asdict() | answer._asdict() | {"at": now} for name, answer in changed.items()}
    new = [row for name, row in rows.items() if name not in held]
    if insert_all_new(connection, join_key, new) != len(new):
        raise StaleWrite("another worker wrote rows of join_key first", table="join_key")
    update_all(connection, join_key, [row for name, row in rows.items() if name in held])


def waiting(connection: Connection, meant: Mapping[KeyName, AnswerRef], limit: int) -> list[WaitingSignal]:
    """Signals that wait for one of these keys, the oldest first; those beyond the limit are left for later looks."""
    name = (waiting_signal.c.tenant, waiting_signal.c.kind, waiting_signal.c.value)
    statement = select(waiting_signal).where(among_rows(connection, name, meant)).order_by(*_IN_ORDER).limit(limit)
    rows = connection.execute(statement)
    return [_waiting(row, meant[KeyName(row.tenant, row.kind, row.value)]) for row in rows]


def page(connection: Connection, after: WaitingId, size: int) -> list[WaitingId]:
    """The next waiting signals in the order of their ids."""
    statement = select(*_WAITING_ID).where(tuple_(*_WAITING_ID) > tuple_(*after)).order_by(*_WAITING_ID).limit(size)
    return [(row.tenant, row.id) for row in connection.execute(statement)]


def answered(
    connection: Connection,
    partitions: Collection[int],
    sessions: tuple[float, float],
    limit: int,
    among_these: Collection[WaitingId] | None = None,
) -> list[WaitingSignal]:
    """Signals that wait although their key has an answer, the oldest first.

    `partitions`: those that this process has read to the end; `sessions`: two UTC epoch seconds, between which signals about sessions came.
    Others about sessions keep waiting. `among_these`: a page of signals about any key; None: only those about sessions.
    """
    since, before = sessions
    came, is_of_session = waiting_signal.c.received_at, waiting_signal.c.kind == SESSION
    is_between = (came >= since) & (came < before)
    # Not only in the condition below: the times let an index find the few rows among many that wait.
    recent = is_of_session & is_between
    which = recent if among_these is None else among_rows(connection, _WAITING_ID, among_these)
    same = [getattr(waiting_signal.c, column.name) == column for column in _NAME]
    own = (generation.c.completion_id == join_key.c.completion_id) & (generation.c.choice == join_key.c.choice)
    is_read = generation.c.partition.in_(sorted(partitions)) & is_between
    statement = select(waiting_signal, join_key.c.completion_id, join_key.c.choice).join(join_key, and_(*same))
    wanted = statement.outerjoin(generation, own).where(which, or_(~is_of_session, is_read))
    rows = connection.execute(wanted.order_by(*_IN_ORDER).limit(limit))
    return [_waiting(row, AnswerRef(row.completion_id, row.choice)) for row in rows]


def take(connection: Connection, found: Sequence[WaitingSignal]) -> list[Signal]:
    """Take the signals that still wait, and complete their rows of `received_signal`; returns the signals to send.

    A signal that was retracted meanwhile is sent as retracted.
    """
    if not found:
        return []
    retracted_at = _lock_received(connection, [item[:2] for item in found])
    free = _end_wait(connection, retracted_at)
    taken, rows = [], []
    for item in found:
        if item[:2] in free:
            aimed = replace(
                decode_shape(Signal, item.record), **item.answer._asdict(), retracted=False, share=item.share
            )
            rows.append({"tenant": item.tenant, "id": item.id, "record": encode(aimed)})
            taken.append(replace(aimed, retracted=retracted_at[item[:2]] is not None))
    update_all(connection, received_signal, rows)
    return taken


def settle(
    connection: Connection, among_these: Collection[WaitingId], received_before: float, retracted_before: float
) -> None:
    """Reject those that waited too long for an answer, and settle those that were retracted while they waited.

    Retracted ones wait a little too: they show that the client has the answer, which the join may read later.
    """
    same = (waiting_signal.c.tenant == received_signal.c.tenant) & (waiting_signal.c.id == received_signal.c.id)
    is_over = or_(
        waiting_signal.c.received_at < received_before,
        received_signal.c.retracted_at.is_not(None) & (waiting_signal.c.received_at < retracted_before),
    )
    which = among_rows(connection, _WAITING_ID, among_these)
    statement = select(*_WAITING, received_signal.c.retracted_at).join(received_signal, same).where(which, is_over)
    # Locked rows are skipped: another worker is about to take the signal, or feedback takes it back.
    locked = statement.order_by(*_RECEIVED_ID).with_for_update(of=received_signal, skip_locked=True)
    over = {(row.tenant, row.id): (row.record, row.retracted_at) for row in connection.execute(locked)}
    insert_all_new(connection, signal, [_settled_row(*over[name]) for name in _end_wait(connection, over)])


def forget(connection: Connection, before: float, limit: int) -> bool:
    """Delete keys and calls of sessions older than `before`, without those that another worker has locked; True if some are left."""
    tables = ((join_key, join_key.c.at), (session_call, session_call.c.at))
    return limit in [delete_free(connection, table, at < before, limit=limit) for table, at in tables]


def save_calls(connection: Connection, arrived: Iterable[Generation]) -> None:
    """Store the calls of sessions among answers that were just joined."""
    rows = [_call_row(record, name) for record in arrived if (name := session_of(record)) is not None]
    insert_all_new(connection, session_call, rows)


def calls_of(connection: Connection, names: Collection[KeyName]) -> dict[KeyName, list[SessionCall]]:
    """The newest calls of each session."""
    if not names:
        return {}
    columns = session_call.c
    newest = func.row_number().over(
        partition_by=_SESSION, order_by=[columns.completion_id.desc(), columns.choice.desc()]
    )
    ranked = select(session_call, newest.label("place")).where(_about(connection, names)).subquery()
    found: dict[KeyName, list[SessionCall]] = {}
    for row in connection.execute(select(ranked).where(ranked.c.place <= MOST_CALLS)):
        parent = None if row.parent_id is None else AnswerRef(row.parent_id, row.parent_choice)
        call = SessionCall(AnswerRef(row.completion_id, row.choice), parent, row.task, row.at, row.is_cut)
        found.setdefault(KeyName(row.tenant, SESSION, row.session_id), []).append(call)
    return found


def num_calls(connection: Connection, names: Collection[KeyName]) -> Mapping[KeyName, int]:
    """How many calls `calls_of` gives for each session."""
    return {name: min(num, MOST_CALLS) for name, num in _of_each(connection, names, func.count()).items()}


def last_times(connection: Connection, names: Collection[KeyName]) -> Mapping[KeyName, float]:
    """When the newest answer of each session ended, UTC epoch seconds."""
    return _of_each(connection, names, func.max(session_call.c.at))


def _of_each(connection: Connection, names: Collection[KeyName], what: ColumnElement[Any]) -> dict[KeyName, Any]:
    if not names:
        return {}
    statement = select(*_SESSION, what.label("found")).where(_about(connection, names)).group_by(*_SESSION)
    return {KeyName(row.tenant, SESSION, row.session_id): row.found for row in connection.execute(statement)}


def _about(connection: Connection, names: Collection[KeyName]) -> ColumnElement[bool]:
    return among_rows(connection, _SESSION, {(name.tenant, name.value) for name in names})


def retract(connection: Connection, tenant: str, ids: Collection[str], now: float) -> list[Signal]:
    """Retract signals that this process made; returns those that stood until now, as retracted."""
    table = received_signal.c
    stands = update(received_signal).where(
        table.tenant == tenant, table.id.in_(sorted(ids)), table.retracted_at.is_(None)
    )
    wires = connection.execute(stands.values(retracted_at=now).returning(table.record)).scalars().all()
    return [replace(decode_shape(Signal, wire), retracted=True) for wire in wires]


def records(connection: Connection, wanted: Collection[AnswerRef]) -> dict[AnswerRef, Generation]:
    """The generations of these answers that are still stored."""
    if not wanted:
        return {}
    ids = among(connection, generation.c.completion_id, {answer.completion_id for answer in wanted})
    rows = connection.execute(select(generation.c.completion_id, generation.c.choice, generation.c.record).where(ids))
    found = {AnswerRef(row.completion_id, row.choice): row.record for row in rows}
    return {answer: decode_shape(Generation, wire) for answer, wire in found.items() if answer in wanted}


def receive(connection: Connection, said: Sequence[Signal]) -> list[Signal]:
    """Store signals of this process as received, as feedback does; returns those whose ids were not taken."""
    rows = []
    for item in said:
        record = encode(item)
        head = {"tenant": item.tenant, "id": item.id, "received_at": item.received_at, "record": record}
        rows.append(head | {"body_hash": hashlib.blake2b(record, digest_size=32).hexdigest()})
    inserted = keys_of_new(connection, received_signal, rows)
    return [item for item in said if (item.tenant, item.id) in inserted]


def _waiting(row: Row[Any], answer: AnswerRef) -> WaitingSignal:
    name = KeyName(row.tenant, row.kind, row.value)
    return WaitingSignal(row.tenant, row.id, row.record, answer, name, row.received_at)


def _lock_received(connection: Connection, ids: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float | None]:
    """Lock rows of `received_signal`; returns when each signal was retracted."""
    statement = select(*_RECEIVED_ID, received_signal.c.retracted_at).where(among_rows(connection, _RECEIVED_ID, ids))
    rows = connection.execute(statement.order_by(*_code_points(connection, _RECEIVED_ID)).with_for_update())
    return {(row.tenant, row.id): row.retracted_at for row in rows}


def _code_points(connection: Connection, columns: Sequence[Column[str]]) -> Sequence[ColumnElement[str]]:
    """Columns in the sort order of Python, in which feedback locks rows; a database server may sort differently."""
    return columns if connection.dialect.name == "sqlite" else [collate(column, "C") for column in columns]


def _end_wait(connection: Connection, ids: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Delete rows of `waiting_signal`; returns those that existed."""
    if not ids:
        return set()
    statement = delete(waiting_signal).where(among_rows(connection, _WAITING_ID, ids)).returning(*_WAITING_ID)
    return {(row.tenant, row.id) for row in connection.execute(statement)}


def _call_row(record: Generation, name: KeyName) -> dict[str, Any]:
    parent = record.turn.parent if record.turn else None
    parent_id, parent_choice = parse_sample_key(parent) if parent else (None, None)
    key = {
        "tenant": name.tenant,
        "session_id": name.value,
        "completion_id": record.completion_id,
        "choice": record.choice,
    }
    went_on = {"parent_id": parent_id, "parent_choice": parent_choice}
    return {**key, **went_on, "task": record.task, "is_cut": is_cut(record), "at": record.finished_at}


def _settled_row(wire: bytes, retracted_at: float | None) -> dict[str, Any]:
    why = ("rejected", "never_logged") if retracted_at is None else ("retracted",)
    return signal_row(HeldSignal(decode_shape(Signal, wire), *why))
