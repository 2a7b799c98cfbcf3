"""What a batch costs, and that its records are told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest
from sqlalchemy import Connection, event

from contracts.errors import InvalidRecord
from contracts.event_log import LogRecord, Message
from contracts.records import Episode, GenerationBody, Outcome, Record, State, decode, encode, pack_body
from contracts.tasks.curation import CurationRule
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_draw, a_generation, a_signal
from tests.ledger_states import generation_states, signal_states
from tests.unit.pipelines.episodes.bench import Join

TASKS = {"booking": BOOKING_TASK}


@contextmanager
def counted(connection: Connection) -> Iterator[list[str]]:
    """The statements of a connection."""
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(connection, "before_cursor_execute", note)
    yield statements
    event.remove(connection, "before_cursor_execute", note)


def batch(records: Sequence[tuple[str, Record]]) -> list[LogRecord]:
    return [LogRecord(topic, 0, offset, "", encode(record), 0.0) for offset, (topic, record) in enumerate(records)]


def a_busy_batch(size: int) -> list[LogRecord]:
    """Every kind of record about every generation."""
    records: list[tuple[str, Record]] = []
    for _ in range(size):
        about = a_generation()
        said = a_signal(about)
        records += [(GENERATIONS, about), (SIGNALS, said), (SIGNALS, stars := a_signal(about, "stars", 3))]
        records += [(SIGNALS, msgspec.structs.replace(stars, retracted=True))]
        records += [(OUTCOMES, an_outcome(about.key, 1, "trained"))]
    return batch(records)


def an_outcome(key: str, epoch: int, state: State) -> Outcome:
    return Outcome(key=key, revision=1, epoch=epoch, state=state, version=7, writer="training", at=1.0)


def join(database: Database, records: Sequence[LogRecord]) -> tuple[list[Message], int]:
    """What is sent for one batch, and how many statements it took."""
    handler = EpisodesHandler(TASKS, lambda: 103.0)
    with database.transaction() as connection, counted(connection) as statements:
        messages = handler.handle(connection, [handler.read(record) for record in records])
        messages += handler.tick(connection, 1e6, frozenset((0,)))
        return messages, len(statements)


def test_a_large_batch_takes_no_more_statements_than_a_small_one(database: Database) -> None:
    _, few = join(database, a_busy_batch(2))
    messages, many = join(database, a_busy_batch(99))
    assert len(messages) == 99, "one revision of each answer, whatever else the batch says of it"
    assert few == many <= 17


def test_answers_without_keys_cost_nothing_more(database: Database) -> None:
    handler = EpisodesHandler(TASKS, lambda: 103.0)
    with database.transaction() as connection, counted(connection) as statements:
        handler.handle(connection, [handler.read(record) for record in a_busy_batch(3)])
        assert not any("join_key" in statement or "waiting_signal" in statement for statement in statements)


@pytest.mark.parametrize("names", [("join_key",), ("session_id",), ("join_key", "session_id")])
def test_keys_of_a_large_batch_take_no_more_statements_than_those_of_a_small_one(
    database: Database, names: tuple[str, ...]
) -> None:
    nums = []
    for size in (2, 99):  # fewer than are closed at once: where room is left, imported ones are looked for
        turns = [a_generation(**dict.fromkeys(names, f"{size} {number}")) for number in range(size)]
        nums.append(join(database, batch([(GENERATIONS, turn) for turn in turns]))[1])
    assert nums[0] == nums[1] <= 21


def test_scoring_a_large_batch_takes_three_statements(database: Database) -> None:
    """Which are scored, their scores, and how their version behaves."""
    handler = RewardsHandler(TASKS)
    turns = [a_generation() for _ in range(100)]
    episodes = [
        Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(), closed_at=1.0) for turn in turns
    ]
    items = [handler.read(record) for record in batch([(EPISODES, episode) for episode in episodes])]
    with database.transaction() as connection, counted(connection) as statements:
        assert len(handler.handle(connection, handler.prepare(items))) == 200
        assert len(statements) == 3
        assert handler.handle(connection, handler.prepare(items)) == []


def test_one_batch_says_what_its_records_say_one_by_one(database: Database) -> None:
    kept, left, sentinel = a_generation(), a_generation(finish_reason="cancelled"), a_generation(purpose="sentinel")
    said, changed = a_signal(kept), a_signal(kept, value=False, at=103.0)
    records = [
        *[(SIGNALS, said), (GENERATIONS, kept), (GENERATIONS, kept), (SIGNALS, said), (GENERATIONS, left)],
        *[(SIGNALS, changed), (OUTCOMES, an_outcome(kept.key, 1, "trained")), (GENERATIONS, sentinel)],
        *[(SIGNALS, msgspec.structs.replace(changed, retracted=True)), (OUTCOMES, an_outcome(kept.key, 2, "stale"))],
    ]
    messages, _ = join(database, batch(records))
    sent = [(item.topic, item.key) for item in messages]
    assert sent == [
        *[(EPISODES, kept.key), (OUTCOMES, left.key), (EPISODES, kept.key), (OUTCOMES, sentinel.key)],
        (EPISODES, kept.key),
    ]
    episodes = [decode(Episode, item.value) for item in messages if item[::2] == (EPISODES, kept.key)]
    assert [episode.revision for episode in episodes] == [1, 2, 3]
    assert [signal.value for signal in episodes[1].signals] == [False], "the last word of a user counts"
    assert [signal.value for signal in episodes[2].signals] == [True], "it was taken back, so the earlier one counts"
    with database.snapshot() as connection:
        assert generation_states(connection)[kept.key] == ("user", "stale")
        assert signal_states(connection) == {said.id: "joined", changed.id: "retracted"}


def test_a_signal_under_a_taken_name_is_the_same_signal_whatever_its_choice(database: Database) -> None:
    about = a_generation()
    said = a_signal(about)
    other_choice = msgspec.structs.replace(said, choice=1)
    messages, _ = join(database, batch([(GENERATIONS, about), (SIGNALS, said), (SIGNALS, other_choice)]))
    assert len(messages) == 1
    assert join(database, batch([(SIGNALS, other_choice)]))[0] == []


@pytest.mark.parametrize("key", ["nonsense", "nonsense:0", "chatcmpl-019a0000-0000-7000-8000-000000000000:x"])
def test_an_outcome_about_no_sample_is_an_invalid_record(key: str) -> None:
    (record,) = batch([(OUTCOMES, an_outcome(key, 1, "trained"))])
    with pytest.raises(InvalidRecord, match="not a sample key"):
        EpisodesHandler(TASKS).read(record)


def test_an_episode_that_cannot_be_opened_is_an_invalid_record() -> None:
    turn = a_generation(body=b"damaged")
    episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(), closed_at=1.0)
    empty = msgspec.structs.replace(episode, turns=())
    misplaced = msgspec.structs.replace(episode, key="nonsense")
    for broken, reason in ((episode, "damaged"), (empty, "no turns"), (misplaced, "not a sample key")):
        (record,) = batch([(EPISODES, broken)])
        with pytest.raises(InvalidRecord, match=reason):
            RewardsHandler(TASKS).read(record)


def test_a_drawn_arm_that_gave_no_token_is_named_and_takes_no_part_in_anything_else(database: Database) -> None:
    curation = {"duplicates": 1, "near_duplicates": 1, "languages": ["en"]}
    task = BOOKING_TASK.model_copy(update={"curation": CurationRule.model_validate(curation)})
    body = pack_body(GenerationBody(messages=[], text="", prompt_ids=b"", completion_ids=b"", logprobs=b""))
    silent = [
        a_generation(arm="canary", arm_probability=0.5, draw=a_draw(5), spans=(), finish_reason="error", body=body)
        for _ in range(2)
    ]
    bench = Join(database, task)
    assert bench.hear(*silent) == []
    named = [record for record in bench.sent if isinstance(record, Outcome)]
    assert {(outcome.state, outcome.reason) for outcome in named} == {("cancelled", "engine_failed")}
    bench.hear(*named)
    assert bench.hear(asked := a_generation()) == []
    with database.snapshot() as connection:
        states = generation_states(connection)
    assert [states[record.key] for record in (*silent, asked)] == [("user", "cancelled")] * 2 + [("user", "pending")]
