"""SQL of the join, of tries and of the ledger: a batch is read in four statements and written in at most six.

Rows that were read stay locked until the transaction ends. They are locked in the order of their keys, so that two replicas
never deadlock. If another replica added one of the new rows, the whole batch is stale and is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Table, select, text

from contracts.errors import StaleWrite
from contracts.ledger import PENDING
from contracts.records import Generation, Outcome, Signal, decode_shape, encode
from contracts.tables import IS_HEARD, IS_LIVE, IS_PENDING, generation_count
from contracts.tables import generation as generations
from contracts.tables import outcome as outcomes
from contracts.tables import signal as signals
from contracts.tables.statements import add_to_count, among, among_rows, insert_all_new, update_all
from pipelines.episodes.epochs import repository as epochs
from pipelines.episodes.epochs.chain import LedgerEntry
from pipelines.episodes.lifecycle import Key, SampleState
from pipelines.episodes.samples import HEARD, HeldSignal, Samples, SignalName

_SIGNAL_NAME = (signals.c.completion_id, signals.c.tenant, signals.c.id)
_LOOK_BACK_SECONDS = 7200.0
"""Longer than one try and the ten minutes after it."""
_SWEEP_BACK_SECONDS = 300.0
_MAX_ROWS = 1000
_IS_RETRY = text("retry_count > 0")  # written as in the index: with a bound number the index would not be used
_SMALL_BYTES = 1_024
"""Longer records are not kept decoded."""
_OWN_STATE = ("closes_at", "revision", "superseded_by")


def load(
    connection: Connection,
    completion_ids: Collection[str],
    sample_keys: Collection[str],
    judged: Collection[str],
    named: Collection[SignalName] = (),
) -> Samples:
    """Read the samples of a batch.

    Args:
        connection: its transaction must also save them.
        completion_ids: of all records.
        sample_keys: of all outcomes.
        judged: completions whose signals are needed, as far as they take room.
        named: signals that are needed by their names.
    """
    samples = Samples()
    if completion_ids:
        for row in _generations(connection, completion_ids):
            samples.states.read((row.completion_id, row.choice), _sample(row))
    if judged:
        for held in heard(connection, judged, named):
            samples.read_signal(held)
    if sample_keys:
        for said in epochs.outcomes_of(connection, sample_keys):
            samples.outcomes.setdefault(said.key, {})[said.revision, said.epoch, said.state] = said
    return samples


def due(connection: Connection, now: float, partitions: frozenset[int], limit: int) -> list[Key]:
    """Samples of these partitions whose window has passed, without those that another replica has locked.

    A large import has a million at once: its samples take the room that live ones leave.
    """
    columns, found = generations.c, list[Key]()
    passed = select(columns.completion_id, columns.choice).where(
        columns.closes_at <= now, columns.partition.in_(partitions)
    )
    for which in (IS_LIVE, f"NOT {IS_LIVE}"):
        if (room := limit - len(found)) > 0:
            oldest = passed.where(text(which)).order_by(columns.closes_at).limit(room)
            rows = connection.execute(oldest.with_for_update(skip_locked=True))
            found += [(row.completion_id, row.choice) for row in rows]
    return found


def reject_orphans(connection: Connection, received_before: float, limit: int) -> int:
    """Reject signals that waited too long for an answer that was never logged; returns how many."""
    came = signals.c.received_at
    old = select(*_SIGNAL_NAME).where(text(IS_PENDING), came < received_before).order_by(came).limit(limit)
    rows = [dict(row) for row in connection.execute(old.with_for_update(skip_locked=True)).mappings()]
    update_all(connection, signals, [row | {"state": "rejected", "reason": "never_logged"} for row in rows])
    return len(rows)


def save(connection: Connection, samples: Samples) -> None:
    """Write what is new and what changed. What was told about a sample before its record was read counts from now on.

    Raises StaleWrite: another worker added one of the new rows first.
    """
    states, signal_rows = samples.states, samples.signals
    add_to_count(connection, generation_count, "duplicate", samples.num_duplicates)
    _insert(connection, generations, [_first_row(item) for item in states.new])
    _insert(connection, signals, [signal_row(item) for item in signal_rows.new])
    _insert(connection, outcomes, [_outcome_row(item) for item in samples.new_outcomes])
    update_all(connection, generations, [_key_row(item) | _state_row(item) for item in states.changed])
    update_all(connection, signals, [_signal_key(item) | _signal_state(item) for item in signal_rows.changed])
    if early := _told_early(connection, [*states.new, *states.changed]):
        epochs.judge_again(connection, early)


def _told_early(connection: Connection, samples: Sequence[SampleState]) -> list[str]:
    """Keys of pending samples whose outcome is already here: after a restore, Kafka tells outcomes again in any order."""
    pending = {sample.record.key: sample.revision for sample in samples if sample.ledger.state == PENDING}
    if not pending:
        return []
    columns = (outcomes.c.key, outcomes.c.revision, outcomes.c.writer)
    told = connection.execute(select(*columns).where(among(connection, outcomes.c.key, pending)))
    return sorted({row.key for row in told if row.writer == "training" or row.revision >= max(1, pending[row.key])})


def _generations(connection: Connection, completion_ids: Collection[str]) -> Sequence[Row[Any]]:
    wanted = among(connection, generations.c.completion_id, completion_ids)
    statement = select(generations).where(wanted).order_by(generations.c.completion_id, generations.c.choice)
    return connection.execute(statement.with_for_update()).all()


def heard(
    connection: Connection, completion_ids: Collection[str], named: Collection[SignalName] = ()
) -> Iterator[HeldSignal]:
    """The signals about these completions that take room, see `join.crowded_out`, by the index `ix_signal_heard`.

    And those of these names that do not, by their primary key. There must be at least one completion.
    """
    columns = (signals.c.record, signals.c.state, signals.c.reason, signals.c.revision)
    statement: Any = select(*columns).where(among(connection, signals.c.completion_id, completion_ids), text(IS_HEARD))
    if named:
        others = select(*columns).where(among_rows(connection, _SIGNAL_NAME, named), signals.c.reason.not_in(HEARD))
        if connection.dialect.name != "sqlite":  # redundant, see `among`
            firsts = [each[0] for each in named]
            others = others.where(signals.c.completion_id.between(min(firsts), max(firsts)))
        statement = statement.union_all(others)
    for record, *state in connection.execute(statement):
        yield HeldSignal(_decoded(record) if len(record) <= _SMALL_BYTES else decode_shape(Signal, record), *state)


@lru_cache(maxsize=4_096)
def _decoded(record: bytes) -> Signal:
    """In a flood each batch reads the same rows."""
    return decode_shape(Signal, record)


def _insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    if insert_all_new(connection, table, rows) != len(rows):
        raise StaleWrite(f"another worker wrote rows of {table.name} first", table=table.name)


def _sample(row: Row[Any]) -> SampleState:
    own = {name: getattr(row, name) for name in ("partition", "joined_at", "offset", *_OWN_STATE)}
    ledger = LedgerEntry(*(getattr(row, name) for name in LedgerEntry._fields))
    return SampleState(decode_shape(Generation, row.record), ledger=ledger, **own)


def _first_row(sample: SampleState) -> dict[str, Any]:
    record = sample.record
    return {
        **_key_row(sample),
        **_state_row(sample),
        **{name: getattr(sample, name) for name in ("partition", "offset", "joined_at")},
        **{name: getattr(record, name) for name in ("policy", "tenant", "task", "purpose", "arm", "created_at")},
        "version": record.spans[0].version if record.spans else -1,
        "request": record.attempt.request if record.attempt else None,
        "retry_count": record.attempt.count if record.attempt else None,
        "record": encode(record),
    }


def _key_row(sample: SampleState) -> dict[str, Any]:
    return dict(zip(("completion_id", "choice"), sample.key, strict=True))


def _state_row(sample: SampleState) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in _OWN_STATE} | sample.ledger._asdict()


def signal_row(held: HeldSignal) -> dict[str, Any]:
    """The row of a signal that the table does not hold yet."""
    record = held.record
    own = {name: getattr(record, name) for name in ("choice", "name", "at", "received_at")}
    return {
        **_signal_key(held),
        **_signal_state(held),
        **own,
        "submitter": record.submitter.id,
        "record": encode(record),
    }


def _signal_key(held: HeldSignal) -> dict[str, Any]:
    return {"completion_id": held.record.completion_id, "tenant": held.record.tenant, "id": held.record.id}


def _signal_state(held: HeldSignal) -> dict[str, Any]:
    return {"state": held.state, "reason": held.reason, "revision": held.revision}


def _outcome_row(record: Outcome) -> dict[str, Any]:
    return {name: getattr(record, name) for name in epochs.OUTCOME_COLUMNS}


class RepeatedRequests(NamedTuple):
    """Requests that were sent again, and all their stored completions."""

    requests: frozenset[str] = frozenset()
    completion_ids: frozenset[str] = frozenset()


def repeated(connection: Connection, arriving: Iterable[Generation]) -> RepeatedRequests:
    """The requests of these records that were sent again, by one of the records or by a stored one."""
    tried = [(record, record.attempt) for record in arriving if record.attempt is not None]
    if not tried:
        return RepeatedRequests()
    again = {attempt.request for _, attempt in tried if attempt.count > 0}
    others = {attempt.request for _, attempt in tried} - again
    if others:
        wanted = among(connection, generations.c.request, others)
        again |= set(connection.execute(select(generations.c.request).where(wanted, _IS_RETRY)).scalars())
    return _tries(connection, again, min(record.created_at for record, _ in tried))


def lately_repeated(connection: Connection, now: float) -> RepeatedRequests:
    """Requests whose later tries were joined in the last minutes."""
    columns = (generations.c.request, generations.c.created_at)
    lately = generations.c.joined_at >= now - _SWEEP_BACK_SECONDS
    rows = connection.execute(select(*columns).where(_IS_RETRY, lately).limit(_MAX_ROWS)).all()
    return _tries(connection, {row.request for row in rows}, min((row.created_at for row in rows), default=now))


def _tries(connection: Connection, requests: Collection[str], since: float) -> RepeatedRequests:
    if not requests:
        return RepeatedRequests()
    wanted = among(connection, generations.c.request, requests)
    fresh = generations.c.created_at >= since - _LOOK_BACK_SECONDS
    newest = select(generations.c.completion_id).where(wanted, fresh).order_by(generations.c.created_at.desc())
    found = connection.execute(newest.limit(_MAX_ROWS)).scalars()
    return RepeatedRequests(frozenset(requests), frozenset(found))
