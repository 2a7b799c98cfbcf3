"""Rates over time and the times of samples that were learned: index ranges only, each with a limit."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, Connection, Table, cast, func, select

from contracts.ids import sample_key
from contracts.tables import generation, outcome, score, signal

BUCKET_SECONDS = 10
WINDOW_SECONDS = 900
AHEAD_SECONDS = 3600
"""Of clocks that are ahead of ours: their events are read, and shown once their time has come."""
MAX_SAMPLES = 400
MAX_LOOKED = 20_000
VERSIONS_BACK = 16
"""A sample is learned by a version at most this much younger than the one that made it: past the trainer's usual
`max_version_lag`, so that the index on (state, version) bounds the search."""


class SampleTimes(NamedTuple):
    """The times of one trained sample, UTC epoch seconds; None: no row says."""

    version: int
    """The first version that contains it."""
    created_at: float
    joined_at: float
    signal_at: float | None
    scored_at: float | None
    trained_at: float | None


def read_rates(connection: Connection, start: float, tenant: str | None = None) -> dict[str, dict[int, int]]:
    """Series to bucket number since `start` to how many events lie in it. `tenant` None: everybody's."""
    return {
        "generations": _bucketed(connection, generation, generation.c.created_at, start, tenant),
        "signals": _bucketed(connection, signal, signal.c.received_at, start, tenant),
        "experiences": _bucketed(connection, score, score.c.at, start, tenant),
    }


def read_learned(connection: Connection, versions: Collection[int]) -> list[SampleTimes]:
    """Samples that these versions were the first to learn."""
    if not versions:
        return []
    newest = (
        select(
            generation.c.completion_id,
            generation.c.choice,
            generation.c.created_at,
            generation.c.joined_at,
            generation.c.state_version,
        )
        .where(
            generation.c.state == "trained",
            generation.c.version <= max(versions),
            generation.c.version >= min(versions) - VERSIONS_BACK,
        )
        .order_by(generation.c.version.desc())
        .limit(MAX_LOOKED)
        .subquery()
    )
    statement = select(newest).where(newest.c.state_version.in_(versions)).limit(MAX_SAMPLES)
    rows = list(connection.execute(statement))
    ids = [row.completion_id for row in rows]
    keys = [sample_key(row.completion_id, row.choice) for row in rows]
    signalled, scored, trained = _signalled(connection, ids), _scored(connection, keys), _trained(connection, keys)
    return [
        SampleTimes(
            row.state_version,
            row.created_at,
            row.joined_at,
            signalled.get(key),
            scored.get(key),
            trained.get(key),
        )
        for row, key in zip(rows, keys, strict=True)
    ]


def _bucketed(
    connection: Connection, table: Table, at: Column[float], start: float, tenant: str | None
) -> dict[int, int]:
    # Seconds first: PostgreSQL rounds where SQLite cuts, which moves an event by half a second at most.
    bucket = (cast(at - start, BigInteger) // BUCKET_SECONDS).label("bucket")
    # A time far ahead is in no bucket, and would be no number of PostgreSQL's.
    shown = at.between(start, start + WINDOW_SECONDS + AHEAD_SECONDS)
    statement = select(bucket, func.count()).select_from(table).where(shown).group_by(bucket)
    if tenant is not None:
        statement = statement.where(table.c.tenant == tenant)
    return {number: count for number, count in connection.execute(statement)}  # noqa: C416 a row is not a tuple for dict()


def _signalled(connection: Connection, ids: list[str]) -> dict[str, float]:
    statement = (
        select(signal.c.completion_id, signal.c.choice, func.min(signal.c.received_at).label("at"))
        .where(signal.c.completion_id.in_(ids), signal.c.revision.is_not(None))
        .group_by(signal.c.completion_id, signal.c.choice)
    )
    return {sample_key(row.completion_id, row.choice): row.at for row in connection.execute(statement)}


def _scored(connection: Connection, keys: list[str]) -> dict[str, float]:
    statement = (
        select(score.c.key, func.min(score.c.at).label("at"))
        .where(score.c.key.in_(keys), score.c.reward.is_not(None))
        .group_by(score.c.key)
    )
    return {row.key: row.at for row in connection.execute(statement)}


def _trained(connection: Connection, keys: list[str]) -> dict[str, float]:
    statement = (
        select(outcome.c.key, func.min(outcome.c.at).label("at"))
        .where(outcome.c.key.in_(keys), outcome.c.state == "trained")
        .group_by(outcome.c.key)
    )
    return {row.key: row.at for row in connection.execute(statement)}
