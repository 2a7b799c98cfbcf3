"""Replicas of the reward worker that share people, prompts and versions: no replica waits without end, nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pytest
from sqlalchemy import Table, func, select

from contracts.ids import new_completion_id
from contracts.records import Episode, GenerationBody, Score, Signal, Submitter, pack_body, pack_floats, pack_ids
from contracts.sampling import Span
from contracts.tables import behaviour, score, signal_delay, submitter, vote, vote_pace
from contracts.tasks import Task
from rewards.episode import UnpackedEpisode
from rewards.judges.budget import JudgeCosts
from rewards.judges.parse import JudgeVerdict
from rewards.judges.repository import DatabaseStore
from rewards.repository import add_behaviour
from rewards.signals.repository import forget_votes, remember, remembered
from rewards.signals.votes import VoteDecision
from rewards.signals.weighing import REMEMBERED_SECONDS, Weighing
from rewards.sums import Sums
from rewards.worker import RewardsHandler
from runtime.database import Database
from tests.fakes import a_generation
from tests.unit.rewards.signals.crowds import a_task

NOW = 1_800_000_000.0
DAY = 86_400.0
BATCH, NUM_PEOPLE, NUM_VERSIONS = 24, 12, 3
SECONDS = {"sqlite": 1.0, "postgresql": 3.0}
LONGEST_WAIT_SECONDS = 30.0
TOPICS = ("refunds", "delivery", "opening hours", "warranty", "invoices", "passwords", "returns", "gift cards")
BOUGHT = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}
THUMBS = {"type": "label", "labels": {"up": 1.0, "down": 0.0}}
TASK = Task.model_validate(
    {
        "name": "chat",
        "window_seconds": 600,
        "signals": {
            "bought": BOUGHT | {"window_seconds": 2 * DAY},
            "thumbs": THUMBS,
        },
        "judges": [{"name": "auditor", "role": "watch", "url": "http://127.0.0.1:9/v1", "model": "m", "criteria": "?"}],
        "audit": {"probability": 0.5, "judge": "auditor"},
        "trust": {"votes": 1_000_000, "burst": {"min_votes": 1_000_000}},
    }
)  # fmt: skip
HASTY = Task.model_validate(TASK.model_dump() | {"audit": None, "signals": {"bought": BOUGHT, "thumbs": THUMBS}})
Kind = Literal["user", "code"]
WHO: dict[str, tuple[Task, Kind]] = {"people": (TASK, "user"), "programs": (HASTY, "code")}
"""Of people rows are held to the end, so replicas take turns; of programs none, and they meet at sums of behaviour."""
Batch = list[UnpackedEpisode]


def an_answer(dice: random.Random, kind: Kind) -> UnpackedEpisode:
    """An answer about which somebody said something, or nobody did."""
    topic, who, value = dice.choice(TOPICS), f"u{dice.randrange(NUM_PEOPLE)}", dice.choice(("up", "down"))
    body = GenerationBody(
        messages=[{"role": "user", "content": f"a question about {topic}"}],
        text=dice.choice(("Certainly.", "No.", "- one\n- two", "What do you mean?")),
        prompt_ids=pack_ids([1]),
        completion_ids=pack_ids([2]),
        logprobs=pack_floats([-0.5]),
    )
    turn = a_generation(
        completion_id=new_completion_id(),
        task="chat",
        spans=(Span(0, dice.randrange(NUM_VERSIONS)),),
        finished_at=NOW - 30.0,
        body=pack_body(body),
    )
    said = Signal(
        id=f"fb_{turn.completion_id}", completion_id=turn.completion_id, choice=0, name="thumbs", value=value, at=NOW,
        received_at=NOW, tenant="default", submitter=Submitter(id=who, kind=kind),
    )  # fmt: skip
    is_silent = dice.random() < 0.2
    episode = Episode(
        key=turn.key, revision=1, reason="window", turns=(turn,), signals=() if is_silent else (said,), closed_at=NOW,
        provisional=True,
    )  # fmt: skip
    checked = Score(name="auditor", grader="judge/1#x", value=1.0 if value == "up" else 0.0, weight=0.0)
    return UnpackedEpisode(episode, turn, turn.open(), (checked,))


def once_more(item: UnpackedEpisode, dice: random.Random, kind: Kind) -> UnpackedEpisode:
    """The same answer, now that it is known whether the same person bought something."""
    somebody = Submitter(id=f"u{dice.randrange(NUM_PEOPLE)}", kind=kind)
    who = item.episode.signals[0].submitter if item.episode.signals else somebody
    bought = Signal(
        id=f"fb_b{item.turn.completion_id}", completion_id=item.turn.completion_id, choice=0, name="bought",
        value=dice.random() < 0.5, at=NOW, received_at=NOW, tenant="default", submitter=who,
    )  # fmt: skip
    episode = item.episode
    revised = Episode(
        key=episode.key, revision=2, reason="decisive", turns=episode.turns, signals=(*episode.signals, bought),
        closed_at=NOW,
    )  # fmt: skip
    return item._replace(episode=revised)


def batches(seed: int, kind: Kind) -> Iterator[Batch]:
    """Answers of one partition; a third of each batch comes again in the next, with more to say."""
    dice, again = random.Random(seed), Batch()
    while True:
        new = [an_answer(dice, kind) for _ in range(BATCH - len(again))]
        yield [*again, *new]
        again = [once_more(item, dice, kind) for item in new[: BATCH // 3]]


class Replica:
    """A reward worker without a log: it takes batches until its time is over."""

    def __init__(self, url: str, seed: int, task: Task, kind: Kind) -> None:
        self.handled: list[Batch] = []
        self._url, self._task, self._batches = url, task, batches(seed, kind)

    def work(self, seconds: float) -> None:
        database, handler = Database(self._url), RewardsHandler({"chat": self._task}, self._clock)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            batch = next(self._batches)
            handle(database, handler, batch, self._clock())
            self.handled.append(batch)
        handler.close()
        database.close()

    def _clock(self) -> float:
        return NOW + 700.0 * len(self.handled)  # each batch looks for alarms, and forgets


def handle(database: Database, handler: RewardsHandler, batch: Batch, now: float) -> None:
    with database.transaction() as connection:
        handler.handle(connection, batch)
        handler.tick(connection, now, frozenset({0}))


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Run them in threads; the first error of any is raised here."""
    errors: list[BaseException] = []

    def watched(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 raised again below
            errors.append(error)

    threads = [threading.Thread(target=watched, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    for error in errors:
        raise error


def rows_of(database: Database, table: Table) -> dict[tuple[object, ...], list[object]]:
    """Primary key to the other columns."""
    keys = [column.name for column in table.primary_key]
    with database.snapshot() as connection:
        return {
            tuple(row[name] for name in keys): [_rounded(value) for name, value in row.items() if name not in keys]
            for row in connection.execute(select(table)).mappings()
        }


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value  # sums depend on their order


@pytest.mark.slow
@pytest.mark.parametrize("who", sorted(WHO))
def test_two_replicas_leave_what_one_would_have(any_database: Database, database: Database, who: str) -> None:
    """People, paces, delays, votes and behaviour: every row equal to that of one worker that saw all batches in turn."""
    replicas = [Replica(any_database.url, seed, *WHO[who]) for seed in (1, 2)]
    seconds = SECONDS[any_database.url.partition(":")[0].partition("+")[0]]
    side_by_side([lambda one=one: one.work(seconds) for one in replicas])  # type: ignore[misc]
    alone = RewardsHandler({"chat": WHO[who][0]}, lambda: NOW)
    for replica in replicas:
        for batch in replica.handled:
            handle(database, alone, batch, NOW)
    alone.close()
    num = [len(replica.handled) for replica in replicas]
    if not any_database.url.startswith("sqlite"):  # which is no queue: embedded there is one worker
        assert min(num) >= 0.25 * max(num), f"one of them starved: {num} batches"
    for table in (score, vote, submitter, vote_pace, signal_delay, behaviour):
        together, expected = rows_of(any_database, table), rows_of(database, table)
        assert together.keys() == expected.keys(), table.name
        if table is not score:  # it says when
            assert together == expected, table.name
    with any_database.snapshot() as connection:
        counted = connection.execute(select(func.sum(submitter.c.num)).where(submitter.c.id != "")).scalar_one() or 0
        votes = connection.execute(select(func.count()).select_from(vote).where(vote.c.weight > 0)).scalar_one()
    spoken = {item.episode.key for one in replicas for batch in one.handled for item in batch if item.episode.signals}
    assert votes == len(spoken)
    assert counted == (votes if who == "people" else 0)


def test_who_forgets_never_waits_for_who_revises(any_database: Database) -> None:
    """One holds an old vote and wants a sum of behaviour; the other has that sum, and forgets old votes."""
    if any_database.url.startswith("sqlite"):
        return  # one writer at a time
    place = {("chat", 0, "", "null"): Sums(1)}
    old, gone = "chatcmpl-0:0", "chatcmpl-1:0"
    made = {key: VoteDecision("ann", 1.0, 1.0, "", 1.0, 0.0) for key in (old, gone)}
    with any_database.transaction() as connection:
        remember(connection, made, (), NOW - 2 * REMEMBERED_SECONDS)
    meet = threading.Barrier(2, timeout=LONGEST_WAIT_SECONDS)
    times = iter((NOW - DAY, NOW))
    weighing = Weighing({"chat": a_task()}, lambda: next(times))

    def revise() -> None:
        with any_database.transaction() as connection:
            remember(connection, {old: made[old]._replace(value=0.0)}, made, NOW)
            meet.wait()
            add_behaviour(connection, place)

    def forget() -> None:
        with any_database.transaction() as connection:
            add_behaviour(connection, place)
            meet.wait()
            weighing.forget(connection)

    side_by_side([revise, forget])
    with any_database.snapshot() as connection:
        assert remembered(connection, [old, gone]) == {old: made[old]._replace(value=0.0)}
        assert connection.execute(select(behaviour.c.num)).scalar_one() == 2


def test_replicas_that_forget_together_forget_everything_in_the_end(any_database: Database) -> None:
    keys = [f"chatcmpl-{number}:0" for number in range(3_000)]
    with any_database.transaction() as connection:
        remember(connection, dict.fromkeys(keys, VoteDecision("ann", 1.0, 1.0, "", 1.0, 0.0)), (), 10.0)

    def forget() -> None:
        for _ in range(4):
            with any_database.transaction() as connection:
                forget_votes(connection, 20.0)

    side_by_side([forget] * 3)
    assert rows_of(any_database, vote) == {}


def test_judges_of_two_replicas_count_every_call_and_keep_the_first_verdict(any_database: Database) -> None:
    keys = [f"k{number:03}" for number in range(50)]

    def judge(number: int) -> None:
        store, dice = DatabaseStore(any_database), random.Random(number)
        for at in range(15):
            asked = dice.sample(keys, 30)
            store.keep("judge", {key: JudgeVerdict(float(number), "", "") for key in asked}, float(at))
            store.spend("chat", "judge", "2026-11-21", JudgeCosts(1, 10, 0.25))
            store.forget("judge", float(at - 5))

    side_by_side([lambda: judge(0), lambda: judge(1)])
    assert DatabaseStore(any_database).spent("chat", "judge", "2026-11-21") == JudgeCosts(30, 300, 7.5)
