"""Days of the large tables on PostgreSQL: each day is a partition, made ahead of time and dropped as a whole.

In: the database's clock, or an operator's date. Out: partitions. Waits for: locks, two seconds at most.

Completion ids begin with their time, so a day is a range of their text. Rows of days without a partition land in the default one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import structlog
from sqlalchemy import Boolean, ColumnElement, Connection, Table, func, literal_column, select, text
from sqlalchemy.exc import DBAPIError

from contracts.errors import Conflict, Unavailable
from contracts.ids import first_id_at
from contracts.ledger import PENDING, effective_state
from contracts.tables import generation, generation_count, outcome, received_signal, score, signal, vote
from contracts.tables.statements import add_to_count
from runtime.clocks import database_time
from runtime.database import Database
from runtime.seals import add_dropped, states_of_rows, sums_of_rows

PARTITIONED = (generation, signal, outcome, score)
"""In the order in which they are locked, so that transactions cannot deadlock."""
AHEAD = 7

_CHILD = re.compile(rf"({'|'.join(table.name for table in PARTITIONED)})_(default|p(\d{{8}}))")
_LOCK_SECONDS = 2
_HOUR_SECONDS = 3600.0
_TURN = 0x6D696C64  # an advisory lock of its own: replicas take turns
_CHECK_VIOLATION = "23514"
_CHILDREN = text(
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
    "JOIN pg_class parent ON parent.oid = inhparent JOIN pg_namespace n ON n.oid = parent.relnamespace "
    "WHERE parent.relname = :parent AND n.nspname = current_schema()"
)

log = structlog.get_logger()


class DroppedDay(NamedTuple):
    """A day that was dropped, and how many generations it had."""

    day: date
    num_generations: int


def is_partition(name: str) -> bool:
    """True if this is the name of a partition."""
    return _CHILD.fullmatch(name) is not None


def first_id(day: date) -> str:
    """The lower bound of a day: no completion id or sample key of this day or a later one sorts before it."""
    return first_id_at(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000)


def migrate(database: Database) -> None:
    """Apply all migrations, and make the partitions of the coming days. Raises InvalidSettings, ClockOff, Unavailable."""
    database.upgrade_schema()
    make_days_now(database)


def make_days(database: Database, now: float, ahead: int = AHEAD) -> list[str]:
    """Make the partitions of today and of the next `ahead` days; returns the names of new ones.

    A day that cannot be made now (a lock is held, or the default partition has rows of it) is logged and tried again at the
    next call. Meanwhile its rows land in the default partition. Raises Unavailable: the database cannot be used.
    """
    if database.url.startswith("sqlite"):
        return []
    with database.snapshot() as connection:
        missing = _missing(connection, now, ahead)
    return [_name(table, day) for table, day in missing if _make_logged(database, table, day)]


def make_days_now(database: Database, wall: Callable[[], float] = time.time) -> list[str]:
    """Call `make_days` with the time of the database's clock. Raises ClockOff: this machine's differs; Unavailable."""
    return make_days(database, database_time(database, wall))


def held_days(connection: Connection) -> list[str]:
    """Names of the partitions of days, of all tables; none in SQLite."""
    if connection.dialect.name == "sqlite":
        return []
    return sorted(name for name in _children(connection) if _day(name) is not None)


def missing_days(connection: Connection, now: float) -> list[str]:
    """Names of the partitions of today and tomorrow that are not there; rows of these days would land in the default one."""
    if connection.dialect.name == "sqlite":
        return []
    return [_name(table, day) for table, day in _missing(connection, now, 1)]


def make_again(connection: Connection, names: Collection[str]) -> None:
    """Make partitions of these names, which `held_days` gave of another database. Raises ValueError: no such name."""
    for name in sorted(names):
        day = _day(name)
        table = next((table for table in PARTITIONED if day is not None and _name(table, day) == name), None)
        if day is None or table is None:
            raise ValueError(f"{name!r} is not the name of a partition")
        _make(connection, table, day)


def keep_days_ahead(database: Database, stop: threading.Event) -> None:
    """Make days once an hour until `stop` is set. If the database is away, the next hour tries again."""
    while not stop.is_set():
        try:
            make_days_now(database)
        except (DBAPIError, Unavailable) as error:
            log.warning("days not made", reason=str(error))
        stop.wait(_HOUR_SECONDS)
    database.close()


def drop_days(database: Database, before: date) -> list[DroppedDay]:
    """Drop whole days, the oldest first, with the rows that detect repeated signals of these days, and with their votes.

    Their generations are counted and hashed into `ledger_seal`, so that an audit stays exact. The default partition stays.
    Join keys, and signals that wait for one, expire by themselves earlier. Raises Conflict: a day has pending rows, or is not
    over; that day and later ones were not touched. Unavailable: a lock is held; days that were dropped before stay dropped.
    """
    if database.url.startswith("sqlite"):
        raise Conflict("SQLite has no days to drop: only PostgreSQL partitions tables by day")
    with database.snapshot() as connection:
        days = sorted({day for name in _children(connection) if (day := _day(name)) is not None and day < before})
    return [_drop(database, day) for day in days]


def _missing(connection: Connection, now: float, ahead: int) -> list[tuple[Table, date]]:
    held, today = set(_children(connection)), datetime.fromtimestamp(now, UTC).date()
    wanted = [(table, today + timedelta(days=number)) for number in range(ahead + 1) for table in PARTITIONED]
    return [(table, day) for table, day in wanted if _name(table, day) not in held]


def _make_logged(database: Database, table: Table, day: date) -> bool:
    try:
        with database.transaction() as connection:
            return _make(connection, table, day)
    except (DBAPIError, Unavailable) as error:
        state = getattr(getattr(error, "orig", None), "sqlstate", None)
        if isinstance(error, DBAPIError) and state != _CHECK_VIOLATION:
            raise
        reason = "its default partition holds rows of that day" if state else str(error)
        log.warning("day not made", table=table.name, day=day.isoformat(), reason=reason)
        return False


def _make(connection: Connection, table: Table, day: date) -> bool:
    """Make the table alone and attach it then: this locks only the default partition, and only briefly."""
    _take_turn(connection)
    name = _name(table, day)
    if name in set(_children(connection)):
        return False
    first, after = first_id(day), first_id(day + timedelta(days=1))
    connection.exec_driver_sql(f'CREATE TABLE "{name}" (LIKE "{table.name}" INCLUDING ALL)')
    connection.exec_driver_sql(
        f"ALTER TABLE \"{table.name}\" ATTACH PARTITION \"{name}\" FOR VALUES FROM ('{first}') TO ('{after}')"
    )
    return True


def _drop(database: Database, day: date) -> DroppedDay:
    gone_rows = _rows_of_partition(day)
    with database.snapshot() as connection:  # before any lock: this reads every key of the day
        has_rows = _name(generation, day) in set(_children(connection))
        sums = sums_of_rows(connection, *gone_rows) if has_rows else {}
    with database.transaction() as connection:
        _take_turn(connection)
        held = set(_children(connection))
        tables = [table for table in PARTITIONED if _name(table, day) in held]
        for table in tables:
            connection.exec_driver_sql(f'LOCK TABLE "{table.name}" IN ACCESS EXCLUSIVE MODE')
        _refuse_pending(connection, day)
        states = states_of_rows(connection, *gone_rows) if generation in tables else {}
        num_generations = sum(sum(counts.values()) for counts in states.values())
        if num_generations != sum(item.num for item in sums.values()):
            raise Conflict(f"{day} changed while it was read: run the command again", day=str(day))
        add_dropped(connection, day.isoformat(), sums, states, datetime.now(UTC).timestamp())
        gone = select(signal.c.tenant, signal.c.id).where(_within(signal, day)).subquery()
        connection.execute(
            received_signal.delete().where(received_signal.c.tenant == gone.c.tenant, received_signal.c.id == gone.c.id)
        )
        connection.execute(vote.delete().where(_within(vote, day)))
        for table in tables:
            connection.exec_driver_sql(f'ALTER TABLE "{table.name}" DETACH PARTITION "{_name(table, day)}"')
            connection.exec_driver_sql(f'DROP TABLE "{_name(table, day)}"')
        add_to_count(connection, generation_count, "dropped", num_generations)
    log.info("day dropped", day=day.isoformat(), num_generations=num_generations)
    return DroppedDay(day, num_generations)


def _refuse_pending(connection: Connection, day: date) -> None:
    if day >= datetime.now(UTC).date():
        raise Conflict(f"{day} is not over: choose an earlier date")
    for what, table, state in (("generations", generation, effective_state()), ("signals", signal, signal.c.state)):
        waiting = select(func.count()).select_from(table).where(_within(table, day), state == PENDING)
        if count := connection.execute(waiting).scalar_one():
            raise Conflict(f"{day} holds {count} {what} that are still pending: see why, or keep the day", day=str(day))


def _within(table: Table, day: date) -> ColumnElement[bool]:
    column = next(iter(table.primary_key.columns))
    return (column >= first_id(day)) & (column < first_id(day + timedelta(days=1)))


def _rows_of_partition(day: date) -> tuple[ColumnElement[bool], ...]:
    """Rows that go with a day's partition. Rows of the day in the default partition stay."""
    return _within(generation, day), literal_column(
        f"generation.tableoid = '\"{_name(generation, day)}\"'::regclass", Boolean
    )


def _take_turn(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")


def _children(connection: Connection) -> Iterator[str]:
    for table in PARTITIONED:
        yield from connection.execute(_CHILDREN, {"parent": table.name}).scalars()


def _name(table: Table, day: date) -> str:
    return f"{table.name}_p{day:%Y%m%d}"


def _day(name: str) -> date | None:
    found = _CHILD.fullmatch(name)
    return datetime.strptime(found[3], "%Y%m%d").replace(tzinfo=UTC).date() if found and found[3] else None
