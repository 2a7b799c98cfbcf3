"""SQL of the join and of the ledger: a batch is read in three statements and written in at most five.

What is read stays locked until the transaction ends, always in the order of its keys, so that two replicas never wait for
each other in a circle. A row that somebody else added meanwhile makes the whole batch stale: it is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from contracts.errors import StaleWrite
from contracts.ledger import PENDING
from contracts.records import Generation, Outcome, Signal, decode_shape, encode
from contracts.tables import generation as generations
from contracts.tables import generation_count
from contracts.tables import outcome as outcomes
from contracts.tables import signal as signals
from contracts.tables.statements import add_to_count, among, insert_all_new, update_all
from pipelines.episodes.epochs import repository as epochs
from pipelines.episodes.join import Standing
from pipelines.episodes.samples import HeldGeneration, HeldSignal, Key, Samples


def load(
    connection: Connection, completion_ids: Collection[str], sample_keys: Collection[str], judged: Collection[str]
) -> Samples:
    """Read what a batch is about.

    Args:
        connection: of the transaction that will save them.
        completion_ids: of every record.
        sample_keys: of the outcomes.
        judged: completions whose signals matter.
    """
    samples = Samples()
    if completion_ids:
        for row in _generations(connection, completion_ids):
            samples.generations[row.completion_id, row.choice] = _held(row)
    if judged:
        samples.hold(_signals(connection, judged))
    if sample_keys:
        for said in epochs.outcomes_of(connection, sample_keys):
            samples.outcomes.setdefault(said.key, {})[said.revision, said.epoch, said.state] = said
    return samples


def due(connection: Connection, now: float, partitions: frozenset[int], limit: int) -> list[Key]:
    """Generations of these partitions whose window has passed; not those that another replica holds just now."""
    statement = (
        select(generations.c.completion_id, generations.c.choice)
        .where(generations.c.closes_at <= now, generations.c.partition.in_(partitions))
        .order_by(generations.c.closes_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [(row.completion_id, row.choice) for row in connection.execute(statement)]


def reject_orphans(connection: Connection, received_before: float, limit: int) -> int:
    """Name what waited too long for an answer that never was logged; returns how many."""
    keys = (signals.c.completion_id, signals.c.tenant, signals.c.id)
    statement = (
        select(*keys)
        .where(signals.c.state == PENDING, signals.c.received_at < received_before)
        .order_by(*keys)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = [dict(row) for row in connection.execute(statement).mappings()]
    update_all(connection, signals, [row | {"state": "rejected", "reason": "never_logged"} for row in rows])
    return len(rows)


def save(connection: Connection, samples: Samples) -> None:
    """Write what is new and what changed.

    Raises:
        StaleWrite: another worker added one of the new rows first.
    """
    held, heard = samples.generations.values(), samples.signals.values()
    add_to_count(connection, generation_count, "duplicate", samples.num_duplicates)
    _insert(connection, generations, [_first_row(item) for item in held if item.is_new])
    _insert(connection, signals, [signal_row(item) for item in heard if item.is_new])
    _insert(connection, outcomes, [_outcome_row(item) for item in samples.new_outcomes])
    changed = [item for item in held if item.is_changed and not item.is_new]
    update_all(connection, generations, [_key_row(item) | _standing_row(item) for item in changed])
    spoken = [item for item in heard if item.is_changed and not item.is_new]
    update_all(connection, signals, [_name_row(item) | _state_row(item) for item in spoken])


def _generations(connection: Connection, completion_ids: Collection[str]) -> Sequence[Row[Any]]:
    wanted = among(connection, generations.c.completion_id, completion_ids)
    statement = select(generations).where(wanted).order_by(generations.c.completion_id, generations.c.choice)
    return connection.execute(statement.with_for_update()).all()


def _signals(connection: Connection, completion_ids: Collection[str]) -> Iterator[HeldSignal]:
    columns = (signals.c.record, signals.c.state, signals.c.reason, signals.c.revision)
    wanted = among(connection, signals.c.completion_id, completion_ids)
    for record, state, reason, revision in connection.execute(select(*columns).where(wanted)):
        yield HeldSignal(decode_shape(Signal, record), state, reason, revision, is_new=False)


def _insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    if insert_all_new(connection, table, rows) != len(rows):
        raise StaleWrite(f"another worker wrote rows of {table.name} first", table=table.name)


def _held(row: Row[Any]) -> HeldGeneration:
    return HeldGeneration(
        record=decode_shape(Generation, row.record),
        partition=row.partition,
        joined_at=row.joined_at,
        closes_at=row.closes_at,
        revision=row.revision,
        state=row.state,
        state_reason=row.state_reason,
        standing=Standing(row.state_writer, row.state_epoch, row.state_revision, row.state_sequence),
        state_version=row.state_version,
        superseded_by=row.superseded_by,
        is_new=False,
    )


def _first_row(held: HeldGeneration) -> dict[str, Any]:
    record = held.record
    return {
        **_key_row(held),
        **_standing_row(held),
        "partition": held.partition,
        "policy": record.policy,
        "tenant": record.tenant,
        "task": record.task,
        "purpose": record.purpose,
        "arm": record.arm,
        "version": record.spans[0].version if record.spans else -1,
        "created_at": record.created_at,
        "joined_at": held.joined_at,
        "request": record.attempt.request if record.attempt else None,
        "retry_count": record.attempt.count if record.attempt else None,
        "record": encode(record),
    }


def _key_row(held: HeldGeneration) -> dict[str, Any]:
    return {"completion_id": held.record.completion_id, "choice": held.record.choice}


def _standing_row(held: HeldGeneration) -> dict[str, Any]:
    return {
        "closes_at": held.closes_at,
        "revision": held.revision,
        "state": held.state,
        "state_reason": held.state_reason,
        "state_writer": held.standing.writer,
        "state_epoch": held.standing.epoch,
        "state_revision": held.standing.revision,
        "state_version": held.state_version,
        "state_sequence": held.standing.sequence,
        "superseded_by": held.superseded_by,
    }


def signal_row(held: HeldSignal) -> dict[str, Any]:
    """The row of a signal that is new here."""
    record = held.record
    return {
        **_name_row(held),
        **_state_row(held),
        "choice": record.choice,
        "name": record.name,
        "submitter": record.submitter.id,
        "at": record.at,
        "received_at": record.received_at,
        "record": encode(record),
    }


def _name_row(held: HeldSignal) -> dict[str, Any]:
    return {"completion_id": held.record.completion_id, "tenant": held.record.tenant, "id": held.record.id}


def _state_row(held: HeldSignal) -> dict[str, Any]:
    return {"state": held.state, "reason": held.reason, "revision": held.revision}


def _outcome_row(record: Outcome) -> dict[str, Any]:
    return {
        "key": record.key,
        "revision": record.revision,
        "epoch": record.epoch,
        "state": record.state,
        "reason": record.reason,
        "version": record.version,
        "writer": record.writer,
        "at": record.at,
        "sequence": record.sequence,
    }
