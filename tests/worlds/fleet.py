"""Engine processes behind one inference process, with the process that keeps the ledger; all on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai

from commands.audit import Audit, audit
from contracts.assignments import LIVE, move
from contracts.engines import EngineReplica, announce, read_replicas, withdraw
from contracts.ids import sample_key
from contracts.keys import create_key
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_key import ENGINE_KEY
from runtime.settings import Settings, write_settings
from services.engine.settings import EngineSettings
from tests.forked import ForkedMillrace
from tests.unit.services.serving import wait_until
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.processes import free_port
from tests.worlds.versions import moved, publish_next
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors

POLICY, RUN, KEY = "fleet", "run", "the-key-of-this-test-of-engines"
PATIENCE_SECONDS = 300.0
"""How long anything may take, on the slowest machine."""
FINISHED = {"stop", "length"}


class ReplicaFleet:
    """See the module. The endpoint is in region `near`.

    Args:
        folder: for homes, the database and weights.
        stack: ends the processes.
        forked: they need not import, see `tests/forked.py`.
    """

    def __init__(self, folder: Path, stack: ExitStack, *, forked: bool = False) -> None:
        self.folder, self.stack = folder, stack
        self._popen: Any = ForkedMillrace if forked else subprocess.Popen
        (folder / "weights").mkdir()
        self.database = Database(f"sqlite:///{folder / 'millrace.db'}")
        stack.callback(self.database.close)
        migrate(self.database)
        with self.database.transaction() as connection:
            self.key = create_key(connection, "app")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started_at: dict[str, float] = {}
        self.homes: dict[str, Settings] = {}
        self.seen: list[str] = []
        """Sample keys of the answers that a client saw."""
        self.store = open_store_at(folder / "weights")
        self._tensors = read_safetensors(EXAMPLE / "base")
        publish_next(self.store, POLICY, 0, base=None, target=self._tensors, run=RUN)
        self.version = -1
        self.assign(0)

    def publish(self) -> int:
        """The next version, not assigned yet."""
        target, version = moved(self._tensors, 0.01, self.version + 1), self.version + 1
        publish_next(self.store, POLICY, version, base=self._tensors, target=target, run=RUN)
        self._tensors = target
        return version

    def assign(self, version: int) -> None:
        """Point live at the next version."""
        with self.database.transaction() as connection:
            move(
                connection, policy=POLICY, arm=LIVE, version=version, expected_epoch=version, writer="test", reason="test",
                share=1.0, run=RUN,
            )  # fmt: skip
        self.version = version

    def home(self, name: str, region: str, **own: object) -> Settings:
        """The home of a process; `own`: its base, the replica's `own_name`, and settings of the section [engine]."""
        home = self.folder / name
        home.mkdir()
        (home / "weights").symlink_to(self.folder / "weights")
        base, called = str(own.pop("base", EXAMPLE / "base")), own.pop("own_name", name)
        settings = Settings(
            home=home, run=RUN, policy=POLICY, base=base, tasks=(EXAMPLE / "task.toml",), engine_port=free_port(),
            web_port=free_port(), database_url=self.database.url, weights_unsigned=True, region=region, requests_per_minute=0,
        )  # fmt: skip
        write_settings(settings, {"engine": EngineSettings.model_validate({"name": called, "slots": ("live",), **own})})
        self.homes[name] = settings
        return settings

    def start(self, process: str, home: str) -> subprocess.Popen[bytes]:
        """Start, or start again, a process of a home; it writes to `HOME.log`."""
        with (self.folder / f"{home}.log").open("ab") as log:
            started: subprocess.Popen[bytes] = self._popen(
                [sys.executable, str(ROOT / "millrace.py"), process, "--home", str(self.folder / home)],
                env=os.environ | {"PYTHONPATH": str(ROOT), ENGINE_KEY: KEY},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.stack.callback(started.wait)
        self.stack.callback(started.kill)
        name = home if process == "engine" else process
        self.processes[name], self.started_at[name] = started, time.time()
        return started

    def restart_engine(self, name: str) -> None:
        """End it at once, if it still runs, and start it again."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.start("engine", name)

    def start_engine(self, name: str, region: str, **own: object) -> None:
        """The engine of a new home."""
        self.home(name, region, **own)
        self.start("engine", name)

    def start_endpoint(self) -> None:
        """Inference, and the process that keeps the ledger."""
        self.home("web", "near")
        self.start("episodes", "web")
        self.start("inference", "web")
        wait_until(self.is_ready, PATIENCE_SECONDS)

    @property
    def url(self) -> str:
        """Of the endpoint."""
        return self.homes["web"].web_url

    def is_ready(self) -> bool:
        """Whether the endpoint says so."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=5.0).is_success
        except httpx.TransportError:
            return False

    def rows(self) -> dict[str, EngineReplica]:
        """The rows that are renewed, by name."""
        with self.database.snapshot() as connection:
            return {row.name: row for row in read_replicas(connection, POLICY) if row.is_fresh(time.time())}

    def serve(self, *names: str) -> bool:
        """True if these replicas, and no others, say that they serve the assigned version, each since its last start.

        Fails if the process of one of them has ended.
        """
        for name in names:
            process = self.processes.get(name)
            assert process is None or process.poll() is None, f"{name} ended: {self.log_of(name)[-2000:]}"
        rows = self.rows()
        return rows.keys() == set(names) and all(
            row.status == "serving"
            and row.slots["live"] == self.version
            and row.seen_at > self.started_at.get(row.name, 0.0)
            for row in rows.values()
        )

    def tell(self, row: EngineReplica) -> None:
        """Write a row."""
        with self.database.transaction() as connection:
            announce(connection, row)

    def forget(self, row: EngineReplica) -> None:
        """Remove a row."""
        with self.database.transaction() as connection:
            withdraw(connection, POLICY, row.name, row.instance)

    def log_of(self, name: str) -> str:
        """What a home's processes wrote so far."""
        return (self.folder / f"{name}.log").read_text()

    def audit(self) -> Audit:
        """The ledger against the log and what clients saw."""
        log = self.homes["web"].event_log()
        try:
            return audit(self.database, log, [{"kind": "generation", "key": key} for key in self.seen])
        finally:
            log.close()

    def load(self, rate: float, seconds: float, after: float, call: Callable[[], object], n: int = 1) -> Counter[str]:
        """Requests at a fixed rate, every other one streamed; `call` is called after `after` seconds. How they ended."""
        return asyncio.run(self._load(rate, seconds, (after, call), n))

    async def _load(self, rate: float, seconds: float, at: tuple[float, Callable[[], object]], n: int) -> Counter[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=PATIENCE_SECONDS
        ) as client:
            started, asked = time.monotonic(), list[asyncio.Task[str]]()
            calling = asyncio.get_running_loop().call_later(*at)
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                asked.append(asyncio.create_task(self._ask(client, number, n)))
            calling.cancel()
            return Counter(await asyncio.gather(*asked))

    async def _ask(self, client: openai.AsyncOpenAI, number: int, n: int) -> str:
        content, reasons = f"Book a table for {number % 9 + 1} at 19:00, name Anna", dict[int, str | None]()
        try:
            if number % 2:
                stream = await client.chat.completions.create(
                    model=POLICY, messages=[{"role": "user", "content": content}], max_tokens=8, n=n, stream=True,
                    metadata={"session_id": f"guest {number % 40}"},
                )  # fmt: skip
                async for chunk in stream:
                    name = chunk.id
                    reasons |= {one.index: one.finish_reason for one in chunk.choices if one.finish_reason}
            else:
                answer = await client.chat.completions.create(
                    model=POLICY, messages=[{"role": "user", "content": content}], max_tokens=8, n=n,
                    metadata={"session_id": f"guest {number % 40}"},
                )  # fmt: skip
                name, reasons = answer.id, {one.index: one.finish_reason for one in answer.choices}
        except openai.APIError as error:
            return f"{type(error).__name__}: {error} ({error.__cause__!r})"
        self.seen += [sample_key(name, choice) for choice in reasons]
        is_whole = reasons.keys() == set(range(n)) and set(reasons.values()) <= FINISHED
        return "answered" if is_whole else f"ended with {reasons}"
