"""Whatever decodable records say: no step of a worker ends with anything but `TooManyDeadLetters`, and innocents are done once."""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from contracts.errors import InvalidRecord
from contracts.event_log import Message
from contracts.records import Episode, Experience, Generation, decode
from contracts.tables import generation, score, signal
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.log.dead_letters import SKIPPED
from runtime.log.local import LocalLog
from runtime.log.outbox import Relay, message
from runtime.log.redrive import SENDER, find, redrive, skip
from runtime.settings import Settings
from runtime.worker import Worker
from services.dashboard.live.reader import StateReader
from tests.fakes import a_generation, a_signal, everything
from tests.hostile import hostile, tasks
from tests.worlds.servers.judge import judge_server, verdict
from weights.stores.opening import open_store_at

NUM_INNOCENT, NUM_HOSTILE = 200, 40


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with judge_server(lambda _asked: verdict("yes")) as running:
        yield running.url


@pytest.mark.slow
def test_hostile_records_cost_themselves(any_database: Database, judge: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(3)
    sys.stdout.write(f"seed {seed}\n")  # pytest shows it when the test fails
    draw, declared = random.Random(seed), tasks(judge)
    names = list(declared)
    innocent = [a_generation(task=names[number % len(names)]) for number in range(NUM_INNOCENT)]
    log = LocalLog(tmp_path / "log")
    append(log, draw, names, GENERATIONS, [message(GENERATIONS, item.key, item) for item in innocent])
    append(log, draw, names, SIGNALS, [message(SIGNALS, item.key, a_signal(item)) for item in innocent])
    append(log, draw, names, OUTCOMES, [])
    drain(Worker(EpisodesHandler(declared, lambda: 103.0), any_database, log, clock=lambda: 103.0))
    append(log, draw, names, EPISODES, [])
    rewards = RewardsHandler(declared, lambda: 104.0, any_database)
    with closing(rewards):
        drain(Worker(rewards, any_database, log, clock=lambda: 104.0))
    check(any_database, log, innocent)
    look(any_database, log, tmp_path)
    settle(any_database, log, declared)
    check(any_database, log, innocent)
    log.close()


class FaultyEpisodes(EpisodesHandler):
    """Raises for one answer of ten, after it did all that the others need."""

    def handle(self, connection: Connection, items: Sequence[Any]) -> list[Message]:
        messages = super().handle(connection, items)
        if any(isinstance(item.record, Generation) and is_faulty(item.record.key) for item in items):
            raise ZeroDivisionError("a fault of ours")
        return messages


class FaultyRewards(RewardsHandler):
    """The same, while graders are asked too."""

    def prepare(self, items: Sequence[Any]) -> list[Any]:
        if any(is_faulty(item.episode.key, 1) for item in items):
            raise KeyError("a fault of ours")
        return super().prepare(items)

    def handle(self, connection: Connection, items: Sequence[Any]) -> list[Message]:
        messages = super().handle(connection, items)
        if any(is_faulty(item.episode.key, 2) for item in items):
            raise RecursionError
        return messages


def is_faulty(key: str, salt: int = 0) -> bool:
    return zlib.crc32(f"{salt}{key}".encode()) % 10 == 0


def test_faults_of_the_handlers_cost_the_records_that_meet_them(
    any_database: Database, judge: str, tmp_path: Path
) -> None:
    declared = tasks(judge)
    names = list(declared)
    answers = [a_generation(task=names[number % len(names)]) for number in range(60)]
    log = LocalLog(tmp_path / "log")
    log.append([message(GENERATIONS, item.key, item) for item in answers])
    log.append([message(SIGNALS, item.key, a_signal(item)) for item in answers])
    drain(Worker(FaultyEpisodes(declared, lambda: 103.0), any_database, log, clock=lambda: 103.0))
    with closing(FaultyRewards(declared, lambda: 104.0, any_database)) as rewards:
        drain(Worker(rewards, any_database, log, clock=lambda: 104.0))
    check(any_database, log, [item for item in answers if not any(is_faulty(item.key, salt) for salt in range(3))])
    with any_database.snapshot() as connection:
        letters = find(connection)
    wanted = {item.key: ("episodes" if is_faulty(item.key) else "rewards") for item in answers}
    wanted = {key: process for key, process in wanted.items() if any(is_faulty(key, salt) for salt in range(3))}
    assert {letter.key: letter.process for letter in letters} == wanted
    assert all(letter.traceback for letter in letters)
    log.close()


def append(log: LocalLog, draw: random.Random, names: list[str], topic: str, innocent: list[Message]) -> None:
    """In random order, one hostile record to five."""
    mixed = innocent + [hostile(topic, draw, names) for _ in range(NUM_HOSTILE)]
    draw.shuffle(mixed)
    log.append(mixed)


def drain(worker: Worker[Any]) -> None:
    while worker.step():
        pass


def check(database: Database, log: LocalLog, innocent: list[Generation]) -> None:
    keys = {item.key for item in innocent}
    with database.snapshot() as connection:
        columns = (generation.c.completion_id, generation.c.revision, generation.c.state)
        rows = {row.completion_id: row for row in connection.execute(select(*columns))}
        counted = connection.execute(select(signal.c.completion_id, func.count()).group_by(signal.c.completion_id))
        joined = {name: count for name, count in counted}  # noqa: C416 a row is not a tuple for dict()
        scored = Counter(connection.execute(select(score.c.key)).scalars())
    episodes = Counter(item.key for item in records(log, EPISODES, Episode) if item.key in keys)
    experiences = Counter(item.key for item in records(log, EXPERIENCES, Experience) if item.key in keys)
    once = dict.fromkeys(keys, 1)
    assert {item.key: rows[item.completion_id].revision for item in innocent} == once
    assert {item.key: joined[item.completion_id] for item in innocent} == once
    assert {key: scored[key] for key in keys} == once
    assert (episodes, experiences) == (Counter(once), Counter(once))


def records(log: LocalLog, topic: str, kind: Any) -> Iterator[Any]:
    for record in everything(log, topic):
        try:
            yield decode(kind, record.value)
        except InvalidRecord:
            continue  # a hostile one


def look(database: Database, log: LocalLog, home: Path) -> None:
    settings = Settings(home=home, run="r", policy="booking", base="base", tasks=(Path("task.toml"),))
    reader = StateReader(settings.policy, database, log, open_store_at(home / "weights"))
    state = reader.read(time.time())
    problems = [problem for problem in state.generations.problems if "could not be processed" not in problem]
    assert problems == []


def settle(database: Database, log: LocalLog, declared: Any) -> None:
    """Redriven, they are buried again; skipped, they count no more; what was done is not done again."""
    with database.transaction() as connection:
        letters = find(connection)
        assert len(letters) > NUM_HOSTILE
        redrive(connection, letters, 200.0)
    Relay(SENDER, database, log).flush()
    drain(Worker(EpisodesHandler(declared, lambda: 103.0), database, log, clock=lambda: 103.0))
    with closing(RewardsHandler(declared, lambda: 104.0, database)) as rewards:
        drain(Worker(rewards, database, log, clock=lambda: 104.0))
    with database.transaction() as connection:
        again = find(connection)
        assert len(again) == len(letters)
        skip(connection, again, 201.0)
        assert len(find(connection, states=(SKIPPED,))) == len(letters)
    Relay(SENDER, database, log).flush()
    drain(Worker(EpisodesHandler(declared, lambda: 103.0), database, log, clock=lambda: 103.0))
