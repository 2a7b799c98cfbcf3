"""A home on a cluster: a mock engine, `web`, `episodes` and `rewards` as users run them, and people who ask and say what they think.

In: the cluster's address. Out: what each person was told, and when. Waits for: the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from sqlalchemy import func, select

from benchmarks.feedback.world import free_port, wait_for_port
from benchmarks.gateway.world import mock_engine
from benchmarks.log.feed import task_text
from benchmarks.paths import EXAMPLE, ROOT
from commands.home import prepare_home
from contracts.errors import Unavailable
from contracts.ids import sample_key
from contracts.tables import outbox, position
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.database import create_database
from runtime.settings import Settings

_READS = {"episodes": (GENERATIONS, SIGNALS, OUTCOMES), "rewards": (EPISODES,)}
_PATIENCE_SECONDS, _LOOK_SECONDS, _PAUSE_SECONDS = 180.0, 0.3, 0.05
_POLICY = "gateway"


class Told(NamedTuple):
    """What a person was told. Times are of `time.monotonic`."""

    kind: str
    key: str
    status: int
    is_durable: bool
    began: float
    ended: float


class World:
    """See the module; `start` and `close` frame its life.

    Args:
        folder: an empty one.
        servers: the brokers.
        partitions: of each topic.
        copies: brokers that hold each record; one fewer must have it.
        database: PostgreSQL, where a database is made; None: SQLite.
    """

    def __init__(self, folder: Path, servers: str, *, partitions: int, copies: int, database: str | None) -> None:
        self._folder, self._stack = folder, ExitStack()
        self._server = database
        (folder / "task.toml").write_text(task_text())
        run = f"brokers-{uuid.uuid4().hex[:8]}"
        engine = self._spawn("engine", *mock_engine())
        self.settings = Settings(
            requests_per_minute=0,
            signals_per_minute=0,
            home=folder / "home",
            run=run,
            policy=_POLICY,
            base=str(EXAMPLE / "base"),
            tasks=(folder / "task.toml",),
            web_port=free_port(),
            engine_port=self._port_of(engine),
            kafka=servers,
            partitions=partitions,
            kafka_replication=copies,
            kafka_min_insync=copies - 1,
            kafka_session_seconds=6,
            database_url=create_database(database, run) if database else None,
        )
        self.key = prepare_home(self.settings, {}).app_key or ""
        self.database, self.log = self.settings.database(), self.settings.event_log()
        self.told: list[Told] = []
        self._behind: dict[str, int] = {}
        self._stopped = threading.Event()
        self._people: list[threading.Thread] = []

    @property
    def topics(self) -> list[str]:
        """As the brokers call them."""
        return [self.settings.prefix + topic for topic in self.log.describe()]

    def start(self, num_people: int) -> None:
        """Start the processes, then the people."""
        replicas = 1 if self._server is None else 2
        for name in ("web", *["episodes"] * replicas, *["rewards"] * replicas):
            self._spawn(name, str(ROOT / "millrace.py"), name, "--home", str(self.settings.home))
        wait_for_port(self.settings.web_port, "/ready", _PATIENCE_SECONDS)
        self._people = [threading.Thread(target=self._be_a_person, args=(number,)) for number in range(num_people)]
        for person in self._people:
            person.start()

    def rest(self) -> None:
        """The people go home."""
        self._stopped.set()
        for person in self._people:
            person.join()

    def settle(self) -> float:
        """Wait until everything was read and sent; the seconds that it took. Raises RuntimeError."""
        began = time.monotonic()
        while not self._is_drained():
            if time.monotonic() - began > _PATIENCE_SECONDS:
                ends = {path.name: path.read_text()[-1500:] for path in self._folder.glob("*.log")}
                raise RuntimeError(f"not drained: {self._behind}; {json.dumps(ends, indent=1)}")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    def close(self) -> None:
        """End the processes."""
        self._stopped.set()
        self._stack.close()
        self.log.close()
        self.database.close()

    def spooled(self) -> str:
        """What `web` says of its spool and its relay."""
        return (self._folder / "web.log").read_text()

    def clients(self) -> list[dict[str, Any]]:
        """What the people hold against us, in the form that `audit` reads."""
        return [
            {"kind": "generation", "key": item.key} if item.kind == "chat" else {"kind": "signal", "id": item.key}
            for item in self.told
            if item.is_durable
        ]

    def _be_a_person(self, number: int) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        with httpx.Client(base_url=self.settings.web_url, headers=headers, timeout=60.0) as client:
            while not self._stopped.is_set():
                content = f"A table for {number + 2} on Friday, please."
                asked = {"model": _POLICY, "messages": [{"role": "user", "content": content}]}
                answer = self._send(client, "chat", "/v1/chat/completions", asked)
                if answer is not None:
                    said = {
                        "id": f"fb-{uuid.uuid4().hex}",
                        "completion_id": answer.json()["id"],
                        "name": "accepted",
                        "value": number % 2 == 0,
                        "submitter": {"id": f"person-{number}"},
                    }
                    self._send(client, "feedback", "/v1/feedback", said)
                time.sleep(_PAUSE_SECONDS)

    def _send(self, client: httpx.Client, kind: str, path: str, body: dict[str, Any]) -> httpx.Response | None:
        """The answer if it was a good one."""
        began = time.monotonic()
        try:
            answer = client.post(path, json=body)
        except httpx.HTTPError:
            self.told.append(Told(kind, "", 0, is_durable=False, began=began, ended=time.monotonic()))
            return None
        is_durable = answer.is_success and answer.headers.get("x-millrace-logged") != "false"
        key = sample_key(answer.json()["id"], 0) if kind == "chat" and answer.is_success else str(body.get("id", ""))
        self.told.append(Told(kind, key, answer.status_code, is_durable, began, time.monotonic()))
        return answer if answer.is_success else None

    def _is_drained(self) -> bool:
        try:
            ends = {
                (group, topic, partition): end
                for group, topics in _READS.items()
                for topic in topics
                for partition, end in self.log.ends(topic).items()
                if end
            }
        except Unavailable:
            return False  # the brokers are still busy with each other
        with self.database.snapshot() as connection:
            rows = connection.execute(select(position)).all()
            waiting = connection.execute(select(func.count()).select_from(outbox)).scalar_one()
        stored = {(row.consumer_group, row.topic, row.partition): row.next_offset for row in rows}
        self._behind = {"outbox": waiting}
        self._behind |= {"/".join(map(str, place)): end for place, end in ends.items() if stored.get(place) != end}
        return self._behind == {"outbox": 0}

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        output = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(  # noqa: S603 our own programs
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        self._stack.callback(end_process, process)
        return process

    def _port_of(self, engine: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (text := (self._folder / "engine.log").read_text()).endswith("\n"):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the mock engine did not start: {text}")
            time.sleep(_LOOK_SECONDS)
        return int(text.split()[0])


def longest(told: Sequence[Told], kind: str, since: float, until: float) -> float:
    """The longest wait of a good answer that was under way in this time, in seconds."""
    waits = [
        item.ended - item.began
        for item in told
        if item.kind == kind and item.is_durable and item.ended > since and item.began < until
    ]
    return max(waits, default=0.0)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and kill it if it has not after half a minute."""
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
