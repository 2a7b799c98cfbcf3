"""The intake over a real database and log: exactly once, in any order, from the end of the log."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY
from sqlalchemy import select, update

from contracts import holds
from contracts.assignments import CANARY, LIVE
from contracts.errors import Unavailable
from contracts.event_log import LogRecord, Message
from contracts.faults import FaultPoint, no_fault
from contracts.records import Experience, FinishReason, Generation, GenerationBody
from contracts.sampling import Span
from contracts.tables import assignment_change, dead_letter, generation, position, train_answer
from contracts.topics import EXPERIENCES, GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.release.train.reading import intake as module
from pipelines.release.train.reading import repository, sampling
from pipelines.release.train.reading.intake import TrainIntake, read_evidence
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.loss_detection import read_positions
from runtime.log.outbox import message
from runtime.operations import Operations, trouble
from runtime.train_settings import TrainSettings
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, Crash, a_draw, a_generation
from tests.hostile import an_experience
from tests.worlds.release.arms import point

POLICY = "booking"
TASKS = {"booking": BOOKING_TASK}
NOW = 1_000_000.0


def no_marks(task: str, body: GenerationBody, finish_reason: FinishReason) -> dict[str, float]:
    del task, finish_reason
    return {"empty": float(not body.text)}


def an_answer(arm: str = CANARY, version: int = 5, *, share: float = 0.5, **changes: Any) -> Generation:
    held, unit = {CANARY: 5, LIVE: 4}[arm], f"default/{changes.get('person', 'ann')}"
    values: dict[str, Any] = {
        "arm_probability": 0.5,
        "created_at": NOW,
        "finished_at": NOW + 1.0,
        "draw": a_draw(held, unit, canary=(5, share)),
        "spans": (Span(0, version),),
    }
    return a_generation(arm=arm, **(values | changes))


def said_of(record: Generation, **changes: Any) -> Experience:
    values = {"key": record.key, "policy": POLICY, "generated_at": record.created_at, "scored_at": NOW + 5.0}
    return an_experience(**(values | changes))


class EvidenceWorld:
    """A train at 50%, its log, and the intake."""

    def __init__(self, database: Database, event_log: LocalLog) -> None:
        self.database, self.log = database, event_log
        self.move(LIVE, 4, 1.0, 0)
        self.move(CANARY, 5, 0.5, 0)
        self.worker = self.restarted()

    def move(self, arm: str, version: int | None, share: float, epoch: int, at: float = NOW - 10.0) -> None:
        point(self.database, POLICY, arm, version, share=share)
        with self.database.transaction() as connection:
            changed = assignment_change
            connection.execute(changed.update().where(changed.c.epoch == epoch + 1, changed.c.arm == arm).values(at=at))

    def intake(self, **settings: Any) -> TrainIntake:
        made = TrainSettings(**settings)
        return TrainIntake(self.database, TASKS, no_marks, policy=POLICY, settings=made, clock=lambda: NOW)

    def restarted(self, fault: FaultPoint = no_fault, **settings: Any) -> Worker[Any]:
        """A process that starts here; its first step finds where it reads."""
        worker = Worker(self.intake(**settings), self.database, self.log, clock=lambda: NOW, fault=fault, follows=True)
        if fault is no_fault:
            worker.step()
        return worker

    def append(self, *records: Generation | Experience) -> None:
        self.log.append(
            [message(GENERATIONS if isinstance(item, Generation) else EXPERIENCES, item.key, item) for item in records]
        )

    def run(self) -> None:
        while self.worker.step():
            pass

    def rows(self) -> dict[str, Any]:
        with self.database.snapshot() as connection:
            return {row.key: row for row in connection.execute(select(train_answer))}


@pytest.fixture
def world(database: Database, event_log: LocalLog) -> Iterator[EvidenceWorld]:
    event_log.create_topics()
    yield EvidenceWorld(database, event_log)
    trouble("evidence", None)


def left_out(reason: str) -> float:
    return REGISTRY.get_sample_value("millrace_train_left_out_total", {"reason": reason}) or 0.0


def test_an_answer_and_its_score_become_one_row(world: EvidenceWorld) -> None:
    record = an_answer(person="ann")
    world.append(record)
    world.run()
    row = world.rows()[record.key]
    assert (row.arm, row.version, row.compared_with, row.unit_kind, row.probability) == (CANARY, 5, 5, "user", 0.5)
    assert (row.at, row.reward, row.status, row.scored_at) == (NOW + 1.0, None, "", None)
    assert row.metrics["empty"] == 0.0
    assert row.cluster.startswith("other-")
    world.append(said_of(record, reward=0.25))
    world.run()
    heard = world.rows()[record.key]
    assert (heard.reward, heard.status, heard.scored_at, heard.metrics["heard"]) == (0.25, "scored", NOW + 5.0, 1.0)
    assert heard.metrics.keys() > row.metrics.keys()


def test_a_row_keeps_the_tenant_and_the_key_that_asked(world: EvidenceWorld) -> None:
    record = an_answer(tenant="acme", draw=replace(a_draw(5, canary=(5, 0.5)), api_key="a1b2c3"))
    world.append(record)
    world.run()
    row = world.rows()[record.key]
    assert (row.tenant, row.api_key) == ("acme", "a1b2c3")


def test_units_of_live_are_controls_and_the_rest_of_the_traffic_leaves_no_row(world: EvidenceWorld) -> None:
    world.worker = world.restarted(control_ratio=1.0)
    records = [an_answer(LIVE, 4, share=0.05, person=f"p{number}") for number in range(400)]
    world.append(*records)
    world.run()
    world.append(*(said_of(record) for record in records))
    world.run()
    rows = world.rows().values()
    assert 5 < len(rows) < 45
    assert {(row.arm, row.version, row.compared_with, row.status) for row in rows} == {(LIVE, 4, 5, "scored")}


def test_the_score_of_an_answer_that_is_not_sampled_looks_for_nothing(
    world: EvidenceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def read_records(_: object, keys: Collection[str]) -> dict[str, bytes]:
        asked.extend(keys)
        return {}

    monkeypatch.setattr(repository, "read_records", read_records)
    world.worker = world.restarted(control_ratio=1.0)
    records = [an_answer(LIVE, 4, share=0.05, person=f"p{number}") for number in range(100)]
    world.append(*records, *(said_of(record) for record in records), said_of(unread := an_answer()))
    world.run()
    assert asked == [unread.key]


def test_only_so_many_answers_that_are_not_sampled_are_remembered(
    world: EvidenceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_PASSED", 10)
    intake = world.intake(control_ratio=1.0)
    records = [an_answer(LIVE, 4, share=0.05, person=f"p{number}") for number in range(100)]
    items = intake.prepare([intake.read(as_record(message(GENERATIONS, record.key, record))) for record in records])
    passed = [record.key for record, item in zip(records, items, strict=True) if item.row is None]
    assert list(intake.passed) == passed[-10:]


def test_a_score_that_is_read_before_its_answer_finds_the_answer_in_the_join(world: EvidenceWorld) -> None:
    record = an_answer()
    join = EpisodesHandler(TASKS, lambda: NOW)
    world.log.append([said := message(EXPERIENCES, record.key, said_of(record))])
    with world.database.transaction() as connection:
        join.handle(connection, [join.read(as_record(message(GENERATIONS, record.key, record)))])
    world.run()
    early = world.rows()[record.key]
    assert (early.reward, early.arm, early.compared_with) == (1.0, CANARY, 5)
    world.append(record)
    world.log.append([said])
    world.run()
    assert world.rows() == {record.key: early}


def test_a_batch_with_the_score_in_front_of_its_answer_is_whole(world: EvidenceWorld) -> None:
    record = an_answer()
    handler = world.intake()
    items = [
        handler.read(as_record(message(topic, record.key, item)))
        for topic, item in ((EXPERIENCES, said_of(record)), (GENERATIONS, record))
    ]
    with world.database.transaction() as connection:
        handler.handle(connection, handler.prepare(items))
    assert world.rows()[record.key].reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("point", ["worker: polled", "worker: before commit", "worker: committed"])
def test_a_process_that_is_killed_leaves_the_same_rows(world: EvidenceWorld, point: str, seed: int) -> None:
    draw = random.Random(seed)
    records = [an_answer(person=f"p{number}") for number in range(12)]
    scores = [said_of(record, reward=draw.random()) for record in records]
    again = [replace(said, revision=2, reward=draw.random(), scored_at=NOW + 6.0) for said in scores[:6]]

    def kill(at: str) -> None:
        if at == point and draw.random() < 0.5:
            raise Crash

    for part in ([*records], [*scores], [*again, records[0], scores[0]]):
        world.append(*part)
        while True:
            try:
                while world.restarted(kill).step():
                    pass
                break
            except Crash:
                continue
    expected = {item.key: item.reward for item in [*scores, *again]}
    assert {key: row.reward for key, row in world.rows().items()} == expected


def test_a_home_with_a_month_of_log_starts_at_its_end(world: EvidenceWorld) -> None:
    with world.database.transaction() as connection:  # as a home of the last release
        connection.execute(position.delete())
    old = [an_answer() for _ in range(9)]
    world.append(*old)
    world.worker = world.restarted()
    assert world.rows() == {}
    world.append(new := an_answer())
    world.run()
    assert world.rows().keys() == {new.key}
    world.worker = world.restarted()
    world.append(newer := an_answer())
    world.run()
    assert world.rows().keys() == {new.key, newer.key}, "the second start goes on where the first stood"


def test_a_position_that_the_log_lost_is_given_up_for_its_end(world: EvidenceWorld) -> None:
    with world.database.transaction() as connection:
        connection.execute(position.update().values(next_offset=10**6))
    with world.database.snapshot() as connection:
        assert read_positions(connection) == {}, "no other process may refuse to start for it"
    stop = threading.Event()
    runner = threading.Thread(target=read_evidence, args=(world.intake(), world.database, world.log, stop))
    runner.start()
    try:
        for _ in range(500):
            world.append(an_answer())
            if world.rows():
                break
            stop.wait(0.02)
    finally:
        stop.set()
        runner.join()
    assert world.rows()


def test_a_fault_is_told_and_tried_again(world: EvidenceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    troubles: list[str] = []

    class Broken:
        num_partitions = 4

        def consumer(self, *_: object) -> object:
            troubles.append(Operations().problems().get("evidence", ""))
            if len(troubles) > 2:
                stop.set()
            raise Unavailable("no broker")

    stop = threading.Event()
    read_evidence(world.intake(), world.database, Broken(), stop)  # type: ignore[arg-type]
    assert troubles == ["", "no broker", "no broker"]


def test_a_record_that_cannot_be_read_is_counted_and_not_buried(world: EvidenceWorld) -> None:
    before = left_out("unreadable")
    damaged = an_answer(body=b"junk")
    world.log.append([Message(GENERATIONS, 0, "x", b"\xc1junk"), Message(EXPERIENCES, 1, "x", b"")])
    world.append(damaged, fine := an_answer())
    world.run()
    assert world.rows().keys() == {damaged.key, fine.key}
    assert "tokens" not in world.rows()[damaged.key].metrics
    assert left_out("unreadable") == before + 3
    with world.database.snapshot() as connection:
        assert connection.execute(select(dead_letter)).all() == []


def test_an_answer_that_live_gave_for_the_canary_is_a_failure_and_has_no_reward(world: EvidenceWorld) -> None:
    rescued, silent = an_answer(version=4), an_answer(spans=(), finish_reason="error")
    world.append(rescued, silent, said_of(rescued, reward=1.0))
    world.run()
    world.append(said_of(rescued, reward=1.0, revision=2))
    world.run()
    rows = world.rows()
    assert {(row.arm, row.version, row.reward) for row in rows.values()} == {(CANARY, 5, None)}
    assert rows[rescued.key].metrics == {"errors": 1.0}
    assert rows[silent.key].metrics == {"errors": 1.0, "cancelled": 0.0, "truncated": 0.0}


def test_what_is_left_out_is_counted_by_reason(world: EvidenceWorld) -> None:
    before = left_out("other_version"), left_out("not_drawn")
    world.append(
        an_answer(LIVE, 3, share=0.9), an_answer(draw=None), an_answer(purpose="shadow"), an_answer(policy="other")
    )
    world.run()
    assert (left_out("other_version"), left_out("not_drawn")) == (before[0] + 1, before[1] + 1)
    assert world.rows() == {}


def test_a_late_score_brings_no_answer_of_an_ended_train_back(world: EvidenceWorld) -> None:
    record = an_answer(created_at=NOW - 5.0)
    join = EpisodesHandler(TASKS, lambda: NOW)
    with world.database.transaction() as connection:
        join.handle(connection, [join.read(as_record(message(GENERATIONS, record.key, record)))])
    world.move(CANARY, None, 0.0, 1, at=NOW - 1.0)
    world.move(CANARY, 6, 0.5, 2, at=NOW - 0.5)
    world.worker = world.restarted()
    world.append(said_of(record, generated_at=NOW - 5.0))
    world.run()
    assert world.rows() == {}


def as_record(item: Message) -> LogRecord:
    return LogRecord(item.topic, 0, 0, item.key, item.value, NOW)


def test_a_damaged_row_of_the_join_costs_only_its_own_score(world: EvidenceWorld) -> None:
    broken, fine = an_answer(), an_answer()
    join = EpisodesHandler(TASKS, lambda: NOW)
    with world.database.transaction() as connection:
        join.handle(connection, [join.read(as_record(message(GENERATIONS, item.key, item))) for item in (broken, fine)])
        mine = generation.c.completion_id == broken.completion_id
        connection.execute(update(generation).where(mine).values(record=b"\xc1junk"))
    world.append(said_of(broken), said_of(fine))
    world.run()
    assert world.rows().keys() == {fine.key}


def test_a_train_that_is_held_takes_no_more_than_its_room(
    world: EvidenceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "HELD_ROWS", 5)
    before = left_out("full")
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="r", now=NOW)
    world.worker = world.restarted()
    world.append(*(an_answer() for _ in range(9)))
    world.run()
    assert len(world.rows()) == 5
    assert left_out("full") == before + 4
    with world.database.transaction() as connection:
        holds.resume(connection, policy=POLICY, writer="ann", reason="r", now=NOW + 0.0)
    world.worker = world.restarted()
    world.append(an_answer())
    world.run()
    assert len(world.rows()) == 6
