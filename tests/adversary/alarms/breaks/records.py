"""Records and rows that are lost, damaged, or from nobody that the database knows."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import delete, insert, select, update

from contracts.event_log import Message
from contracts.ids import sample_key
from contracts.records import Outcome
from contracts.tables import dead_letter, generation, position, training_step
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES
from runtime.log.dead_letters import MAX_IN_A_ROW, OPEN, SKIPPED
from runtime.log.loss_detection import NOTE_SECONDS
from runtime.log.outbox import message
from runtime.settings import load_settings
from tests.adversary.alarms.breaks.kills import stopped
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.world import WatchedHome, until

_UNISSUED_EPOCH = 1_000_000
_NOT_A_RECORD = b"\xc1 not msgpack"
_PENDING, _JOIN_SECONDS = "pending", 60.0


@contextmanager
def bad_record(world: WatchedHome) -> Iterator[None]:
    """One record that nobody can read. Afterwards an operator skips it."""
    append(world, [Message(GENERATIONS, 0, "chatcmpl-none/0", _NOT_A_RECORD)])
    try:
        yield
    finally:
        skip_dead_letters(world)


@contextmanager
def many_bad_records(world: WatchedHome) -> Iterator[None]:
    """More records in a row that nobody can read than a worker accepts. Afterwards an operator skips them."""
    append(
        world, [Message(GENERATIONS, 0, f"chatcmpl-none:{number}", _NOT_A_RECORD) for number in range(2 * MAX_IN_A_ROW)]
    )
    try:
        yield
    finally:
        for _ in range(2 * MAX_IN_A_ROW):  # the rest of them is read, and halts it again
            skip_dead_letters(world)
            time.sleep(1.0)


@contextmanager
def unknown_trainer(world: WatchedHome) -> Iterator[None]:
    """An outcome under an epoch that the database never issued."""
    row = one_row(world)
    key = sample_key(row.completion_id, row.choice)
    record = Outcome(
        key=key, revision=1, epoch=_UNISSUED_EPOCH, state="trained", version=1, writer="training", at=time.time(), sequence=1
    )  # fmt: skip
    append(world, [message(OUTCOMES, key, record)])
    yield


@contextmanager
def lost_row(world: WatchedHome) -> Iterator[None]:
    """A row of the join is gone, as after a wrong repair."""
    row = one_row(world)
    mine = (generation.c.completion_id == row.completion_id, generation.c.choice == row.choice)
    with world.database() as connection:
        connection.execute(delete(generation).where(*mine))
    try:
        yield
    finally:
        with world.database() as connection:
            connection.execute(insert(generation).values(row._asdict()))


@contextmanager
def damaged_row(world: WatchedHome) -> Iterator[None]:
    """An answer that waits for its window has a record that nobody can read, so closing windows fails."""
    until(lambda: one_row(world, _PENDING) is not None, _JOIN_SECONDS, "no answer waits for its window")
    row = one_row(world, _PENDING)
    mine = (generation.c.completion_id == row.completion_id, generation.c.choice == row.choice)

    def write(**values: Any) -> None:
        with world.database() as connection:
            connection.execute(update(generation).where(*mine).values(**values))

    write(record=_NOT_A_RECORD, closes_at=time.time())
    try:
        yield
    finally:
        write(record=row.record)


@contextmanager
def lost_records(world: WatchedHome) -> Iterator[None]:
    """Records that rewards had not read yet are gone, as after a disk that was restored from yesterday."""
    path = world.home / "log" / f"{EPISODES}.db"
    mine = (position.c.consumer_group == "rewards", position.c.topic == EPISODES)
    with stopped(world, "rewards"):
        time.sleep(NOTE_SECONDS + 5.0)  # users work, and episodes notes how far the log goes
        world.end_users()
        time.sleep(5.0)
        with world.database() as connection:
            read = {row.partition: row.next_offset for row in connection.execute(select(position).where(*mine))}
        with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as log:
            taken = [
                row
                for partition, offset in read.items()
                for row in log.execute("SELECT * FROM record WHERE partition = ? AND offset >= ?", (partition, offset))
            ]
            log.executemany("DELETE FROM record WHERE partition = ? AND offset = ?", [row[:2] for row in taken])
            try:
                yield
            finally:
                log.executemany("INSERT OR IGNORE INTO record VALUES (?, ?, ?, ?, ?, ?)", taken)


@contextmanager
def undrawable_row(world: WatchedHome) -> Iterator[None]:
    """A row of the trainer's figures that no chart can draw."""
    with world.database() as connection:
        [row] = connection.execute(select(training_step).order_by(training_step.c.step.desc()).limit(1)).all()
        mine = (training_step.c.epoch == row.epoch, training_step.c.step == row.step)
        connection.execute(update(training_step).where(*mine).values(metrics=["not", "figures"]))
    try:
        yield
    finally:
        with world.database() as connection:
            connection.execute(update(training_step).where(*mine).values(metrics=row.metrics))


def append(world: WatchedHome, messages: list[Message]) -> None:
    """Put messages on the log of the home."""
    with closing(load_settings(world.home).event_log()) as event_log:
        event_log.append(messages)


def one_row(world: WatchedHome, state: str | None = None) -> Any:
    """The newest row of the join; None if there is none in this state."""
    found = select(generation).order_by(generation.c.created_at.desc())
    with world.database() as connection:
        return connection.execute(found if state is None else found.where(generation.c.state == state)).first()


def skip_dead_letters(world: WatchedHome) -> None:
    """Deal with every open dead letter, as `millrace dead-letters skip` does."""
    with world.database() as connection:
        connection.execute(update(dead_letter).where(dead_letter.c.state == OPEN).values(state=SKIPPED))


def breaks() -> tuple[Break, ...]:
    """Those of an embedded home with users."""
    return (
        Break("a record that nobody can read", "DeadLetters", "", bad_record),
        Break("a bad record that nobody deals with", "DeadLettersWait", "", bad_record, hurried=True),
        Break("more bad records than a worker accepts", "TooManyDeadLetters", "", many_bad_records),
        Break("outcomes of a trainer that nobody knows", "TrainerUnknown", "", unknown_trainer, users=True),
        Break("a row of the join is gone", "LedgerUnexplained", "", lost_row, users=True, hurried=True),
        Break("an answer that waits is damaged", "TickFails", "", damaged_row, users=True),
        Break("figures that no chart can draw", "NotShown", "", undrawable_row, users=True),
        Break("records that nobody had read are gone", "LogLost", "", lost_records, users=True, alone=True),
    )
