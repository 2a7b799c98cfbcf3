"""A small Millrace on real servers: two processes `episodes`, two `rewards` and one `feedback`, as users run them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from contracts.errors import Unavailable
from contracts.keys import create_key
from contracts.tables import generation, outbox, position
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.database import Database
from runtime.log.kafka import KafkaLog
from runtime.settings import Settings, write_settings
from tests.forked import StartedProcess
from tests.worlds.feed import TASK, task_text
from tests.worlds.light_processes import start_light
from tests.worlds.processes import free_port, wait_for_port
from tests.worlds.servers.postgres import create_migrated

READS = {"episodes": (GENERATIONS, SIGNALS, OUTCOMES), "rewards": (EPISODES,)}
REPLICAS = ("episodes-1", "episodes-2", "rewards-1", "rewards-2")
NUM_PARTITIONS = 7  # not the default, and no multiple of the replicas
SESSION_SECONDS = 6.0
PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.2


class FaultWorld:
    """See the module. `clients` is what its users were told is kept; `is_sound` until something is missing.

    `users_log` gives a broker up sooner than `log`, by which tests look at what is there.
    """

    def __init__(self, folder: Path, kafka: str, server_url: str) -> None:
        self._folder = folder
        (folder / "task.toml").write_text(task_text())
        run = f"faults-{os.urandom(4).hex()}"
        self.settings = Settings(
            home=folder,
            run=run,
            policy=TASK,
            base="none",
            tasks=(folder / "task.toml",),
            feedback_port=free_port(),
            kafka=kafka,
            kafka_session_seconds=SESSION_SECONDS,
            partitions=NUM_PARTITIONS,
            database_url=create_migrated(server_url),
        )
        write_settings(self.settings, {})
        self.database: Database = self.settings.database()
        self.prefix = f"{TASK}.{run}."
        self.log, self.users_log = (
            KafkaLog(kafka, prefix=self.prefix, timeout=seconds, num_partitions=NUM_PARTITIONS)
            for seconds in (30.0, 5.0)
        )
        self.log.create_topics()
        with self.database.transaction() as connection:
            self.key = create_key(connection, "app")
        self.clients: list[dict[str, Any]] = []
        self.is_sound = True
        self.processes: dict[str, StartedProcess] = {}

    def start(self, *names: str) -> None:
        """Start processes, by name and number, and wait until they do their work."""
        for name in names:
            self.processes[name] = self._spawn(name)
        wait_for_port(self.settings.feedback_port or 0, seconds=PATIENCE_SECONDS)
        # Each look costs a connection, and the processes that start need the processors.
        until(lambda: all(self.num_members(group) == 2 for group in READS), self, pause=0.5)

    def stop(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30.0)
            except TimeoutError:
                process.kill()
                process.wait()
        self.log.close()
        self.users_log.close()
        self.database.close()

    def printed(self, name: str) -> str:
        """What a process wrote so far."""
        return (self._folder / f"{name}.log").read_text()

    def last_words(self, names: Iterable[str]) -> dict[str, str]:
        """The end of each process's output."""
        return {name: self.printed(name)[-2000:] for name in names}

    def ended(self) -> list[str]:
        """Processes that should run and do not; nobody starts them again."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def num_members(self, group: str) -> int:
        """How many members of a group have partitions, and 0 while it is being formed.

        Raises:
            Unavailable: no broker coordinates the group yet, as in the first seconds of its life.
        """
        with self.log._cluster.explained("asked for its groups"), closing(self.log._cluster.admin()) as admin:
            found = admin.describe_groups([self.prefix + group])[self.prefix + group]
        if found["group_state"] != "Stable":
            return 0
        return sum(bool(member["member_assignment"]["assigned_partitions"]) for member in found["members"])

    def is_drained(self) -> bool:
        """Everything was read, every passed window is closed, and everything that was decided was sent."""
        ends = {
            (group, topic, partition): end
            for group, topics in READS.items()
            for topic in topics
            for partition, end in self.log.ends(topic).items()
            if end
        }
        due = select(func.count()).select_from(generation).where(generation.c.closes_at <= time.time())
        with self.database.snapshot() as connection:
            rows = connection.execute(select(position)).all()
            waiting = connection.execute(select(func.count()).select_from(outbox)).scalar_one()
            waiting += connection.execute(due).scalar_one()
        stored = {(row.consumer_group, row.topic, row.partition): row.next_offset for row in rows}
        return waiting == 0 and all(stored.get(place) == end for place, end in ends.items())

    def settle(self) -> None:
        """Wait until the loop is drained; a process that ended meanwhile never comes back."""
        until(self.is_drained, self)

    @contextmanager
    def generations_locked(self, mode: str) -> Iterator[None]:
        """A lock on the table of generations until the block ends: whoever needs it waits within its transaction.

        `mode`: `EXCLUSIVE` stops those who read rows to change them, `SHARE ROW EXCLUSIVE` those who write.
        """
        patient = Database(self.database.url, longest_pause_seconds=2 * PATIENCE_SECONDS)
        with patient.transaction() as connection:
            connection.exec_driver_sql(f"LOCK TABLE generation IN {mode} MODE")
            yield
        patient.close()

    def num_waiting(self) -> int:
        """How many transactions wait for a lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with self.database.snapshot() as connection:
            return int(connection.exec_driver_sql(waiting).scalar_one())

    def _spawn(self, name: str) -> StartedProcess:
        output = self._folder / f"{name}.log"
        return start_light(name.partition("-")[0], "--home", str(self._folder), output=output)


def until(is_so: Callable[[], bool], world: FaultWorld, pause: float = _LOOK_SECONDS) -> None:
    """Wait for it; servers may be away meanwhile, processes may not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if is_so():
                return
            why = "the condition did not come true"
        except Unavailable as error:
            why = error.message
        ended = world.ended()
        assert not ended, f"these ended: {world.last_words(ended)}"
        assert time.monotonic() < deadline, f"{why}: {world.last_words(world.processes)}"
        time.sleep(pause)


@contextmanager
def a_world(kafka: str, server_url: str) -> Iterator[FaultWorld]:
    """A world whose processes run, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        world = FaultWorld(Path(folder), kafka, server_url)
        try:
            world.start("feedback", *REPLICAS)
            yield world
        finally:
            world.stop()
