"""SQL of the join and of the ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, select, update

from contracts.database import insert_new
from contracts.ledger import PENDING
from contracts.records import Generation, Outcome, Signal, decode, encode
from contracts.tables import generation as generations
from contracts.tables import outcome as outcomes
from contracts.tables import signal as signals
from pipelines.episodes.join import Standing

Key = tuple[str, int]


class Joined(NamedTuple):
    """A generation as the join holds it. `closes_at` is None once its window closed."""

    record: Generation
    closes_at: float | None
    revision: int


def add_generation(
    connection: Connection, record: Generation, partition: int, now: float, closes_at: float | None
) -> bool:
    """False if it was there already."""
    return insert_new(
        connection,
        generations,
        {
            "completion_id": record.completion_id,
            "choice": record.choice,
            "partition": partition,
            "policy": record.policy,
            "task": record.task,
            "purpose": record.purpose,
            "arm": record.arm,
            "version": record.spans[0].version if record.spans else -1,
            "created_at": record.created_at,
            "joined_at": now,
            "closes_at": closes_at,
            "revision": 0,
            "state": PENDING,
            "state_reason": "",
            "state_writer": "episodes",
            "state_epoch": 0,
            "state_revision": 0,
            "record": encode(record),
        },
    )


def find_generation(connection: Connection, key: Key) -> Joined | None:
    """The generation of a sample key, if it arrived; held until the transaction ends, so that no replica changes it."""
    row = connection.execute(select(generations).where(*_is(key)).with_for_update()).one_or_none()
    return Joined(decode(Generation, row.record), row.closes_at, row.revision) if row else None


def due(connection: Connection, now: float, partitions: frozenset[int], limit: int) -> list[Key]:
    """Generations of these partitions whose window has passed."""
    statement = (
        select(generations.c.completion_id, generations.c.choice)
        .where(generations.c.closes_at <= now, generations.c.partition.in_(partitions))
        .order_by(generations.c.closes_at)
        .limit(limit)
    )
    return [(row.completion_id, row.choice) for row in connection.execute(statement)]


def close_window(connection: Connection, key: Key) -> None:
    """The window has passed; later signals are late."""
    connection.execute(update(generations).where(*_is(key)).values(closes_at=None))


def next_revision(connection: Connection, key: Key) -> int:
    """Raise the revision; what was said about an older one is open again, unless the trainer said it."""
    statement = update(generations).where(*_is(key))
    connection.execute(statement.values(revision=generations.c.revision + 1))
    reopened: dict[str, Any] = {"state": PENDING, "state_reason": ""}
    connection.execute(statement.where(generations.c.state_writer != "training").values(**reopened))
    return int(connection.execute(select(generations.c.revision).where(*_is(key))).scalar_one())


def add_signal(connection: Connection, record: Signal, state: str, reason: str = "") -> bool:
    """False if its id was there already."""
    return insert_new(
        connection,
        signals,
        {
            "completion_id": record.completion_id,
            "tenant": record.tenant,
            "id": record.id,
            "choice": record.choice,
            "name": record.name,
            "submitter": record.submitter.id,
            "at": record.at,
            "received_at": record.received_at,
            "state": state,
            "reason": reason,
            "record": encode(record),
        },
    )


def set_signal_state(connection: Connection, record: Signal, state: str, reason: str = "") -> str | None:
    """Returns the state it had; None if there is no such signal."""
    before = connection.execute(select(signals.c.state).where(*_names(record))).scalar_one_or_none()
    if before is not None and before != state:
        connection.execute(update(signals).where(*_names(record)).values(state=state, reason=reason))
    return before


def signals_of(connection: Connection, key: Key, *states: str) -> list[Signal]:
    """The signals of a sample in the given states, oldest first."""
    statement = (
        select(signals.c.record)
        .where(signals.c.completion_id == key[0], signals.c.choice == key[1], signals.c.state.in_(states))
        .order_by(signals.c.at, signals.c.id)
    )
    return [decode(Signal, row.record) for row in connection.execute(statement)]


def set_signal_revision(connection: Connection, held: list[Signal], revision: int) -> None:
    """Remember the first revision that holds each signal."""
    for record in held:
        statement = update(signals).where(*_names(record), signals.c.revision.is_(None))
        connection.execute(statement.values(revision=revision))


def add_outcome(connection: Connection, record: Outcome) -> bool:
    """False if this (key, revision, epoch, state) was there already."""
    return insert_new(
        connection,
        outcomes,
        {
            "key": record.key,
            "revision": record.revision,
            "epoch": record.epoch,
            "state": record.state,
            "reason": record.reason,
            "version": record.version,
            "writer": record.writer,
            "at": record.at,
        },
    )


def find_standing(connection: Connection, key: Key) -> tuple[Standing, int] | None:
    """What the ledger says of a generation, and its newest revision."""
    row = connection.execute(select(generations).where(*_is(key))).one_or_none()
    return (Standing(row.state_writer, row.state_epoch, row.state_revision), row.revision) if row else None


def set_standing(connection: Connection, key: Key, record: Outcome) -> None:
    """Make an outcome the state of its generation."""
    connection.execute(
        update(generations)
        .where(*_is(key))
        .values(
            state=record.state,
            state_reason=record.reason,
            state_writer=record.writer,
            state_epoch=record.epoch,
            state_revision=record.revision,
            state_version=record.version,
        )
    )


def _is(key: Key) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return generations.c.completion_id == key[0], generations.c.choice == key[1]


def _names(record: Signal) -> tuple[ColumnElement[bool], ColumnElement[bool], ColumnElement[bool]]:
    return (
        signals.c.completion_id == record.completion_id,
        signals.c.tenant == record.tenant,
        signals.c.id == record.id,
    )
