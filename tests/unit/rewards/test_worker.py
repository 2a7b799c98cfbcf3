from __future__ import annotations

import msgspec
import numpy as np
import pytest

from contracts.errors import InvalidRecord
from contracts.event_log import LogPlace, LogRecord
from contracts.records import Episode, Experience, Generation, Outcome, Provided, Signal, decode, encode
from contracts.segments import is_body_lost, segment_of, whole
from contracts.tables import score as score_table
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES
from contracts.turns import SessionShare, SessionTurn
from rewards.worker import RewardsHandler
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal

Sent = tuple[list[Experience], list[Outcome]]


def score(
    database: Database,
    turn: Generation,
    *signals: Signal,
    times: int = 1,
    task: Task = BOOKING_TASK,
    off_line: bool = False,
) -> Sent:
    """What the worker sends for an episode that is delivered so many times."""
    handler = RewardsHandler({"booking": task}, lambda: 200.0)
    episode = Episode(
        key=turn.key, revision=1, reason="window", turns=(turn,), signals=signals, closed_at=111.0, off_line=off_line
    )
    record = LogRecord(EPISODES, 0, 0, episode.key, encode(episode), 0.0)
    with database.transaction() as connection:
        sent = handler.handle(connection, handler.prepare([handler.read(record)] * times))
    experiences = [decode(Experience, message.value) for message in sent if message.topic == EXPERIENCES]
    return experiences, [decode(Outcome, message.value) for message in sent if message.topic != EXPERIENCES]


def test_an_episode_that_is_delivered_twice_is_scored_once(database: Database) -> None:
    turn = a_generation()
    (experience,), outcomes = score(database, turn, a_signal(turn), times=2)
    assert (experience.key, experience.revision, experience.reward, experience.status) == (turn.key, 1, 1.0, "scored")
    assert outcomes == []


def test_a_calls_credit_is_part_of_its_weight(database: Database) -> None:
    turn, last = a_generation(), a_generation()
    share = SessionShare("s", last.key, 0, 2, 0.25, 0.0)
    (experience,), _ = score(database, turn, a_signal(turn, share=share))
    assert (experience.reward, experience.weight, experience.share) == (1.0, 0.25, share)


def test_an_experience_of_a_session_has_its_group(database: Database) -> None:
    for group in ("try-7", None):
        turn = a_generation(turn=SessionTurn(branch="first", group=group))
        share = SessionShare("s", turn.key, 0, 1, 1.0, 0.0)
        (experience,), _ = score(database, turn, a_signal(turn, share=share))
        assert experience.share == SessionShare("s", turn.key, 0, 1, 1.0, 0.0, group)


def test_an_answer_of_a_provider_is_scored_and_named_off_support(database: Database) -> None:
    turn = a_generation(provided=Provided(origin="openai"), spans=(), engine="", dtype="")
    (experience,), (outcome,) = score(database, turn, a_signal(turn))
    assert (experience.reward, experience.origin) == (1.0, "openai")
    assert (outcome.state, outcome.reason, outcome.writer) == ("off_support", "provider", "rewards")
    _, (silent,) = score(database, a_generation(provided=Provided(origin="openai")))
    assert (silent.state, silent.reason) == ("unlabelled", "silence")


def test_silence_is_named_and_the_experience_says_why_there_is_no_reward(database: Database) -> None:
    (experience,), (outcome,) = score(database, a_generation())
    assert (experience.reward, experience.status) == (None, "unlabelled")
    assert (outcome.state, outcome.reason, outcome.writer, outcome.revision) == ("unlabelled", "silence", "rewards", 1)


@pytest.mark.parametrize("silence", ["unlabelled", "renormalise", "expected", -0.5])
def test_silence_about_a_call_off_the_main_line_has_no_value(database: Database, silence: str | float) -> None:
    task = Task.model_validate(BOOKING_TASK.model_dump(exclude_unset=True) | {"silence": silence})
    (experience,), (outcome,) = score(database, a_generation(), task=task, off_line=True)
    assert (experience.reward, experience.status) == (None, "unlabelled")
    assert (outcome.state, outcome.reason) == ("unlabelled", "off_line")


def test_a_sentinel_is_scored_but_its_state_is_not_ours_to_say(database: Database) -> None:
    experiences, outcomes = score(database, a_generation(purpose="sentinel", metadata={"reference": '{"party":2}'}))
    assert [(item.name, item.value) for item in experiences[0].scores] == [("shape", 1.0), ("exact", 1.0)]
    assert outcomes == []


def test_without_its_task_a_sample_is_unscored_by_our_fault(database: Database) -> None:
    experiences, (outcome,) = score(database, a_generation(task="gone"))
    assert experiences == []
    assert (outcome.state, "gone" in outcome.reason) == ("unscored", True)


def test_only_the_completion_is_learned_from() -> None:
    turn = a_generation()
    segment = segment_of(turn, turn.open())
    assert np.frombuffer(segment.token_ids, "<i4").tolist() == [1, 2, 3, 4, 5]
    assert list(segment.loss_mask) == [0, 0, 0, 1, 1]
    assert np.frombuffer(segment.logprobs, "<f4").tolist() == [0.0, 0.0, 0.0, -0.5, -0.25]


def test_an_experience_too_large_for_any_log_gets_a_name_instead(database: Database) -> None:
    dice = np.random.default_rng(0)
    ids, logprobs = dice.integers(0, 2**31, 120_000, dtype="<i4"), dice.normal(size=120_000).astype("<f4")
    turn = a_generation(completion_ids=ids.tobytes(), logprobs=logprobs.tobytes())
    experiences, (outcome,) = score(database, turn, a_signal(turn))
    assert experiences == []
    assert (outcome.state, outcome.reason, outcome.writer) == ("unscored", "too_large", "rewards")


def pointing(turn: Generation, answer: bytes | None, *signals: Signal) -> LogRecord:
    episode = Episode(
        key=turn.key,
        revision=1,
        reason="window",
        source=LogPlace(2, 7),
        purpose=turn.purpose,
        signals=signals,
        closed_at=111.0,
    )
    return LogRecord(EPISODES, 0, 0, episode.key, encode(episode), 0.0, answer)


def test_the_place_of_an_answer_is_passed_on_instead_of_its_tokens(database: Database) -> None:
    turn = a_generation()
    (carried,), _ = score(database, turn, said := a_signal(turn))
    other = RewardsHandler({"booking": BOOKING_TASK}, lambda: 200.0)
    items = other.prepare([other.read(pointing(turn, encode(turn), said))])
    with database.transaction() as connection:
        assert other.handle(connection, items) == []  # this revision was scored
        connection.execute(score_table.delete())
        [sent] = other.handle(connection, items)
    found = decode(Experience, sent.value)
    assert (found.source, found.segments, found.engine, found.generated_at) == (LogPlace(2, 7), (), "", 0.0)
    assert len(sent.value) < len(encode(carried)) - sum(map(len, (turn.engine, turn.dtype)))
    assert whole(found, encode(turn)) == msgspec.structs.replace(carried, source=LogPlace(2, 7))
    assert is_body_lost(whole(found, None))
    with pytest.raises(InvalidRecord, match="points to the answer"):
        whole(found, encode(a_generation()))


def test_an_answer_that_nobody_has_any_more_is_named_and_the_others_are_scored(database: Database) -> None:
    turn, lost, shadow = a_generation(), a_generation(), a_generation(purpose="shadow")
    handler = RewardsHandler({"booking": BOOKING_TASK}, lambda: 200.0)
    records = [pointing(lost, None), pointing(turn, encode(turn), a_signal(turn)), pointing(shadow, None)]
    with database.transaction() as connection:
        sent = handler.handle(connection, handler.prepare([handler.read(record) for record in records]))
    outcome, experience = decode(Outcome, sent[0].value), decode(Experience, sent[1].value)
    assert (outcome.key, outcome.state, outcome.reason) == (lost.key, "unscored", "body_lost")
    assert (experience.key, experience.reward, len(sent)) == (turn.key, 1.0, 2)
    with pytest.raises(InvalidRecord, match="points to the answer"):
        handler.read(pointing(lost, encode(turn)))
