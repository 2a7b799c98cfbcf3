"""One run of the log's benchmark: a home of its own, a feed, the workers, and what they did."""

from __future__ import annotations

import cProfile
import multiprocessing
import os
import pstats
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import sqlalchemy
from sqlalchemy import func, select

from contracts.event_log import EventLog, Message
from contracts.tables import generation, outbox, position, score
from contracts.tasks.loading import load_tasks
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS, TOPICS
from pipelines.episodes.__main__ import main as episodes
from pipelines.episodes.handler import EpisodesHandler
from rewards.__main__ import main as rewards
from rewards.worker import RewardsHandler
from runtime.database import Database, create_database
from runtime.days import migrate
from runtime.settings import Settings, load_settings, write_settings
from runtime.worker import Worker
from tests.worlds.feed import TASK, a_feed, task_text

READS = {"episodes": (GENERATIONS, SIGNALS, OUTCOMES), "rewards": (EPISODES,)}
_MAINS: dict[str, Callable[[Path, threading.Event], None]] = {"episodes": episodes, "rewards": rewards}
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.1, 900.0
_APPEND_AT_ONCE = 5_000
_WARM_UP = 200
_SETTLE_SECONDS = 6.0
"""The second replica of a group joins it a few seconds after the first."""


class LogArm(NamedTuple):
    """What is compared."""

    name: str
    services: bool
    replicas: int


@dataclass(frozen=True)
class LogFigures:
    """What a run gave. `cpu_ms`: of the workers, for each generation. `copies`: messages that the relay sent twice."""

    generations_per_second: float
    events_per_second: float
    cpu_ms: dict[str, float]
    copies: int


class LogWorld:
    """Database and log of one run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database: Database = settings.database()
        self.log: EventLog = settings.event_log()

    def append(self, messages: Sequence[Message]) -> None:
        """Feed the log."""
        for start in range(0, len(messages), _APPEND_AT_ONCE):
            self.log.append(messages[start : start + _APPEND_AT_ONCE])

    def is_drained(self) -> bool:
        """True if everything was read and relayed, and every passed window is closed."""
        ends = {topic: self.log.ends(topic) for topics in READS.values() for topic in topics}
        wanted = {
            (group, topic, partition): end
            for group, topics in READS.items()
            for topic in topics
            for partition, end in ends[topic].items()
            if end
        }
        due = select(func.count()).select_from(generation).where(generation.c.closes_at <= time.time())
        with self.database.snapshot() as connection:
            rows = connection.execute(select(position)).all()
            stored = {(row.consumer_group, row.topic, row.partition): row.next_offset for row in rows}
            waiting = connection.execute(select(func.count()).select_from(outbox)).scalar_one()
            waiting += connection.execute(due).scalar_one()
        return waiting == 0 and all(stored.get(place) == end for place, end in wanted.items())

    def check(self, num_generations: int) -> int:
        """Every generation was joined, every revision was scored once; returns how many messages were sent twice."""
        with self.database.snapshot() as connection:
            joined = connection.execute(select(func.count()).select_from(generation)).scalar_one()
            revisions = connection.execute(select(func.sum(generation.c.revision))).scalar_one()
            scores = connection.execute(select(func.count()).select_from(score)).scalar_one()
        sent = sum(self.log.ends(EXPERIENCES).values())
        if not joined == num_generations <= revisions == scores <= sent:
            raise RuntimeError(f"{num_generations} fed, {joined} joined, {revisions} sent, {scores} scored, {sent} out")
        return int(sent - scores + sum(self.log.ends(EPISODES).values()) - revisions)

    def num_events(self) -> int:
        """Records on all topics."""
        return sum(sum(self.log.ends(topic).values()) for topic in TOPICS)


def server_urls() -> tuple[str, str] | None:
    """Kafka and PostgreSQL, where the environment names them."""
    kafka, database = os.environ.get("MILLRACE_KAFKA"), os.environ.get("MILLRACE_DATABASE")
    return (kafka, database) if kafka and database else None


@contextmanager
def a_world(arm: LogArm) -> Iterator[LogWorld]:
    """A fresh home, database and topics, which go away afterwards."""
    run = f"bench-{uuid.uuid4().hex[:10]}"
    urls = server_urls() if arm.services else None
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "task.toml").write_text(task_text())
        settings = Settings(
            requests_per_minute=0,
            signals_per_minute=0,
            home=home,
            run=run,
            policy=TASK,
            base="none",
            tasks=(home / "task.toml",),
            kafka=urls[0] if urls else None,
            database_url=create_database(urls[1], run) if urls else None,
        )
        write_settings(settings, {})
        world = LogWorld(settings)
        migrate(world.database)
        world.log.create_topics()
        yield world
        world.log.close()
        world.database.close()
        if urls:
            _remove(*urls, settings)


def _remove(kafka: str, server_url: str, settings: Settings) -> None:
    from kafka import KafkaAdminClient  # noqa: PLC0415 only where there is a Kafka

    engine = sqlalchemy.create_engine(server_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE "{settings.run}" WITH (FORCE)')
    engine.dispose()
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.delete_topics([f"{settings.prefix}{topic}" for topic in TOPICS])
    admin.close()


def measure(arm: LogArm, num_generations: int, seed: int) -> LogFigures:
    """Start the workers as processes, let them settle on a small feed, then time a large one until everything is out."""
    feed = a_feed(num_generations, seed)
    with a_world(arm) as world, _processes(world.settings.home, arm.replicas) as processes:
        world.append(a_feed(_WARM_UP, seed=-1))
        _wait(world.is_drained, processes)
        time.sleep(_SETTLE_SECONDS)
        before, cpu = world.num_events(), {name: _cpu(name, processes) for name in READS}
        begun_at = time.perf_counter()
        world.append(feed)
        _wait(world.is_drained, processes)
        seconds = time.perf_counter() - begun_at
        spent = {name: _cpu(name, processes) - cpu[name] for name in READS}
        return LogFigures(
            generations_per_second=num_generations / seconds,
            events_per_second=(world.num_events() - before) / seconds,
            cpu_ms={name: value * 1000 / num_generations for name, value in spent.items()},
            copies=world.check(num_generations + _WARM_UP),
        )


def _wait(is_done: Callable[[], bool], processes: dict[str, BaseProcess]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_done():
        dead = [name for name, process in processes.items() if not process.is_alive()]
        if dead or time.monotonic() > deadline:
            raise RuntimeError(f"{dead or 'the workers'} stopped" if dead else "nothing came out in time")
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _processes(home: Path, replicas: int) -> Iterator[dict[str, BaseProcess]]:
    spawn = multiprocessing.get_context("spawn")
    processes: dict[str, BaseProcess] = {
        f"{name}-{number}": spawn.Process(target=_run, args=(name, home))
        for name in READS
        for number in range(replicas)
    }
    for process in processes.values():
        process.start()
    try:
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def _run(name: str, home: Path) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _MAINS[name](home, stop)


def _cpu(name: str, processes: dict[str, BaseProcess]) -> float:
    times = [psutil.Process(process.pid).cpu_times() for key, process in processes.items() if key.startswith(name)]
    return float(sum(item.user + item.system for item in times))


def workers(world: LogWorld) -> list[Worker[Any]]:
    """Both workers, in this process."""
    tasks = load_tasks(load_settings(world.settings.home).tasks)
    return [Worker(handler, world.database, world.log) for handler in (EpisodesHandler(tasks), RewardsHandler(tasks))]


def drain(world: LogWorld, running: Sequence[Worker[Any]]) -> float:
    """Step the workers in turn until nothing is left; returns the seconds of the steps that found something."""
    seconds = 0.0
    while True:
        found = 0
        for worker in running:
            begun_at = time.perf_counter()
            handled = worker.step(_LOOK_SECONDS)
            if handled:
                seconds += time.perf_counter() - begun_at
            found += handled
        if not found and world.is_drained():
            return seconds


def profile(arm: LogArm, num_generations: int) -> None:
    """Print where the time of both workers goes, in one process."""
    with a_world(arm) as world:
        world.append(a_feed(num_generations))
        running = workers(world)
        profiler = cProfile.Profile()
        profiler.runcall(drain, world, running)
        print(f"\n{arm.name}, {num_generations} generations; a profiled call costs more than one that is not")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(45)
