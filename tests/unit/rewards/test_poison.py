"""Records that would stop the worker each time, because it reads them again after each crash."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from contracts.event_log import LogRecord
from contracts.records import Episode, Experience, Score, Submitter, decode, encode
from contracts.tables import vote
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES
from rewards.grader import Grader
from rewards.judges.parse import parse_verdict
from rewards.verifiers.check import Answer, Check
from rewards.verifiers.database.columns import ColumnsConfig, checks_of
from rewards.worker import RewardsHandler
from runtime.database import Database
from tests.fakes import a_generation, a_signal

RATED = Task.model_validate({"name": "booking", "signals": {"rating": {"type": "number", "maximum": 5.0}}})


def graded(check: object) -> Score:
    [score] = Grader(
        "own", "gate", 0.0, "own/1#h", is_slow=False, check_all=lambda _: [cast("Check", check)]
    ).score_all([Answer("x")])
    return score


@pytest.mark.parametrize(("said", "kept"), [(r"as \ud800 says", "as ? says"), (r"as \u0000 says", "as ? says")])
def test_what_a_judge_was_talked_into_quoting_can_be_stored(said: str, kept: str) -> None:
    verdict = parse_verdict(f'{{"reason": "{said}", "level": "yes"}}', ["no", "yes"])
    assert verdict is not None
    score = graded(Check(verdict.value, reason=verdict.reason))
    assert (score.value, score.reason) == (1.0, kept)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(score), type=Score) == score


def test_a_whole_number_that_no_float_can_hold_is_our_fault() -> None:
    score = graded(Check(10**5000))
    assert (score.value, score.fault, score.reason) == (
        None,
        "infra",
        "it answered a whole number, which is not in [0, 1]",
    )
    checks = checks_of([10**400, 1], 2, ColumnsConfig())
    assert isinstance(checks, list)
    assert [(check.value, check.fault) for check in checks] == [(None, "infra"), (1.0, "none")]


def delivered(database: Database, value: Any, **changes: Any) -> Experience:
    turn = a_generation(**changes)
    signal = a_signal(turn, "rating", value, submitter=Submitter(id="anonymous"))
    episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(signal,), closed_at=111.0)
    handler = RewardsHandler({"booking": RATED}, lambda: 200.0)
    record = LogRecord(EPISODES, 0, 0, episode.key, encode(episode), 0.0)
    with database.transaction() as connection:
        sent = handler.handle(connection, handler.prepare([handler.read(record)]))
    return next(decode(Experience, message.value) for message in sent if message.topic == EXPERIENCES)


def test_a_signal_of_another_type_is_silence(database: Database) -> None:
    experience = delivered(database, "up")
    assert (experience.reward, experience.status) == (None, "unlabelled")


def test_who_is_named_with_a_nul_is_named_without(database: Database) -> None:
    assert delivered(database, 5.0, person="a\0nn").reward == 1.0
    with database.snapshot() as connection:
        assert [row.submitter for row in connection.execute(vote.select())] == ["ann"]
