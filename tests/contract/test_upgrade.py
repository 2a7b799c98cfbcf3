"""A database of the first release, with samples on their way, is brought to the newest migration and works on."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, Table, insert, inspect, select

from contracts import assignments, holds, rejection, rollback
from contracts.assignments import CANARY, CANDIDATE, LIVE, SLOTS, TRAINING
from contracts.errors import Conflict, Held, InvalidValue
from contracts.event_log import Message
from contracts.holdout import set_holdout
from contracts.ledger import generation_counts
from contracts.records import Episode, Experience, Generation, Outcome, Record, Signal, decode, encode
from contracts.sampling import Span
from contracts.tables import train_answer, vote
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from contracts.wire import unpacked
from pipelines.episodes.handler import EpisodesHandler
from pipelines.release.train.reading.intake import TrainIntake
from pipelines.release.train.standing import TrainSlots
from rewards.repository import stored_scores
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.days import is_partition, make_days, migrate
from runtime.log import outbox
from runtime.log.local import LocalLog
from runtime.metrics import TRAIN_LEFT_OUT
from runtime.train_settings import TrainSettings
from runtime.worker import Worker
from tests.contract.conftest import KINDS, sqlite_url
from tests.fakes import BOOKING_TASK, a_draw, a_generation, a_signal, everything, message
from tests.hostile import an_experience
from tests.worlds.release.track import POLICY, TrackWorld
from tests.worlds.servers.postgres import create_migrated

ROOT = Path(__file__).parent.parent.parent
FIRST = "c2e3193157b5"
BEFORE_NUMBERS = "e19ec36c858b"
BEFORE_TRAINS = "a4d6c1e97f02"
TASKS = {"booking": BOOKING_TASK}
ADDED = {"join_key", "ask_probability", "provisional", "propensity", "seconds", "draw"}
"""Fields that records of the first release lack; those of the last release lack `draw`."""


def go_to(database: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    with database.transaction() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def go_to_last(database: Database) -> None:
    """As the last release left it."""
    go_to(database, BEFORE_TRAINS)


@pytest.fixture(params=KINDS)
def last_release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """With the tables of the last release."""
    opened = Database(sqlite_url(tmp_path) if request.param == "sqlite" else create_migrated(make=go_to_last))
    if request.param == "sqlite":
        go_to_last(opened)
    yield opened
    opened.close()


def as_it_was(record: Record) -> bytes:
    """The wire form that the first release gave a record."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(item) for name, item in value.items() if name not in ADDED}
        return [without(item) for item in value] if isinstance(value, list) else value

    return msgspec.msgpack.encode(without(msgspec.msgpack.decode(unpacked("record", encode(record)))))


def write(connection: Connection, into: str, /, **row: object) -> None:
    """Into a table as it is, not as ours say."""
    connection.execute(insert(Table(into, MetaData(), autoload_with=connection)).values(row))


def write_generation(connection: Connection, record: Generation, **standing: object) -> None:
    row = {
        "completion_id": record.completion_id, "choice": 0, "partition": 0, "policy": "booking", "task": "booking",
        "purpose": "user", "arm": "live", "version": 0, "created_at": 100.0, "joined_at": 102.0, "closes_at": None,
        "revision": 0, "state": "pending", "state_reason": "", "state_writer": "", "state_epoch": 0, "state_revision": 0,
        "record": as_it_was(record),
    }  # fmt: skip
    write(connection, "generation", **(row | standing))


def write_signal(connection: Connection, record: Signal, **state: object) -> None:
    row = {
        "completion_id": record.completion_id, "tenant": "default", "id": record.id, "choice": 0, "name": record.name,
        "submitter": record.submitter.id, "at": 102.0, "received_at": 102.0, "state": "pending", "reason": "",
        "revision": None, "record": as_it_was(record),
    }  # fmt: skip
    write(connection, "signal", **(row | state))


def message_of(topic: str, record: Generation | Signal | Episode) -> Message:
    return outbox.message(topic, record.key, record)._replace(value=as_it_was(record))


def test_samples_on_their_way_go_on_with_the_tables_of_the_newest_release(
    empty_database: Database, event_log: LocalLog
) -> None:
    """One was scored and is heard of again, one waits for its window, one is an episode in the log, one is not joined."""
    go_to(empty_database, FIRST)
    make_days(empty_database, time.time())
    scored, silent, sent, logged = (a_generation() for _ in range(4))
    liked, liked_too = a_signal(scored), a_signal(sent)
    part = {"name": "accepted", "grader": "signal/1#ab", "value": 1.0, "weight": 1.0, "status": "scored", "fault": "none",
            "reason": ""}  # fmt: skip
    with empty_database.transaction() as connection:
        assert "vote" not in inspect(connection).get_table_names()
        write_generation(connection, scored, revision=1)
        write_signal(connection, liked, state="joined", revision=1)
        write(
            connection, "score", key=scored.key, revision=1, task="booking", purpose="user", version=0, reward=1.0,
            status="scored", fault="none", components=[part], at=103.0,
        )  # fmt: skip
        write_generation(connection, silent, closes_at=111.0)
        write_generation(connection, sent, revision=1)
        write_signal(connection, liked_too, state="joined", revision=1)
    episode = Episode(key=sent.key, revision=1, reason="decisive", turns=(sent,), signals=(liked_too,), closed_at=103.0)
    event_log.append([message_of(EPISODES, episode), message_of(GENERATIONS, logged)])
    event_log.append([message_of(SIGNALS, a_signal(logged, value=False))])

    migrate(empty_database)
    event_log.append([message(SIGNALS, a_signal(scored, "edited", "a table for three", received_at=105.0, at=105.0))])
    clock = itertools.count(150).__next__
    for _ in range(4):
        Worker(EpisodesHandler(TASKS, clock), empty_database, event_log, clock=lambda: 150.0).step()
        Worker(RewardsHandler(TASKS, clock, empty_database), empty_database, event_log).step()

    found = [decode(Experience, record.value) for record in everything(event_log, EXPERIENCES)]
    assert {(item.key, item.revision): item.reward for item in found} == {
        (scored.key, 2): 0.0, (silent.key, 1): None, (sent.key, 1): 1.0, (logged.key, 1): 0.0,
    }  # fmt: skip
    with empty_database.snapshot() as connection:
        assert generation_counts(connection).states == {"pending": 3, "unlabelled": 1}
        assert set(connection.execute(select(vote.c.key)).scalars()) == {scored.key, sent.key, logged.key}
        kept = stored_scores(connection, {scored.key})
    assert kept[scored.key, 1].reward == 1.0
    [first] = kept[scored.key, 1].scores
    assert (first.value, first.propensity, first.seconds) == (1.0, 1.0, 0.0)


@pytest.mark.slow
def test_what_was_there_stays_as_it_was(empty_database: Database) -> None:
    go_to(empty_database, FIRST)
    record = a_generation()
    with empty_database.transaction() as connection:
        write_generation(connection, record, state="trained", state_writer="training", state_version=7)
    before = contents(empty_database)
    migrate(empty_database)
    after = contents(empty_database)
    for name, rows in before.items():
        if name != "alembic_version":
            kept = [{column: row[column] for column in old} for old, row in zip(rows, after[name], strict=True)]
            assert kept == rows
    made = {name for name, rows in after.items() if rows and name not in before}
    assert made == {"home_secret"}, "a migration draws it; all other new tables are empty"


@pytest.mark.slow
def test_what_the_trainer_said_before_it_numbered_holds_as_it_did(
    empty_database: Database, event_log: LocalLog
) -> None:
    """Its newest epoch holds, older ones are void; when it starts again, only what it then says does."""
    go_to(empty_database, BEFORE_NUMBERS)
    make_days(empty_database, time.time())
    kept, void, told_late = (a_generation() for _ in range(3))
    with empty_database.transaction() as connection:
        for about, epoch in ((kept, 7), (void, 6)):
            said = {"state": "trained", "state_writer": "training", "state_epoch": epoch, "state_revision": 1}
            write_generation(connection, about, revision=1, **said, state_version=3)
            write_outcome(connection, about.key, epoch=epoch, state="trained", version=3)
        write_generation(connection, told_late, revision=1)
        for epoch in (6, 7):
            write_outcome(connection, "", epoch=epoch, state="epoch_started")
    unnumbered = Outcome(key=told_late.key, revision=1, epoch=7, state="stale", writer="training", at=1.0)
    event_log.append([outbox.message(OUTCOMES, told_late.key, unnumbered)])

    migrate(empty_database)
    assert counted(empty_database) == {"trained": 1, "pending": 2}
    join_all(empty_database, event_log)
    assert counted(empty_database) == {"trained": 1, "stale": 1, "pending": 1}

    begun = Outcome(key="", revision=0, epoch=8, state="epoch_started", writer="training", at=1.0, previous=7)
    event_log.append([outbox.message(OUTCOMES, "", begun)])
    join_all(empty_database, event_log)
    assert counted(empty_database) == {"pending": 3}
    again = Outcome(
        key=void.key, revision=1, epoch=8, state="trained", version=3, writer="training", at=1.0, sequence=1
    )
    event_log.append([outbox.message(OUTCOMES, void.key, again)])
    join_all(empty_database, event_log)
    assert counted(empty_database) == {"trained": 1, "pending": 2}


def test_a_home_without_trains_goes_on_and_has_one_as_soon_as_an_engine_has_a_slot_for_it(
    last_release: Database,
) -> None:
    """Without a canary slot nothing changes. With one, the newest version that the gate accepted before departs."""
    with last_release.transaction() as connection:
        for epoch, version in enumerate((0, 1), start=1):
            row = {"policy": POLICY, "arm": LIVE, "version": version, "share": 1.0, "epoch": epoch, "writer": "release"}
            write(connection, "assignment_change", **row, reason="", at=1.0)
        write(connection, "assignment", **row, reason="", at=1.0)
        for version, accepted in ((0, True), (1, True), (2, True), (3, False)):
            row = {"policy": POLICY, "version": version, "accepted": accepted, "reason": "", "details": "{}", "at": 1.0}
            write(connection, "verdict", **row)
    migrate(last_release)
    world = TrackWorld(last_release)
    world.declared = (LIVE, CANDIDATE)
    world.look(3)
    assert world.trains() == []
    assert world.versions() == {LIVE: 1}
    world.declared = SLOTS
    world.look(2)
    [held] = world.trains()
    assert (held.version, held.blessed, held.stage) == (2, 1, 0)
    world.run(600)
    assert world.versions() == {LIVE: 2, CANARY: None}


def a_home_of_the_last_release(database: Database, now: float) -> None:
    """Its engine has two slots, v2 is live, v3 waits for its verdict, and the trainer was sent back to v2 once."""
    make_days(database, now)
    with database.transaction() as connection:
        for epoch, version in enumerate((0, 1, 2), start=1):
            row = {"policy": POLICY, "arm": LIVE, "version": version, "share": 1.0, "epoch": epoch, "writer": "release"}
            write(connection, "assignment_change", **row, reason="", at=1.0)
        write(connection, "assignment", **row, reason="", at=1.0)
        for arm, version in ((CANDIDATE, 3), (TRAINING, 2)):
            row = {"policy": POLICY, "arm": arm, "version": version, "share": 0.0, "epoch": 1, "writer": "release"}
            for into in ("assignment", "assignment_change"):
                write(connection, into, **row, reason="", at=1.0)
        for version in (0, 1, 2):
            row = {"policy": POLICY, "version": version, "accepted": True, "reason": "", "details": "{}", "at": 1.0}
            write(connection, "verdict", **row)
        for version in (1, 2, 3):
            row = {"policy": POLICY, "version": version, "parent": version - 1, "epoch": 1, "root": f"{version:064}"}
            write(connection, "version_claim", **row, claimed_at=1.0)
        write(
            connection, "engine_replica", policy=POLICY, name="e", url="http://e", kind="millrace", region="local",
            status="serving", slots=json.dumps({LIVE: 2, CANDIDATE: 3}), abilities="[]", instance="i", engine="e",
            dtype="float32", seen_at=now, run="", base="", problems="{}",
        )  # fmt: skip


def test_an_engine_of_the_last_release_makes_no_train_and_its_versions_are_held_and_rolled_back(
    last_release: Database,
) -> None:
    now = time.time()
    a_home_of_the_last_release(last_release, now)
    migrate(last_release)
    slots = TrainSlots(POLICY, run="", base="", settings=TrainSettings())
    decided: dict[str, Any] = {"policy": POLICY, "writer": "o", "reason": "r"}
    with last_release.transaction() as connection:
        assert slots.accepting(connection) == (LIVE, 1.0)
        with pytest.raises(InvalidValue, match="no engine that runs has a slot for the hold-out"):
            set_holdout(connection, version=0, share=0.02, **decided)
        with pytest.raises(Conflict, match="v3 cannot be withdrawn: no train runs"):
            rejection.withdraw(connection, version=3, **decided)
        holds.freeze(connection, until=None, **decided)
    with pytest.raises(Held, match="the arms are frozen"), last_release.transaction() as connection:
        rollback.promote(connection, to=3, **decided)
    with last_release.transaction() as connection:
        plan = rollback.roll_back(connection, to=1, **decided)
        arms = assignments.read(connection, POLICY)
        holds.resume(connection, **decided)
    assert (plan.live, plan.target, plan.revoked, plan.kept) == (2, 1, (2, 3), (1, 0))
    assert {name: arm.version for name, arm in arms.items()} == {LIVE: 1, CANDIDATE: None, TRAINING: 1}


@pytest.mark.slow
def test_answers_of_the_last_release_are_joined_and_are_evidence_of_nothing(
    last_release: Database, event_log: LocalLog
) -> None:
    """Of an inference process that was not yet replaced too: it draws no arms, so it says nothing of them."""
    a_home_of_the_last_release(last_release, time.time())
    unread, read, late, drawn = (a_generation(policy=POLICY, spans=(Span(0, 2),)) for _ in range(4))
    with last_release.transaction() as connection:
        write_generation(connection, read, policy=POLICY, revision=1)
    event_log.append([message_of(GENERATIONS, unread), message_of(SIGNALS, a_signal(unread))])
    migrate(last_release)
    with last_release.transaction() as connection:
        row: dict[str, Any] = {"policy": POLICY, "arm": CANARY, "version": 3, "writer": "release", "reason": ""}
        assignments.move(connection, **row, share=0.5, expected_epoch=0)
    intake = TrainIntake(last_release, TASKS, lambda *_: {}, policy=POLICY, settings=TrainSettings())
    reader = Worker(intake, last_release, event_log, follows=True)
    reader.step()
    counted_before = left_out()
    drawn = msgspec.structs.replace(drawn, arm_probability=0.5, draw=a_draw(2, "default/ann", canary=(3, 0.5)))
    event_log.append([message_of(GENERATIONS, late), message(GENERATIONS, drawn)])
    said = [an_experience(key=item.key, policy=POLICY) for item in (read, late, drawn)]
    event_log.append([outbox.message(EXPERIENCES, item.key, item) for item in said])
    for _ in range(4):
        reader.step()
        Worker(EpisodesHandler(TASKS, lambda: 150.0), last_release, event_log, clock=lambda: 150.0).step()
    with last_release.snapshot() as connection:
        kept = connection.execute(select(train_answer.c.key, train_answer.c.status)).all()
    assert [tuple(row) for row in kept] == [(drawn.key, "scored")]
    assert left_out() == counted_before
    assert sum(counted(last_release).values()) == 4


def left_out() -> float:
    """Answers that the train could not use."""
    samples = [sample for found in TRAIN_LEFT_OUT.collect() for sample in found.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


def write_outcome(connection: Connection, key: str, **fields: object) -> None:
    row = {"revision": 1, "reason": "", "version": None, "writer": "training", "at": 1.0}
    write(connection, "outcome", key=key, **(row | fields))


def join_all(database: Database, event_log: LocalLog) -> None:
    worker = Worker(EpisodesHandler(TASKS, lambda: 150.0), database, event_log, clock=lambda: 150.0)
    for _ in range(3):
        worker.step()


def counted(database: Database) -> dict[str, int]:
    with database.snapshot() as connection:
        return generation_counts(connection).states


def contents(database: Database) -> dict[str, list[dict[str, object]]]:
    """Every table that is there, with its rows by column."""
    with database.snapshot() as connection:
        names = [name for name in inspect(connection).get_table_names() if not is_partition(name)]
        tables = [Table(name, MetaData(), autoload_with=connection) for name in names]
        return {table.name: [dict(row._mapping) for row in connection.execute(select(table))] for table in tables}
