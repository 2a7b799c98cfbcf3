"""The tables of feedback: received signals by id, counts of refused and repeated ones, and signals that wait for a completion.

A signal with a join key is sent under the completion that has this key. While no completion has it, the signal waits in
`waiting_signal`; episodes sends it when the completion arrives, and completes its row in `received_signal` too.

Rows are locked in the order of their keys. The counts, which every replica changes, come last, so they are locked only for
the time of a commit. Transactions of replicas therefore wait for each other in one direction and cannot deadlock.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, func, select, update

from contracts.errors import InvalidSettings, NoSuchChoice
from contracts.records import Signal, decode_shape, encode
from contracts.tables import (
    generation,
    home_secret,
    join_key,
    received_signal,
    rejection_count,
    signal,
    signal_count,
    waiting_signal,
)
from contracts.tables.statements import add_all, among, among_rows, insert_all_new, keys_of_new
from contracts.topics import SIGNALS
from contracts.wire import unpacked
from runtime.database import Database
from runtime.log.outbox import message, put
from runtime.log.recovery import ANY_BODY
from services.feedback.requests import ReceivedItem, TargetKey

PROCESS = "feedback"
_HEX, _RECEIPTS = re.compile("[0-9a-f]{64}"), "receipts"
_RELAYING = 0x6D_69_6C_6C  # the number of our advisory lock in PostgreSQL, where it is unique within a database

Name = tuple[str, str]
"""Tenant and id of a signal."""


class ItemResult(NamedTuple):
    """The result of one item. `received_at`: when its id was first received, UTC epoch seconds."""

    fate: Literal["accepted", "duplicate", "conflict", "no_such_choice"]
    received_at: float


class Retraction(NamedTuple):
    """A request to retract a signal. `at`: UTC epoch seconds."""

    tenant: str
    id: str
    at: float


class StoredSignal(NamedTuple):
    """A signal as it was first received. `retracted_at`: UTC epoch seconds; None if it was not retracted."""

    signal: Signal
    retracted_at: float | None


class _Choices(msgspec.Struct):
    """The part of a generation that says how many choices it has."""

    num_choices: int = 0


def add(
    connection: Connection,
    received: Sequence[ReceivedItem],
    rejected: Mapping[str, int] = MappingProxyType({}),
    beyond: Collection[int] = frozenset(),
) -> list[ItemResult]:
    """Store signals and their messages. Returns the result of each, as if they had come one after the other.

    An id belongs to the first signal of a tenant that has it; the same id with other content is a conflict. `rejected`: how many
    other items were refused, by error code; `beyond`: those of `find_beyond` are refused.
    """
    firsts: dict[Name, ReceivedItem] = {}
    for item in _aimed(connection, [item for item in received if id(item) not in beyond]):
        firsts.setdefault(_name(item), item)
    rows = [_row(item) | {"body_hash": item.body_hash} for item in firsts.values()]
    inserted = keys_of_new(connection, received_signal, rows)  # waits for replicas that insert the same ids
    holders = {key: (firsts[key].body_hash, firsts[key].signal.received_at) for key in inserted}
    holders |= _find_holders(connection, firsts.keys() - inserted)
    new = [item for name, item in firsts.items() if name in inserted]
    aimed = [message(SIGNALS, item.signal.key, item.signal) for item in new if item.signal.completion_id]
    put(connection, PROCESS, aimed)
    insert_all_new(connection, waiting_signal, [_waiting_row(item) for item in new if not item.signal.completion_id])
    entries, unsaid = [], set(inserted)
    for item in received:
        if id(item) in beyond:
            entries.append(ItemResult("no_such_choice", item.signal.received_at))
            continue
        name = _name(item)
        body_hash, received_at = holders[name]
        if name in unsaid:
            unsaid.discard(name)
            entries.append(ItemResult("accepted", received_at))
        else:
            same = body_hash in {item.body_hash, ANY_BODY}
            entries.append(ItemResult("duplicate" if same else "conflict", received_at))
    fates = Counter[str](entry.fate for entry in entries if entry.fate in {"duplicate", "conflict"})
    _count(connection, signal_count, fates + Counter({"rejected": sum(rejected.values()) + len(beyond)}))
    _count(connection, rejection_count, Counter(rejected) + Counter({NoSuchChoice.code: len(beyond)}))
    return entries


def find_beyond(database: Database, received: Sequence[ReceivedItem]) -> set[int]:
    """The `id()` of each item about a choice that its completion never had. Only the tenant's own completions are read.

    Read before the transaction: that number never changes. Signals about a completion that arrives later are the join's to refuse.
    """
    asked = [item for item in received if item.signal.completion_id and item.signal.choice > 0]
    if not asked:
        return set()
    table = generation.c
    with database.snapshot() as connection:
        wanted = among(connection, table.completion_id, {item.signal.completion_id for item in asked})
        rows = connection.execute(select(table.completion_id, table.tenant, table.record).where(wanted))
        known = {(row.tenant, row.completion_id): unpacked("Generation", row.record) for row in rows}
    nums = {answer: msgspec.msgpack.decode(packed, type=_Choices).num_choices for answer, packed in known.items()}
    found = ((item, nums.get((item.signal.tenant, item.signal.completion_id), 0)) for item in asked)
    return {id(item) for item, num_choices in found if 0 < num_choices <= item.signal.choice}


def find_hashes(connection: Connection, tenant: str, signal_ids: Collection[str]) -> dict[str, str]:
    """The hash of the content that has each of these ids, if any."""
    holders = _find_holders(connection, [(tenant, signal_id) for signal_id in signal_ids])
    return {signal_id: body_hash for (_, signal_id), (body_hash, _) in holders.items()}


def own_receipt_secret(database: Database) -> bytes:
    """What receipts are written with: 32 random bytes, made by the first replica that asks. Raises InvalidSettings: they were changed."""
    with database.transaction() as connection:
        insert_all_new(connection, home_secret, [{"name": _RECEIPTS, "value": secrets.token_hex(32)}])
    with database.snapshot() as connection:
        found = connection.execute(select(home_secret.c.value).where(home_secret.c.name == _RECEIPTS)).scalar_one()
    if not _HEX.fullmatch(found):
        raise InvalidSettings(
            f"the row {_RECEIPTS!r} of the table home_secret is no 64 hex digits: delete it, which ends every receipt"
        )
    return bytes.fromhex(found)


def find(connection: Connection, tenant: str, signal_id: str) -> StoredSignal | None:
    """A signal of this tenant; None if it has no such signal."""
    row = connection.execute(select(received_signal).where(*_is(tenant, signal_id))).one_or_none()
    return None if row is None else StoredSignal(decode_shape(Signal, row.record), row.retracted_at)


def find_joined(connection: Connection, record: Signal) -> tuple[str, str, int | None] | None:
    """The state that the join gave a signal, its reason and its revision; None until it has seen it."""
    statement = select(signal.c.state, signal.c.reason, signal.c.revision).where(
        signal.c.completion_id == record.completion_id, signal.c.tenant == record.tenant, signal.c.id == record.id
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else (row.state, row.reason, row.revision)


def find_key(connection: Connection, tenant: str, signal_id: str) -> TargetKey | None:
    """The key whose completion a signal waits for; None if it does not wait."""
    columns = waiting_signal.c
    statement = select(columns.kind, columns.value).where(columns.tenant == tenant, columns.id == signal_id)
    row = connection.execute(statement).one_or_none()
    return None if row is None else TargetKey(*row)


def retract(connection: Connection, retractions: Sequence[Retraction]) -> list[float | None]:
    """When each signal was first retracted, now at the latest; None if it was never received. The first retraction also sends it again."""
    firsts = {(retraction.tenant, retraction.id): retraction for retraction in reversed(retractions)}
    times = {key: _retract(connection, retraction) for key, retraction in sorted(firsts.items())}
    return [times[retraction.tenant, retraction.id] for retraction in retractions]


@contextmanager
def turn_to_relay(database: Database) -> Iterator[bool]:
    """True if this replica may relay until the end of the block: two at once would send everything twice."""
    if database.url.startswith("sqlite"):
        yield True  # one process only; and the relay could not delete rows while we hold a lock
        return
    # Read committed: a snapshot held as long as messages flow would keep deleted rows of the outbox from being cleaned up.
    with database.transaction() as connection:
        yield bool(connection.execute(select(func.pg_try_advisory_xact_lock(_RELAYING))).scalar_one())


def _retract(connection: Connection, retraction: Retraction) -> float | None:
    table = received_signal.c
    stands = update(received_signal).where(*_is(retraction.tenant, retraction.id), table.retracted_at.is_(None))
    wire = connection.execute(stands.values(retracted_at=retraction.at).returning(table.record)).scalar_one_or_none()
    if wire is None:
        stored = find(connection, retraction.tenant, retraction.id)
        return stored.retracted_at if stored else None
    record = msgspec.structs.replace(decode_shape(Signal, wire), retracted=True)
    if record.completion_id:  # else it waits; episodes sees the retraction when it sends the signal
        put(connection, PROCESS, [message(SIGNALS, record.key, record)])
    return retraction.at


def _aimed(connection: Connection, received: Sequence[ReceivedItem]) -> list[ReceivedItem]:
    """The same items; those whose join key has a completion are about that completion.

    Read in the transaction: a completion that arrives between would not find a signal that begins to wait. A session key is not resolved
    here: only the join knows which completion was the last of a session at that time.
    """
    wanted = {(item.signal.tenant, *item.key) for item in received if item.key is not None and item.key.kind == "key"}
    if not wanted:
        return list(received)
    name = (join_key.c.tenant, join_key.c.kind, join_key.c.value)
    rows = connection.execute(select(join_key).where(among_rows(connection, name, wanted)))
    meant = {(row.tenant, row.kind, row.value): (row.completion_id, row.choice) for row in rows}
    aimed = []
    for item in received:
        answer = meant.get((item.signal.tenant, *item.key)) if item.key is not None else None
        if answer is not None:
            about = msgspec.structs.replace(item.signal, completion_id=answer[0], choice=answer[1])
            item = item._replace(signal=about)  # noqa: PLW2901 the same item, complete
        aimed.append(item)
    return aimed


def _waiting_row(item: ReceivedItem) -> dict[str, Any]:
    kind, value = item.key or ("", "")
    return _row(item) | {"kind": kind, "value": value}


def _row(item: ReceivedItem) -> dict[str, Any]:
    said = item.signal
    return {"tenant": said.tenant, "id": said.id, "received_at": said.received_at, "record": encode(said)}


def _find_holders(connection: Connection, keys: Collection[Name]) -> dict[Name, tuple[str, float]]:
    """The hash of the content that has each id, and when it was received."""
    holders = {}
    table = received_signal.c
    for tenant in {tenant for tenant, _ in keys}:
        ids = [signal_id for of, signal_id in keys if of == tenant]
        statement = select(table.id, table.body_hash, table.received_at)
        for row in connection.execute(statement.where(table.tenant == tenant, table.id.in_(ids))):
            holders[tenant, row.id] = row.body_hash, row.received_at
    return holders


def _count(connection: Connection, table: Table, counts: Mapping[str, int]) -> None:
    [name] = table.primary_key.columns.keys()
    add_all(connection, table, [{name: key, "count": num} for key, num in counts.items() if num])


def _name(item: ReceivedItem) -> Name:
    return item.signal.tenant, item.signal.id


def _is(tenant: str, signal_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return received_signal.c.tenant == tenant, received_signal.c.id == signal_id
