"""What a train compares, on every database: answers and scores become rows, and a copy of the log changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from contracts import assignments
from contracts.assignments import CANARY, LIVE
from contracts.records import Experience, FinishReason, Generation, GenerationBody
from contracts.sampling import Span
from contracts.tables import position, train_answer
from contracts.topics import EXPERIENCES, GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.release.train.reading.intake import TrainIntake
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.loss_acceptance import accept_loss
from runtime.log.loss_detection import EVIDENCE, losses, note
from runtime.log.outbox import message
from runtime.train_settings import TrainSettings
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_draw, a_generation
from tests.hostile import an_experience

POLICY, TASKS = "booking", {"booking": BOOKING_TASK}


def no_marks(task: str, body: GenerationBody, finish_reason: FinishReason) -> Mapping[str, float]:
    del task, body, finish_reason
    return {"empty": 0.0}


def an_answer(number: int) -> Generation:
    return a_generation(
        arm=CANARY,
        arm_probability=0.5,
        draw=a_draw(5, f"default/p{number}", canary=(5, 0.5)),
        spans=(Span(0, 5),),
        person=f"p{number}",
        created_at=2e9,
        finished_at=2e9 + 1,
    )


def said_of(record: Generation, revision: int = 1) -> Experience:
    return an_experience(
        key=record.key, policy=POLICY, generated_at=2e9, scored_at=2e9 + 2, revision=revision, reward=revision / 4
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    opened = LocalLog(tmp_path / "log")
    opened.create_topics()
    yield opened
    opened.close()


def a_worker(database: Database, log: LocalLog) -> Worker[Any]:
    intake = TrainIntake(database, TASKS, no_marks, policy=POLICY, settings=TrainSettings(), clock=lambda: 2e9)
    worker = Worker(intake, database, log, clock=lambda: 2e9, follows=True)
    worker.step()
    return worker


def test_answers_and_scores_become_rows_once(any_database: Database, log: LocalLog) -> None:
    with any_database.transaction() as connection:
        for arm, version, share in ((LIVE, 4, 1.0), (CANARY, 5, 0.5)):
            assignments.move(
                connection,
                policy=POLICY,
                arm=arm,
                version=version,
                expected_epoch=0,
                writer="t",
                reason="t",
                share=share,
            )
    worker = a_worker(any_database, log)
    records = [an_answer(number) for number in range(40)]
    wires = [message(GENERATIONS, record.key, record) for record in records]
    scores = [message(EXPERIENCES, record.key, said_of(record)) for record in records]
    later = [message(EXPERIENCES, record.key, said_of(record, 2)) for record in records[:10]]
    join = EpisodesHandler(TASKS, lambda: 2e9)
    log.append(wires[:20])
    worker.step()
    log.append(wires)
    log.append(scores)
    with any_database.transaction() as connection:  # the join is ahead of the log's reader
        join.handle(
            connection, [join.read(item) for number in range(4) for item in log.read(GENERATIONS, number, 0, 99)]
        )
    log.append(later)
    while worker.step():
        pass
    with any_database.snapshot() as connection:
        rows = {row.key: row for row in connection.execute(select(train_answer))}
    assert {key: row.reward for key, row in rows.items()} == {
        record.key: 0.5 if place < 10 else 0.25 for place, record in enumerate(records)
    }
    assert {tuple(sorted(row.metrics)) for row in rows.values()} == {
        ("cancelled", "empty", "errors", "heard", "seconds", "tokens", "truncated")
    }


def test_a_lost_log_is_not_lost_for_what_only_the_train_had_not_read(
    any_database: Database, log: LocalLog, tmp_path: Path
) -> None:
    a_worker(any_database, log)
    record = an_answer(1)
    log.append([message(GENERATIONS, record.key, record)])
    note(any_database, log.describe(), 2e9)
    another = LocalLog(tmp_path / "another")
    another.create_topics()
    lost = losses(any_database, another)
    assert [item.unread for item in lost] == [{"episodes": 1}]
    with any_database.transaction() as connection:
        accept_loss(connection, lost, another.describe(), TASKS, 2e9)
        assert connection.execute(select(position).where(position.c.consumer_group == EVIDENCE)).all() == []
    another.append([message(GENERATIONS, record.key, record)])
    worker = a_worker(any_database, another)
    assert worker.step() == 0, "it begins at the end of the new log"
    another.close()
