"""Accepts a loss of the log: moves positions into the log that exists, and gives a final state to everything in the lost part.

Everything that the database has is sent again by its usual sender (docs/decisions/0001, "When the log is lost"): signals by feedback's
outbox, episodes by the join's clock as later revisions, outcomes by the join's outbox. Only answers that the join had not read are
lost; they are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, String, and_, cast, delete, exists, or_, select, update

from contracts import tables
from contracts.errors import InvalidRecord
from contracts.event_log import Message, TopicState
from contracts.ids import sample_key
from contracts.ledger import PENDING, effective_state
from contracts.records import SIGNALLED, Generation, Outcome, Signal, State, decode
from contracts.tables.statements import add_to_count, insert_or_update
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.log.loss_detection import FOLLOWERS, LostRange, PositionKey, read_positions, write_known
from runtime.log.outbox import message, put
from runtime.seals import forget_log

MOVED = "moved"
"""In `generation_count`: by how many records the join's positions were moved."""
_JOIN, _FEEDBACK, _TRAINING = "episodes", "feedback", "training"
_AFTER_THE_WINDOW_SECONDS = 0.001
_RETOLD = {EPISODES, EXPERIENCES, OUTCOMES}
_GONE = {"missing", "another"}


class AcceptedLoss(NamedTuple):
    """The effects of an accepted loss."""

    num_generations: int
    """Answers that the join had not read: lost."""
    num_signals: int
    num_episodes: int
    num_fates: int
    num_unscored: int
    is_training_hit: bool


class _Fate(NamedTuple):
    state: State
    reason: str


def accept_loss(
    connection: Connection,
    lost: Sequence[LostRange],
    found: Mapping[str, TopicState],
    tasks: Mapping[str, Task],
    now: float,
) -> AcceptedLoss:
    """See the module. `found`: the extent of the log now."""
    topics = {item.topic for item in lost}
    num_generations = sum(item.unread.get(_JOIN, 0) for item in lost if item.topic == GENERATIONS)
    _move_positions(connection, lost, found)
    _remember(connection, lost, found, now)
    if GENERATIONS in topics:
        forget_log(connection)
    num_signals = _send_signals(connection) if SIGNALS in topics else 0
    partitions = {item.partition for item in lost if item.topic in _RETOLD}
    episodes, fates, unscored = _repeat(connection, partitions, tasks, now)
    return AcceptedLoss(num_generations, num_signals, episodes, fates, unscored, EXPERIENCES in topics)


def num_written_off(connection: Connection) -> int:
    """Answers that were only in a lost log."""
    statement = select(tables.log_topic.c.num_lost).where(tables.log_topic.c.topic == GENERATIONS)
    return connection.execute(statement).scalar_one_or_none() or 0


def _move_positions(connection: Connection, lost: Sequence[LostRange], found: Mapping[str, TopicState]) -> None:
    stored = read_positions(connection)
    moved = 0
    for item in lost:
        state = found.get(item.topic)
        for group in item.unread:
            place = (group, item.topic, item.partition)
            offset = stored.get(place, 0)
            stored[place] = wanted = _new_position(offset, item.why, state, item.partition)
            _store_position(connection, place, wanted)
            moved += wanted - offset if place[:2] == (_JOIN, GENERATIONS) else 0
    add_to_count(connection, tables.generation_count, MOVED, moved)
    # Followers begin at the end.
    connection.execute(delete(tables.position).where(tables.position.c.consumer_group.in_(FOLLOWERS)))
    # The trainer's positions are in its checkpoint. At its next start it begins here or earlier.
    for item in lost:
        if item.topic == EXPERIENCES:
            end = _new_position(item.first, item.why, found.get(EXPERIENCES), item.partition)
            _store_position(connection, (_TRAINING, EXPERIENCES, item.partition), end)


def _store_position(connection: Connection, place: PositionKey, offset: int) -> None:
    row = dict(zip(("consumer_group", "topic", "partition"), place, strict=True))
    insert_or_update(connection, tables.position, row | {"next_offset": offset}, ("next_offset",))


def _new_position(offset: int, why: str, state: TopicState | None, partition: int) -> int:
    if state is None:
        return 0
    first, end = state.beginnings.get(partition, 0), state.ends.get(partition, 0)
    return first if why in _GONE else min(max(offset, first), end)


def _remember(connection: Connection, lost: Sequence[LostRange], found: Mapping[str, TopicState], now: float) -> None:
    for topic in {item.topic for item in lost}:
        # If it is missing, the next start makes the topic and notes its identity.
        write_known(connection, topic, found.get(topic, TopicState("", {}, {})), now)
        # A record is lost once, even if several groups had not read it.
        number = sum(max(item.unread.values(), default=0) for item in lost if item.topic == topic)
        columns = {"num_lost": tables.log_topic.c.num_lost + number, "lost_at": now}
        connection.execute(update(tables.log_topic).where(tables.log_topic.c.topic == topic).values(**columns))


def _send_signals(connection: Connection) -> int:
    """Send acknowledged signals again that were not joined, and retractions that the join has not seen."""
    columns = tables.received_signal.c
    joined = and_(tables.signal.c.tenant == columns.tenant, tables.signal.c.id == columns.id)
    waits = and_(tables.waiting_signal.c.tenant == columns.tenant, tables.waiting_signal.c.id == columns.id)
    is_unseen = and_(columns.retracted_at.is_not(None), tables.signal.c.state != "retracted")
    unjoined = (
        select(columns.record, columns.retracted_at)
        .outerjoin(tables.signal, joined)
        .where(~exists().where(waits), or_(tables.signal.c.state.is_(None), is_unseen))
    )
    messages = []
    for row in connection.execute(unjoined.order_by(columns.received_at)).all():
        record = decode(Signal, row.record)
        if not record.completion_id:
            continue
        if row.retracted_at is not None:
            record = msgspec.structs.replace(record, retracted=True)
        messages.append(message(SIGNALS, record.key, record))
    put(connection, _FEEDBACK, messages)
    return len(messages)


def _repeat(
    connection: Connection, partitions: set[int], tasks: Mapping[str, Task], now: float
) -> tuple[int, int, int]:
    """Repeat everything whose next message may have been lost; returns how many episodes, outcomes and unscored samples."""
    if not partitions:
        return 0, 0, 0
    emitted, fates, unscored = 0, [], 0
    for completion_id, choice, revision, wire, superseded_by in _undecided(connection, partitions):
        try:
            record = decode(Generation, wire)
        except InvalidRecord:
            record = None
        task = tasks.get(record.task) if record else None
        fate = _Fate("filtered", "superseded") if superseded_by else _fate_at_arrival(record, task, revision)
        if fate is None and record is not None and task is not None:
            due = max(now, record.finished_at + task.window_seconds) + _AFTER_THE_WINDOW_SECONDS
            key = (tables.generation.c.completion_id == completion_id, tables.generation.c.choice == choice)
            connection.execute(update(tables.generation).where(*key).values(closes_at=due))
            emitted += 1
            continue
        unscored += fate is None
        sample = sample_key(completion_id, choice)
        fates.append(_outcome_message(sample, max(1, revision), fate or _Fate("unscored", "log_lost"), now))
    put(connection, _JOIN, fates)
    return emitted, len(fates) - unscored, unscored


def _undecided(connection: Connection, partitions: set[int]) -> Sequence[Any]:
    """Generations that would stay as they are: their newest revision is undecided, and no window is open."""
    columns = tables.generation.c
    key = columns.completion_id.concat(":").concat(cast(columns.choice, String))
    decided = exists().where(tables.outcome.c.key == key, tables.outcome.c.revision >= columns.revision)
    is_open = or_(effective_state() == PENDING, and_(columns.state == "trained", ~decided))
    wanted = columns["completion_id", "choice", "revision", "record", "superseded_by"]
    here = (columns.partition.in_(sorted(partitions)), columns.closes_at.is_(None), is_open)
    return connection.execute(select(*wanted).where(*here)).all()


def _fate_at_arrival(record: Generation | None, task: Task | None, revision: int) -> _Fate | None:
    """The decision of the join when the generation arrived; None if it was sent on to rewards."""
    if record is None:
        return None
    if record.finish_reason in {"cancelled", "error"}:
        return _Fate("cancelled", "client_left" if record.finish_reason == "cancelled" else "engine_failed")
    if record.purpose not in SIGNALLED:
        return _Fate("filtered", record.purpose)
    if task is None:
        return _Fate("filtered", "unknown_task") if revision == 0 else None
    # The join filtered it on arrival, by a curation rule. Which rule is lost.
    return _Fate("filtered", "log_lost") if revision == 0 else None


def _outcome_message(key: str, revision: int, fate: _Fate, now: float) -> Message:
    record = Outcome(
        key=key, revision=revision, epoch=0, state=fate.state, reason=fate.reason, writer="episodes", at=now
    )
    return message(OUTCOMES, key, record)


def begin_no_later(connection: Connection, positions: dict[str, dict[int, int]]) -> None:
    """Move the positions of the trainer's checkpoint back to the log that exists, if the other was lost meanwhile."""
    for row in connection.execute(select(tables.position).where(tables.position.c.consumer_group == _TRAINING)):
        held = positions.setdefault(row.topic, {})
        held[row.partition] = min(held.get(row.partition, 0), row.next_offset)


def forget_training_positions(connection: Connection) -> None:
    """Delete the positions that `begin_no_later` applied, once they are in the trainer's newest checkpoint."""
    connection.execute(delete(tables.position).where(tables.position.c.consumer_group == _TRAINING))
