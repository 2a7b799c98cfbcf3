"""Homes of a feedback server that runs as users run it: a process of its own, on the embedded or on real servers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import sqlalchemy
from sqlalchemy import func, select

from contracts.keys import create_key
from contracts.records import Signal, decode
from contracts.tables import outbox, received_signal
from contracts.topics import SIGNALS, TOPICS
from runtime.database import Database, create_database
from runtime.days import migrate
from runtime.settings import Settings, write_settings
from tests.worlds.paths import ROOT
from tests.worlds.processes import START_SECONDS, free_port, wait_for_port
from tests.worlds.servers.load import LoadPlan

_PAUSE_SECONDS, _READ = 0.02, 5000
_TASK = """
name = "booking"
window_seconds = 600

[sampling]
owner = "task"
temperature = 1.0
max_tokens = 32

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
"""


class ReplicaProcess(Protocol):
    """What is asked of a replica's process; `subprocess.Popen` is one."""

    pid: int

    def kill(self) -> None:
        """SIGKILL."""

    def terminate(self) -> None:
        """SIGTERM."""

    def wait(self) -> int:
        """The status, once it has ended."""


def start_replica(home: Path, output: Path) -> ReplicaProcess:
    """The process `feedback` of a home; what it prints is added to `output`."""
    with output.open("ab") as file:
        return subprocess.Popen(  # noqa: S603 our own program
            [sys.executable, str(ROOT / "millrace.py"), "feedback", "--home", str(home)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


class FeedbackWorld:
    """One home, its key, and replicas of the process `feedback` on ports of their own.

    Args:
        folder: an empty folder.
        kafka: where the broker is; None: the log in the folder.
        server: PostgreSQL, where a database will be made; None: SQLite in the folder.
        replicas: how many processes; more than one needs both servers.
        start: starts one of them.
    """

    def __init__(
        self,
        folder: Path,
        kafka: str | None = None,
        server: str | None = None,
        replicas: int = 1,
        start: Callable[[Path, Path], ReplicaProcess] = start_replica,
    ) -> None:
        (folder / "task.toml").write_text(_TASK)
        self._server, self._start_replica = server, start
        self._name = name = f"feedback_{secrets.token_hex(6)}"
        database_url = create_database(server, name) if server else None
        self.homes = []
        for number in range(replicas):
            home = folder / str(number)
            settings = Settings(
                requests_per_minute=0,
                signals_per_minute=0,
                home=home,
                run=name.replace("_", "-"),
                policy="benchmark",
                base=str(folder / "base"),
                tasks=(folder / "task.toml",),
                feedback_port=free_port(),
                kafka=kafka,
                database_url=database_url,
            )
            write_settings(settings, {})
            self.homes.append(settings)
        self.settings = self.homes[0]
        self.database = self.settings.database()
        self.log = self.settings.event_log()
        self.log.create_topics()
        self.key = _prepare(self.database)
        self.processes: list[ReplicaProcess] = []

    def start(self) -> None:
        """Start every replica and wait until it answers."""
        self.processes = [self._start(settings.home) for settings in self.homes]
        for settings in self.homes:
            wait_for_port(settings.feedback_port or 0)

    def restart(self, number: int) -> None:
        """Kill a replica with SIGKILL and start it again; returns when it answers."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self._start(self.homes[number].home)
        wait_for_port(self.homes[number].feedback_port or 0)

    def plan(self, number: int = 0, **changes: object) -> LoadPlan:
        """Signals with ids of their own about generations that are not known yet, to one replica."""
        item = {
            "id": "fb-{n}",
            "completion_id": "chatcmpl-{uuid7}",
            "name": "accepted",
            "value": True,
            "submitter": {"id": "user-1"},
        }
        fields = {
            "port": self.homes[number].feedback_port,
            "path": "/v1/feedback",
            "headers": {"authorization": f"Bearer {self.key}"},
            "body": json.dumps(item),
        }
        return LoadPlan(**{**fields, **changes})  # type: ignore[arg-type]

    def num_stored(self) -> int:
        """Signals in the database."""
        with self.database.snapshot() as connection:
            return connection.execute(select(func.count()).select_from(received_signal)).scalar_one()

    def num_waiting(self) -> int:
        """Messages that are committed and not yet known to be in the log."""
        with self.database.snapshot() as connection:
            return connection.execute(select(func.count()).select_from(outbox)).scalar_one()

    def stored_ids(self) -> set[str]:
        """Ids in the database."""
        with self.database.snapshot() as connection:
            return set(connection.execute(select(received_signal.c.id)).scalars())

    def logged_ids(self) -> list[str]:
        """Ids in the log, as often as they are there."""
        found = []
        for partition, end in self.log.ends(SIGNALS).items():
            offset = 0
            while offset < end:
                records = self.log.read(SIGNALS, partition, offset, _READ)
                found += [decode(Signal, record.value).id for record in records]
                offset = records[-1].offset + 1
        return found

    def wait_for_signals(self) -> None:
        """Wait until more of them are stored. Raises RuntimeError: none is."""
        before, started = self.num_stored(), time.monotonic()
        while self.num_stored() == before:
            if time.monotonic() - started > START_SECONDS:
                raise RuntimeError(f"no signal was stored in {START_SECONDS:g} s")
            time.sleep(_PAUSE_SECONDS)

    def drain(self, seconds: float = START_SECONDS) -> float:
        """Wait until everything is in the log; how long that took."""
        started = time.monotonic()
        while self.num_waiting():
            if time.monotonic() - started > seconds:
                raise RuntimeError(f"{self.num_waiting()} signals were not relayed in {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)
        return time.monotonic() - started

    def close(self) -> None:
        """Stop the replicas; what they made on servers goes away."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        if self.settings.kafka is not None:
            from kafka import KafkaAdminClient  # noqa: PLC0415 only where there is a Kafka

            admin = KafkaAdminClient(bootstrap_servers=self.settings.kafka)
            admin.delete_topics([f"{self.settings.prefix}{topic}" for topic in TOPICS])
            admin.close()
        self.log.close()
        self.database.close()
        if self._server is not None:
            engine = sqlalchemy.create_engine(self._server, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql(f'DROP DATABASE "{self._name}" WITH (FORCE)')
            engine.dispose()

    def _start(self, home: Path) -> ReplicaProcess:
        return self._start_replica(home, home / "output.txt")


@contextmanager
def running(
    folder: Path,
    kafka: str | None = None,
    server: str | None = None,
    replicas: int = 1,
    start: Callable[[Path, Path], ReplicaProcess] = start_replica,
) -> Iterator[FeedbackWorld]:
    """A started world, until the block ends."""
    world = FeedbackWorld(folder, kafka, server, replicas, start)
    try:
        world.start()
        yield world
    finally:
        world.close()


def servers() -> tuple[str, str] | None:
    """Kafka and PostgreSQL, if the environment names them."""
    kafka, server = os.environ.get("MILLRACE_KAFKA"), os.environ.get("MILLRACE_DATABASE")
    return (kafka, server) if kafka and server else None


def _prepare(database: Database) -> str:
    migrate(database)
    with database.transaction() as connection:
        return create_key(connection, "app")
