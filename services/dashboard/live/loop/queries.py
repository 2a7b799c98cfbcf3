"""Rates over time, and the times of learned samples. Every query reads an index range with a limit."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, cast, func, select

from contracts.ids import sample_key
from contracts.tables import generation, outcome, score, signal

BUCKET_SECONDS = 10
WINDOW_SECONDS = 900
AHEAD_SECONDS = 3600
"""Clocks of other machines may be ahead this much: their events are read, and shown when their time has come."""
MAX_SAMPLES = 400
MAX_LOOKED = 20_000
VERSIONS_BACK = 16
"""A sample is learned by a version at most this much newer than the version that made it, which is more than the usual
`max_version_lag` of a trainer. The bound lets the index on (state, version) limit the search."""


class SampleTimes(NamedTuple):
    """The times of one trained sample, in UTC epoch seconds; None: not known."""

    version: int
    """The first version that contains it."""
    created_at: float
    joined_at: float
    signal_at: float | None
    scored_at: float | None
    trained_at: float | None


def read_rates(connection: Connection, start: float, tenant: str | None = None) -> dict[str, dict[int, int]]:
    """Series to bucket number since `start` to the number of events in the bucket. `tenant` None: all tenants."""
    return {
        "generations": _bucketed(connection, generation, generation.c.created_at, start, tenant),
        "signals": _bucketed(connection, signal, signal.c.received_at, start, tenant),
        "experiences": _bucketed(connection, score, score.c.at, start, tenant),
    }


def read_learned(connection: Connection, versions: Collection[int]) -> list[SampleTimes]:
    """Samples that one of these versions was the first to learn."""
    if not versions:
        return []
    columns = generation.c["completion_id", "choice", "created_at", "joined_at", "state_version"]
    trained = select(*columns).where(
        generation.c.state == "trained",
        generation.c.version <= max(versions),
        generation.c.version >= min(versions) - VERSIONS_BACK,
    )
    newest = trained.order_by(generation.c.version.desc()).limit(MAX_LOOKED).subquery()
    rows = list(connection.execute(select(newest).where(newest.c.state_version.in_(versions)).limit(MAX_SAMPLES)))
    keys = [sample_key(row.completion_id, row.choice) for row in rows]
    signalled = _signalled(connection, [row.completion_id for row in rows])
    scored = _first(connection, score, score.c.key.in_(keys), score.c.reward.is_not(None))
    learned = _first(connection, outcome, outcome.c.key.in_(keys), outcome.c.state == "trained")
    return [
        SampleTimes(
            row.state_version,
            row.created_at,
            row.joined_at,
            *(times.get(key) for times in (signalled, scored, learned)),
        )
        for row, key in zip(rows, keys, strict=True)
    ]


def _bucketed(
    connection: Connection, table: Table, at: Column[float], start: float, tenant: str | None
) -> dict[int, int]:
    # Whole seconds first: PostgreSQL rounds and SQLite truncates, which moves an event by at most half a second.
    bucket = (cast(at - start, BigInteger) // BUCKET_SECONDS).label("bucket")
    # A time in the far future has no bucket, and its number is too large for PostgreSQL.
    shown = at.between(start, start + WINDOW_SECONDS + AHEAD_SECONDS)
    statement = select(bucket, func.count()).select_from(table).where(shown).group_by(bucket)
    if tenant is not None:
        statement = statement.where(table.c.tenant == tenant)
    return {number: count for number, count in connection.execute(statement)}  # noqa: C416 a row is not a tuple for dict()


def _signalled(connection: Connection, ids: list[str]) -> dict[str, float]:
    key = signal.c["completion_id", "choice"]
    mine = select(*key, func.min(signal.c.received_at).label("at")).where(signal.c.completion_id.in_(ids))
    rows = connection.execute(mine.where(signal.c.revision.is_not(None)).group_by(*key))
    return {sample_key(row.completion_id, row.choice): row.at for row in rows}


def _first(connection: Connection, table: Table, *conditions: ColumnElement[bool]) -> dict[str, float]:
    """Sample key to the time of its first row that meets the conditions."""
    first = select(table.c.key, func.min(table.c.at).label("at")).where(*conditions).group_by(table.c.key)
    return {row.key: row.at for row in connection.execute(first)}
