"""The shadow over a real database, with an engine and graders made of tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select, update

from contracts.draws import hash_of
from contracts.errors import MillraceError, Unavailable
from contracts.event_log import LogRecord
from contracts.gating import GateAnswer, GateScore, SentinelFile
from contracts.records import (
    FinishReason,
    Generation,
    GenerationBody,
    Provided,
    encode,
    pack_body,
    pack_floats,
    pack_ids,
)
from contracts.tables import generation
from contracts.tasks import Task
from contracts.topics import GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.release.asking import LATE, REFUSED, BadVersion, SentinelAnswer, SentinelClient
from pipelines.release.train.repository import Train
from pipelines.release.train.shadow.repository import PER_UNIT, read_pairs, read_prompts
from pipelines.release.train.shadow.shadow import PairedShadow
from pipelines.release.train.trip import ShadowResult
from runtime.database import Database
from runtime.operations import LONGEST_WORK_SECONDS
from runtime.train_settings import TrainSettings
from tests.fakes import BOOKING_TASK, a_generation

OTHER = Task.model_validate({"name": "other", "signals": {"accepted": {"type": "bool", "labels": {"true": 1.0}}}})
TASKS = {"booking": BOOKING_TASK, "other": OTHER}
POLICY, VERSION, BLESSED, LEVEL = "booking", 6, 5, 0.002
STOP = threading.Event()
RIGHT = '{"party": 2}'

Said = Callable[[int, int], str]
"""The text of a version, by the number of the prompt."""


def a_prompt(number: int, person: str | None = None, task: str = "booking", **changes: Any) -> Generation:
    body = GenerationBody(
        messages=[{"role": "user", "content": str(number)}],
        text=RIGHT,
        prompt_ids=pack_ids([1]),
        completion_ids=pack_ids([2]),
        logprobs=pack_floats([-0.5]),
        metadata={"task": task, "session_id": "s1"},
        **changes.pop("fields", {}),
    )
    at = {"created_at": 1000.0 + number, "finished_at": 1001.0 + number}
    return a_generation(task=task, person=person or f"p{number}", **({"body": pack_body(body)} | at | changes))


def store(database: Database, *records: Generation) -> None:
    join = EpisodesHandler(TASKS, lambda: 2000.0)
    with database.transaction() as connection:
        join.handle(
            connection, [join.read(LogRecord(GENERATIONS, 0, 0, "", encode(record), 0.0)) for record in records]
        )


class ShadowWorld:
    """Versions that say what a table says."""

    def __init__(self, database: Database, said: Said) -> None:
        self.asked: list[tuple[int, int]] = []
        """Version, and number of questions."""
        self.seen: list[SentinelFile] = []
        self.fault: Callable[[int], MillraceError | None] = lambda _: None
        self.refused: set[str] = set()
        self.not_finite = False
        self.late: Callable[[int, str], bool] = lambda _version, _number: False
        self.grader_is_away = False
        self.database = database
        self.wall = 1_000.0
        self.seconds: Callable[[int], float] = lambda _version: 0.0
        """Of one answer; the engine gives `at_once` of them at a time."""
        self.at_once = 16
        self.given: list[float] = []
        """The time that each piece had."""
        world = self

        class FakeClient(SentinelClient):
            def __init__(self, patience: float = 60.0) -> None:
                self.patience = patience

            def patient(self, seconds: float) -> SentinelClient:
                world.given.append(seconds)
                return FakeClient(seconds)

            def ask(
                self, sentinels: SentinelFile, version: int, stop: threading.Event, draws: Mapping[str, int]
            ) -> tuple[SentinelAnswer, ...]:
                assert stop is STOP
                assert set(draws.values()) <= {0}, "one seed for both"
                if (error := world.fault(len(world.asked))) is not None:
                    world.fault = lambda _: None
                    raise error
                world.asked.append((version, len(sentinels.items)))
                world.seen.append(sentinels)
                began, seconds = world.wall, world.seconds(version)
                ready = [seconds * (1 + place // world.at_once) for place in range(len(sentinels.items))]
                world.wall = began + min(self.patience, max(ready))
                return tuple(
                    SentinelAnswer("", REFUSED, finite=True)
                    if item.messages[0]["content"] in world.refused
                    else SentinelAnswer("", LATE, finite=True)
                    if world.late(version, item.messages[0]["content"]) or ready[place] > self.patience
                    else SentinelAnswer(
                        said(version, int(item.messages[0]["content"])), "stop", finite=not world.not_finite
                    )
                    for place, item in enumerate(sentinels.items)
                )

        self.client = FakeClient()
        self.shadow = self.new_shadow()

    def new_shadow(self) -> PairedShadow:
        """That of a new process."""
        return PairedShadow(
            self.database,
            self.client,
            _mark,
            self._grade,
            policy=POLICY,
            tasks=TASKS,
            graded=frozenset({"booking"}),
            clock=lambda: self.wall,
            monotonic=lambda: self.wall,
        )

    def _grade(self, task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        assert task == "booking"
        if self.grader_is_away:
            return [GateScore(None, "away") for _ in answers]
        return [GateScore(float(answer.text == RIGHT)) for answer in answers]

    def look(self, wanted: int = 300) -> ShadowResult:
        """One look, or as many as a fast engine needs."""
        return self.shadow(a_train(VERSION, wanted), STOP)

    def finish(self, wanted: int = 300, *, paused: float = 0.0) -> ShadowResult:
        """Looks as the conductor makes them, which looks again after a fault."""
        for _ in range(10_000):
            self.wall += 1.0
            try:
                found = self.shadow(a_train(VERSION, wanted, paused=paused), STOP)
            except Unavailable:
                continue
            if found.is_over:
                return found
        raise AssertionError("the shadow does not end")


def a_train(version: int, wanted: int, *, paused: float = 0.0, number: int = 1) -> Train:
    settings = TrainSettings(shadow_prompts=wanted, level=LEVEL).model_dump(mode="json")
    evidence = {"paused_seconds": paused}
    return Train(
        number, POLICY, version, BLESSED, "shadow", -1, 1, 1_000.0, 0.0, None, "", {**settings, "slots": []}, evidence
    )


def _mark(task: str, body: GenerationBody, finish_reason: FinishReason) -> dict[str, float]:
    del task, finish_reason
    return {"empty": float(not body.text), "misshapen": float(not body.text.startswith("{"))}


def same(version: int, number: int) -> str:
    del version
    return RIGHT if number % 10 else "{}"


def broken(version: int, number: int) -> str:
    return "oops" if version == VERSION and number % 3 == 0 else same(version, number)


@pytest.fixture
def prompts(database: Database) -> Database:
    store(database, *(a_prompt(number) for number in range(200)))
    return database


def test_a_version_that_says_the_same_is_accepted(prompts: Database) -> None:
    found = ShadowWorld(prompts, same).look()
    assert not found.refused
    assert found.says.startswith(
        "no worse than v5 on 200 prompts of 200 people, of 300 wanted: there are no more; sees "
    )
    assert {item["name"]: item["canary"] for item in found.facts["metrics"]} == pytest.approx(
        {"late": 0.0, "truncated": 0.0, "empty": 0.0, "misshapen": 0.0, "graded": 0.9}
    )
    assert (found.facts["num_prompts"], found.facts["num_wanted"], found.facts["left_out"]) == (200, 300, {})


def test_a_broken_version_is_refused_with_reason_and_numbers(prompts: Database) -> None:
    found = ShadowWorld(prompts, broken).look()
    assert found.refused
    assert found.says.startswith(
        "worse than v5 on 200 prompts of 200 people: misshapen 0.335 against 0.000, 67 lost and 0 won"
    )
    assert [item["name"] for item in found.facts["metrics"] if item["verdict"] == "worse"] == ["misshapen", "graded"]


def test_both_versions_are_asked_the_same_and_nothing_of_it_is_logged(prompts: Database) -> None:
    store(
        prompts,
        a_prompt(
            500,
            fields={"tools": [{"type": "function"}], "tool_choice": "auto", "response_format": {"type": "json_object"}},
        ),
    )
    world = ShadowWorld(prompts, same)
    world.look(24)
    assert world.asked == [(VERSION, 8), (BLESSED, 8), (VERSION, 16), (BLESSED, 16)]
    assert world.seen[0] == world.seen[1]
    assert world.seen[2] == world.seen[3]
    newest = world.seen[0].items[0]
    assert newest.options == {
        "store": False,
        "tools": [{"type": "function"}],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
    }
    assert world.seen[0].items[1].options == {"store": False}


def test_a_provider_is_compared_by_what_it_answered_and_is_not_asked(database: Database) -> None:
    provided = Provided(origin="openai", model="big")
    store(
        database,
        *(a_prompt(number, provided=provided, spans=(), arm="provider") for number in range(100)),
        *(a_prompt(number, provided=provided, spans=(), finish_reason="error") for number in range(100, 110)),
        *(a_prompt(number) for number in range(200, 300)),
    )
    train = a_train(VERSION, 300)
    train = train._replace(settings={**train.settings, "provider_share": 1.0})
    for says, refused in ((broken, True), (lambda _version, _number: RIGHT, False)):
        world = ShadowWorld(database, says)
        found = world.shadow(train, STOP)
        assert ({version for version, _ in world.asked}, sum(num for _, num in world.asked)) == ({VERSION}, 100)
        assert (found.refused, "than the provider on 100 prompts" in found.says) == (refused, True), found.says
        train = train._replace(id=2)


def test_a_providers_answer_is_compared_under_the_limit_that_cut_it_and_only_if_the_log_has_its_whole_prompt(
    database: Database,
) -> None:
    partial, whole = (Provided(origin="openai", is_partial=is_partial) for is_partial in (True, False))
    limit = a_generation().sampling
    store(
        database,
        a_prompt(1, provided=partial, spans=()),
        a_prompt(2, provided=whole, spans=()),
        a_prompt(3, provided=whole, spans=(), finish_reason="length", sampling=replace(limit, max_tokens=7)),
    )
    with database.snapshot() as connection:
        found = read_prompts(connection, POLICY, 10, TASKS.keys(), provided=True)
    assert [(item.question.messages[0]["content"], item.question.options.get("max_tokens")) for item in found] == [
        ("3", 7),
        ("2", None),
    ]


def test_without_prompts_there_is_no_shadow(database: Database) -> None:
    found = ShadowWorld(database, broken).look()
    assert (found.refused, found.says) == (False, "no shadow: no prompt of a user was logged yet")


def test_what_was_answered_is_not_asked_again_after_a_fault_or_a_kill(prompts: Database) -> None:
    world = ShadowWorld(prompts, broken)
    world.fault = lambda num: Unavailable("busy") if num == 5 else None
    with pytest.raises(Unavailable):
        world.look()
    store(prompts, *(a_prompt(number) for number in range(1000, 1400)))
    asked = [item.where for seen in world.seen for item in seen.items]
    world.shadow = world.new_shadow()  # a new process
    assert world.look().refused
    again = [item.where for seen in world.seen[5:] for item in seen.items]
    whole = set(asked[:16]) | set(asked[16:48])
    assert len(whole) == 8 + 16 < len(set(asked)), "of the third piece only one version had answered"
    assert not whole & set(again)
    assert len(whole) + len(set(again)) == 300
    with prompts.snapshot() as connection:
        assert len(read_pairs(connection, 1)) == 300


def test_another_train_asks_anew(prompts: Database) -> None:
    world = ShadowWorld(prompts, same)
    world.look()
    num = len(world.asked)
    world.shadow(a_train(VERSION + 1, 8, number=2), STOP)
    assert world.asked[num:] == [(VERSION + 1, 8), (BLESSED, 8)]


class TestSlowEngines:
    """An answer takes 30 s and more: 64 of them do not fit into any fixed deadline."""

    @pytest.fixture
    def many(self, database: Database) -> Database:
        store(database, *(a_prompt(number) for number in range(520)))
        return database

    @pytest.mark.slow
    def test_a_model_with_30_s_per_answer_gets_through_all_its_prompts(self, many: Database) -> None:
        world = ShadowWorld(many, same)
        world.seconds = lambda _: 30.0
        found = world.finish(500)
        assert found.says.startswith("no worse than v5 on 500 prompts of 500 people; sees ")
        assert world.wall - 1_000.0 < 3_600.0, "within shadow_seconds"

    def test_a_slow_engine_with_little_room_is_told_by_name_and_goes_on_with_what_it_has(self, many: Database) -> None:
        world = ShadowWorld(many, same)
        world.seconds, world.at_once = (lambda _: 30.0), 2
        found = world.finish(500)
        assert not found.refused
        assert found.facts["num_prompts"] >= 100
        early = f"ended by time after 3,600 s with {found.facts['num_prompts']} of 500 pairs"
        assert early in found.says

    @pytest.mark.slow
    def test_no_look_takes_as_long_as_a_process_may(self, many: Database) -> None:
        world = ShadowWorld(many, same)
        world.seconds, world.at_once = (lambda _: 250.0), 1
        longest = 0.0
        for _ in range(40):
            began = world.wall
            with contextlib.suppress(Unavailable):
                world.look(500)
            longest = max(longest, world.wall - began)
        assert longest < LONGEST_WORK_SECONDS
        assert max(world.given) == 300.0
        with many.snapshot() as connection:
            assert read_pairs(connection, 1)

    def test_a_slow_version_that_loses_is_refused_with_the_pairs_that_it_had_time_for(self, many: Database) -> None:
        world = ShadowWorld(many, broken)
        world.seconds, world.at_once = (lambda _: 30.0), 2
        assert world.finish(500).refused

    def test_an_answer_that_no_deadline_is_long_enough_for_is_a_mark_of_both(self, many: Database) -> None:
        world = ShadowWorld(many, same)
        world.seconds = lambda _: 1_000.0
        found = world.finish(500)
        assert not found.refused
        assert "ended by time" in found.says
        [late] = found.facts["metrics"]
        assert (late["name"], late["canary"], late["live"]) == ("late", 1.0, 1.0)

    def test_the_deadline_follows_what_users_waited(self, database: Database) -> None:
        store(database, *(a_prompt(number, finished_at=1000.0 + number + 40.0) for number in range(20)))
        world = ShadowWorld(database, same)
        world.look()
        assert world.given[0] == 160.0

    @pytest.mark.slow
    def test_a_freeze_in_the_middle_loses_no_pair_and_its_time_does_not_count(self, many: Database) -> None:
        world = ShadowWorld(many, same)
        world.seconds = lambda _: 30.0
        for _ in range(20):
            world.look(500)
        num = len(world.asked)
        world.wall += 100_000.0  # frozen: the conductor does not call
        found = world.finish(500, paused=100_000.0)
        assert found.facts["num_prompts"] == 500
        assert sum(count for version, count in world.asked if version == VERSION) == 500
        assert len(world.asked) > num

    def test_what_ended_by_time_is_judged_once(self, many: Database) -> None:
        """A move that fails because the arms are held is made later, by the same pairs: more of them would spend the level again."""
        world = ShadowWorld(many, same)
        world.seconds, world.at_once = (lambda _: 30.0), 2
        found = world.finish(500)
        assert world.finish(500, paused=50_000.0).facts["metrics"] == found.facts["metrics"]


def test_a_version_whose_bytes_are_wrong_or_whose_numbers_are_not_finite_is_refused(prompts: Database) -> None:
    world = ShadowWorld(prompts, same)
    world.fault = lambda _: BadVersion("the engine refuses v6: wrong_shape")
    assert world.look()[:2] == (True, "the engine refuses v6: wrong_shape")
    world.not_finite = True
    assert world.look()[:2] == (True, "log-probs are not finite")


def test_a_grader_that_is_away_and_a_prompt_that_is_refused_say_nothing_about_the_version(prompts: Database) -> None:
    world = ShadowWorld(prompts, same)
    world.grader_is_away, world.refused = True, {"7", "8"}
    found = world.look()
    assert not found.refused
    assert found.facts["left_out"] == {"refused by the endpoint": 2, "not graded": 198}
    assert "graded" not in [item["name"] for item in found.facts["metrics"]]


def test_answers_that_never_end_are_a_mark_and_not_a_fault(prompts: Database) -> None:
    world = ShadowWorld(prompts, same)
    world.late = lambda version, number: version == VERSION and int(number) % 4 == 0
    found = world.look()
    assert found.refused
    assert found.says.startswith(
        "worse than v5 on 200 prompts of 200 people: late 0.250 against 0.000, 50 lost and 0 won"
    )
    assert not found.blames_version, "a slow machine may be the cause"
    [graded] = [item for item in found.facts["metrics"] if item["name"] == "graded"]
    assert (graded["num"], graded["verdict"]) == (150, "fine")


def test_engines_that_are_too_busy_for_the_live_version_are_asked_again_later(prompts: Database) -> None:
    world = ShadowWorld(prompts, same)
    world.late = lambda _version, number: int(number) % 2 == 0
    with pytest.raises(Unavailable, match="4 of 8 answers of the live version, v5, came too late, after 60 s"):
        world.look()
    world.late = lambda _version, _number: False
    assert world.look().says.startswith("no worse than v5 on 200 prompts")
    assert world.asked[:4] == [(VERSION, 8), (BLESSED, 8), (VERSION, 4), (BLESSED, 4)]
    assert world.given[:2] == [60.0, 120.0]


class TestPrompts:
    def test_the_newest_come_first_and_few_of_one_person_while_there_are_others(self, database: Database) -> None:
        store(database, *(a_prompt(number, "ann" if number >= 10 else None) for number in range(20)))
        with database.snapshot() as connection:
            found = [prompt.question.messages[0]["content"] for prompt in read_prompts(connection, POLICY, 8, TASKS)]
            every = read_prompts(connection, POLICY, 50, TASKS)
        assert found == [str(number) for number in (*range(19, 19 - PER_UNIT, -1), *range(9, 4, -1))]
        assert len(every) == 20
        assert [prompt.unit for prompt in every[:1]] == [hash_of("default/ann")], "no name stands in a table"

    def test_what_may_not_be_asked_again_is_left_out(self, database: Database) -> None:
        empty = GenerationBody(messages=[], text="", prompt_ids=b"", completion_ids=b"", logprobs=b"")
        store(
            database,
            a_prompt(1),
            erased := a_prompt(2),
            a_prompt(3, body=b"sealed with a key that was deleted"),
            a_prompt(4, task="other"),
            a_prompt(5, purpose="rollout"),
            a_prompt(6, policy="another"),
            a_prompt(7, body=pack_body(empty)),
            a_prompt(8, choice=1),
        )
        with database.transaction() as connection:
            gone = generation.c.completion_id == erased.completion_id
            connection.execute(update(generation).where(gone).values(state="erased"))
            found = read_prompts(connection, POLICY, 50, {"booking"})
        assert [prompt.question.messages[0]["content"] for prompt in found] == ["1"]


def test_a_record_that_cannot_be_decoded_is_left_out_and_the_others_are_asked(database: Database) -> None:
    store(database, *(a_prompt(number) for number in range(3)))
    with database.transaction() as connection:
        columns = generation.c
        newest = select(columns.completion_id).order_by(columns.created_at.desc()).limit(1)
        broken = connection.execute(newest).scalar_one()
        connection.execute(update(generation).where(columns.completion_id == broken).values(record=b"\xc1junk"))
    with database.snapshot() as connection:
        assert len(read_prompts(connection, POLICY, 10, TASKS)) == 2
