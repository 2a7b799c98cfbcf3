"""Seals of the ledger: how many generations a day had, and the sum of their hashes, by partition of the log.

In: keys. Out: rows of `ledger_seal` and `ledger_mark`, in the caller's transaction. Waits for: nothing.

`millrace audit --seal` adds the generations that it found both in the log, before the partition's mark, and in the database.
`drop_days` adds the rows that it takes out, with their states. So an audit needs neither those records nor those rows again:

    rows without a record + dropped = sealed + records without a row        for each day and partition
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, select, tuple_, update

from contracts.ids import sample_key
from contracts.ledger import effective_state
from contracts.tables import generation, ledger_mark, ledger_seal
from contracts.tables.statements import insert_or_update

ELSEWHEN = -1
"""The hour of a key without a time: it is not one of our ids."""
PAGE = 20_000
HOUR_MS, _DAY_HOURS = 3_600_000, 24
LAST_HOUR = (date.max.toordinal() - date(1970, 1, 1).toordinal()) * _DAY_HOURS
"""Later ones have no date."""
_MODULUS = 2**64
_ID = re.compile(r"chatcmpl-([0-9a-f]{8})-([0-9a-f]{4})-").match
_MINE = ("num", "hash", "states", "sealed_at", "closed_at", "num_dropped", "hash_dropped", "dropped_at")


class KeySum(NamedTuple):
    """A number of keys and the sum of their hashes, modulo 2^64. The order does not matter."""

    num: int = 0
    hash: int = 0

    def plus(self, other: KeySum) -> KeySum:
        """Both together."""
        return KeySum(self.num + other.num, (self.hash + other.hash) % _MODULUS)


class SealKey(NamedTuple):
    """A day as YYYY-MM-DD, empty for keys without a time; and a partition of the log."""

    day: str
    partition: int


class Seal(NamedTuple):
    """One row. Times are UTC epoch seconds."""

    sealed: KeySum = KeySum()
    states: Mapping[str, int] = {}
    """Of the dropped rows; of a closed day that is still there: when it was closed."""
    sealed_at: float | None = None
    closed_at: float | None = None
    """When every generation of the day was sealed: an audit does not read its rows again."""
    dropped: KeySum = KeySum()
    dropped_at: float | None = None


def hash_of(key: str) -> int:
    """The 64 bits of a sample key that are summed (BLAKE2b)."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def hashes_of(keys: Iterable[bytes]) -> bytes:
    """`hash_of` of many keys, 8 bytes each, the lowest first."""
    blake2b = hashlib.blake2b
    return b"".join([blake2b(key, digest_size=8).digest() for key in keys])


def hour_of(key: str) -> int:
    """Hours since 1970 at which the id of a key was made; `ELSEWHEN` if it has no time."""
    if (found := _ID(key)) is None:
        return ELSEWHEN
    hour = int(found[1] + found[2], 16) // HOUR_MS
    return hour if hour < LAST_HOUR else ELSEWHEN


def day_of(hour: int) -> str:
    """The day of an hour, as in `SealKey`."""
    return "" if hour == ELSEWHEN else date.fromordinal(date(1970, 1, 1).toordinal() + hour // _DAY_HOURS).isoformat()


def sum_of(hashes: Collection[int]) -> KeySum:
    """Add hashes up."""
    return KeySum(len(hashes), sum(hashes) % _MODULUS)


def pages(
    connection: Connection,
    *which: ColumnElement[bool],
    columns: Iterable[ColumnElement[Any]] = (),
    size: int = PAGE,
    seen: Callable[[], None] = lambda: None,
) -> Iterator[Any]:
    """Rows of `generation` in the order of their keys, a page in memory at a time: `completion_id`, `choice` and `columns`."""
    key = (generation.c.completion_id, generation.c.choice)
    statement = select(*key, *columns).where(*which).order_by(*key).limit(size)
    rows = connection.execute(statement).all()
    while rows:
        yield from rows
        last = rows[-1]
        rows = []  # before the next page is there
        seen()
        rows = connection.execute(statement.where(*rows_after(last[0], last[1]))).all()


def rows_after(completion_id: str, choice: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The rows after this one. The first bound is redundant; with it only the partitions that are left are searched."""
    key = tuple_(generation.c.completion_id, generation.c.choice)
    return generation.c.completion_id >= completion_id, key > (completion_id, choice)


def sums_of_rows(connection: Connection, *which: ColumnElement[bool]) -> dict[int, KeySum]:
    """Partition of the log to the sum of the rows' keys."""
    found: dict[int, list[int]] = {}
    for row in pages(connection, *which, columns=[generation.c.partition]):
        held = found.setdefault(row.partition, [0, 0])
        held[0] += 1
        held[1] += hash_of(sample_key(row.completion_id, row.choice))
    return {partition: KeySum(num, total % _MODULUS) for partition, (num, total) in found.items()}


def states_of_rows(connection: Connection, *which: ColumnElement[bool]) -> dict[int, dict[str, int]]:
    """Partition of the log to the number of rows by effective state."""
    state = effective_state().label("state")
    statement = (
        select(generation.c.partition, state, func.count()).where(*which).group_by(generation.c.partition, state)
    )
    found: dict[int, dict[str, int]] = {}
    for partition, name, number in connection.execute(statement):
        found.setdefault(partition, {})[name] = number
    return found


def last_sealed_at(connection: Connection) -> float | None:
    """UTC epoch seconds of the last seal; None: nothing was ever sealed."""
    at = connection.execute(select(func.max(ledger_mark.c.at))).scalar_one_or_none()
    return None if at is None else float(at)


def read_seals(connection: Connection, day: str | None = None) -> dict[SealKey, Seal]:
    """All seals, or those of one day."""
    statement = select(ledger_seal).where(*(() if day is None else (ledger_seal.c.day == day,)))
    return {
        SealKey(row.day, row.partition): Seal(
            KeySum(row.num, int(row.hash, 16)),
            row.states,
            row.sealed_at,
            row.closed_at,
            KeySum(row.num_dropped, int(row.hash_dropped, 16)),
            row.dropped_at,
        )
        for row in connection.execute(statement)
    }


def write_seal(connection: Connection, key: SealKey, seal: Seal) -> None:
    """Add or replace a seal."""
    values = (
        seal.sealed.num, f"{seal.sealed.hash:x}", dict(seal.states), seal.sealed_at, seal.closed_at,
        seal.dropped.num, f"{seal.dropped.hash:x}", seal.dropped_at,
    )  # fmt: skip
    insert_or_update(connection, ledger_seal, key._asdict() | dict(zip(_MINE, values, strict=True)), _MINE)


def read_marks(connection: Connection) -> dict[int, int]:
    """Partition of the log to the offset before which every record is sealed, or had no row for a reason that is known."""
    return {row.partition: row.next_offset for row in connection.execute(select(ledger_mark))}


def write_mark(connection: Connection, partition: int, next_offset: int, now: float) -> None:
    """Move a mark."""
    row = {"partition": partition, "next_offset": next_offset, "at": now}
    insert_or_update(connection, ledger_mark, row, ("next_offset", "at"))


def take_turn(connection: Connection) -> None:
    """Nobody else changes seals until this transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"LOCK TABLE {ledger_seal.name} IN SHARE ROW EXCLUSIVE MODE")


def add_dropped(
    connection: Connection, day: str, sums: Mapping[int, KeySum], states: Mapping[int, Mapping[str, int]], now: float
) -> None:
    """Note the rows that are dropped with a day. Days that were dropped once may be dropped again: late rows add up."""
    take_turn(connection)
    seals = read_seals(connection, day)
    for partition, dropped in sums.items():
        key = SealKey(day, partition)
        held = seals.get(key, Seal())
        before = held.states if held.dropped_at is not None else {}
        counts = dict(Counter(before) + Counter(states.get(partition, {})))
        seal = held._replace(states=counts, dropped=held.dropped.plus(dropped), dropped_at=now, closed_at=None)
        write_seal(connection, key, seal)


def forget_log(connection: Connection) -> None:
    """The log was lost, and what it was sealed with is no longer comparable: only what was dropped stays."""
    connection.execute(delete(ledger_mark))
    connection.execute(update(ledger_seal).values(num=0, hash="0", sealed_at=None, closed_at=None))
