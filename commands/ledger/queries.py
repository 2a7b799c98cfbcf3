"""SQL of `millrace audit`: the database's side of the ledger, from one snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, String, Table, and_, cast, exists, func, select, tuple_

from contracts.ids import parse_sample_key, sample_key
from contracts.ledger import PENDING, effective_state
from contracts.tables import (
    dead_letter,
    generation,
    generation_count,
    ledger_change,
    ledger_epoch,
    log_topic,
    outcome,
    received_signal,
    signal,
    waiting_signal,
)
from contracts.topics import GENERATIONS, SIGNALS
from pipelines.episodes.epochs.chain import Epochs, entry_of
from pipelines.episodes.epochs.repository import outcomes_of
from runtime.log.dead_letters import OPEN, REDRIVEN, SKIPPED
from runtime.log.outbox import waiting
from runtime.log.recovery import JOIN, join_positions
from runtime.log.redrive import SENDER, RecordPlace
from runtime.seals import PAGE, Seal, SealKey, pages, read_marks, read_seals, rows_after

Condition = ColumnElement[bool]
_NOT_DECISIVE = ("late", PENDING)
_KEY = generation.c.completion_id.concat(":").concat(cast(generation.c.choice, String))


class WrongState(NamedTuple):
    """A generation whose state is not the one that its outcomes give."""

    key: str
    state: str
    expected: str
    """Empty if there is no such outcome at all."""


class DeadPlaces(NamedTuple):
    """Where the generations are that the join could not process, by what became of them."""

    open: frozenset[RecordPlace]
    skipped: frozenset[RecordPlace]
    num_redriven: int


class KnownRecords(NamedTuple):
    """What the database knows of the log's generations, beside rows."""

    positions: dict[int, int]
    """Partition to the next offset of the join."""
    letters: DeadPlaces
    marks: dict[int, int]
    """Partition to the offset up to which the log need not be read."""
    seals: dict[SealKey, Seal]
    lost_at: float | None
    """When the last loss of generations was accepted, UTC epoch seconds."""

    @property
    def closed(self) -> set[str]:
        """Days whose rows need not be read, if no record of them comes."""
        return {key.day for key, seal in self.seals.items() if seal.closed_at is not None}


def known_records(connection: Connection, *, with_marks: bool) -> KnownRecords:
    """`with_marks` False: as if nothing were sealed; what was dropped stays."""
    marks, seals = read_marks(connection), read_seals(connection)
    if not with_marks:
        marks = {}
        seals = {key: Seal(dropped=s.dropped, dropped_at=s.dropped_at, states=s.states) for key, s in seals.items()}
    lost_at = connection.execute(select(log_topic.c.lost_at).where(log_topic.c.topic == GENERATIONS))
    positions, letters = join_positions(connection, GENERATIONS), _letters_of_join(connection)
    return KnownRecords(positions, letters, marks, seals, lost_at.scalar_one_or_none())


def stay(connection: Connection) -> None:
    """A server ends a transaction that waits too long for its next statement: this is one."""
    connection.execute(select(1))


def _letters_of_join(connection: Connection) -> DeadPlaces:
    columns = dead_letter.c["topic", "partition", "offset", "state"]
    mine = (dead_letter.c.consumer_group == JOIN, dead_letter.c.topic == GENERATIONS, dead_letter.c.offset >= 0)
    places: dict[str, set[RecordPlace]] = {OPEN: set(), SKIPPED: set(), REDRIVEN: set()}
    for topic, partition, offset, state in connection.execute(select(*columns).where(*mine)):
        places.setdefault(state, set()).add(RecordPlace(topic, partition, offset))
    return DeadPlaces(frozenset(places[OPEN]), frozenset(places[SKIPPED]), len(places[REDRIVEN]))


def open_letters(connection: Connection) -> dict[tuple[str, str], int]:
    """Process and topic to the number of open dead letters."""
    columns = (dead_letter.c.consumer_group, dead_letter.c.topic)
    statement = select(*columns, func.count()).where(dead_letter.c.state == OPEN).group_by(*columns).order_by(*columns)
    return {(process, topic): number for process, topic, number in connection.execute(statement)}


def keys_being_sent_again(connection: Connection) -> list[str]:
    """Keys of redriven generations that are not in the log yet."""
    return [item.key for item in waiting(connection, GENERATIONS, SENDER)]


def counts_without_row(connection: Connection) -> dict[str, int]:
    """Records that the join read and that have no row, by reason: duplicate, dropped, moved."""
    rows = connection.execute(select(generation_count.c.state, generation_count.c["count"]))
    return {state: number for state, number in rows}  # noqa: C416 a row is not a tuple for dict()


def rows_of(connection: Connection, which: Sequence[Condition], *columns: str) -> Iterator[Any]:
    """Generations in the order of their keys: `completion_id`, `choice` and other columns."""
    return pages(connection, *which, columns=[generation.c[name] for name in columns])


def keys_of(connection: Connection, which: Sequence[Condition]) -> Iterator[Sequence[str]]:
    """Sample keys in the order of their ids, page by page: the database puts them together."""
    statement = select(_KEY).where(*which).order_by(generation.c.completion_id, generation.c.choice).limit(PAGE)
    keys = connection.execute(statement).scalars().all()
    while keys:
        yield keys
        completion_id, _, choice = keys[-1].rpartition(":")
        keys = connection.execute(statement.where(*rows_after(completion_id, int(choice)))).scalars().all()


def ids_between(first: str, after: str) -> Condition:
    """Rows of a range of completion ids."""
    return and_(generation.c.completion_id >= first, generation.c.completion_id < after)


def ids_outside(ranges: Collection[tuple[str, str]]) -> list[list[Condition]]:
    """Rows outside of all these ranges, as one list of conditions for each gap between them: a database seeks to each."""
    gaps: list[list[Condition]] = []
    after, column = "", generation.c.completion_id
    for first, end in [*sorted(ranges), ("", "")]:
        if not after or not first or after < first:
            gaps.append([*([column >= after] if after else []), *([column < first] if first else [])])
        after = end
    return gaps


def users_rows(connection: Connection) -> Iterator[tuple[str, str]]:
    """Key and effective state of every generation for a user."""
    state = effective_state().label("state")
    for row in pages(connection, generation.c.purpose == "user", columns=[state]):
        yield sample_key(row.completion_id, row.choice), row.state


def has_rows(connection: Connection, keys: Collection[str]) -> set[str]:
    """Which of these sample keys have a row."""
    found: set[str] = set()
    wanted = sorted(keys)
    for start in range(0, len(wanted), 500):
        ids = {parse_sample_key(key)[0] for key in wanted[start : start + 500] if key.rpartition(":")[2].isdecimal()}
        statement = select(generation.c.completion_id, generation.c.choice).where(generation.c.completion_id.in_(ids))
        found |= {sample_key(row.completion_id, row.choice) for row in connection.execute(statement)}
    return found & set(wanted)


def first_pending(connection: Connection) -> str | None:
    """The first completion id that is pending."""
    statement = select(func.min(generation.c.completion_id)).where(effective_state() == PENDING)
    return connection.execute(statement).scalar_one_or_none()


def accepted_signals(connection: Connection) -> Iterator[tuple[str, str]]:
    """Tenant and id of every acknowledged signal."""
    return _names(connection, received_signal, received_signal.c.tenant, received_signal.c.id)


def joined_signals(connection: Connection) -> Iterator[tuple[str, str]]:
    """Tenant and id of every signal that the join has seen."""
    return _names(connection, signal, signal.c.completion_id, signal.c.tenant, signal.c.id)


def waiting_signals(connection: Connection) -> Iterator[tuple[str, str]]:
    """Tenant and id of the signals whose key has no answer yet."""
    return _names(connection, waiting_signal, waiting_signal.c.tenant, waiting_signal.c.id)


def signals_under_way(connection: Connection) -> Iterator[bytes]:
    """Records of signals on their way to the log, and of those that the join could not process and with which nobody has dealt."""
    yield from (item.value for item in waiting(connection, SIGNALS))
    mine = (dead_letter.c.consumer_group == JOIN, dead_letter.c.topic == SIGNALS, dead_letter.c.state == OPEN)
    yield from connection.execute(select(dead_letter.c.value).where(*mine)).scalars()


def wrong_states(connection: Connection, which: Sequence[Condition]) -> Iterator[WrongState]:
    """Generations with a state that nobody told, and pending ones that somebody decided."""
    columns = generation.c["completion_id", "choice", "state", "revision"]
    told = exists().where(
        outcome.c.key == _KEY,
        outcome.c.revision == generation.c.state_revision,
        outcome.c.epoch == generation.c.state_epoch,
        outcome.c.state == generation.c.state,
    )
    for row in connection.execute(select(*columns).where(*which, generation.c.state != PENDING, ~told)):
        yield WrongState(sample_key(row.completion_id, row.choice), row.state, "")
    if connection.execute(select(ledger_change.c.id).limit(1)).first() is not None:
        return  # the join is judging outcomes again
    starts = connection.execute(select(ledger_epoch.c.epoch, ledger_epoch.c.valid_through))
    epochs = Epochs({row.epoch: row.valid_through for row in starts})
    decided = exists().where(outcome.c.key == _KEY, outcome.c.state.not_in(_NOT_DECISIVE))
    suspects = connection.execute(select(*columns).where(*which, generation.c.state == PENDING, decided)).all()
    for start in range(0, len(suspects), PAGE // 20):
        some = {sample_key(row.completion_id, row.choice): row for row in suspects[start : start + PAGE // 20]}
        said: dict[str, list[Any]] = {}
        for item in outcomes_of(connection, list(some)):
            said.setdefault(item.key, []).append(item)
        for name, row in some.items():
            if (entry := entry_of(said.get(name, ()), epochs, row.revision)).state != PENDING:
                yield WrongState(name, PENDING, entry.state)


def _names(connection: Connection, table: Table, *key: Column[Any]) -> Iterator[tuple[str, str]]:
    statement = select(*key).select_from(table).order_by(*key).limit(PAGE)
    rows = connection.execute(statement).all()
    while rows:
        for row in rows:
            yield row[-2], row[-1]
        rows = connection.execute(statement.where(tuple_(*key) > tuple(rows[-1]))).all()
