"""Three engine processes in two regions behind one endpoint: one is killed at fifty requests a second, and a new version comes.

The regions are names: all processes run on this machine without namespaces, so no link is cut or shaped here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import openai
import pytest

from benchmarks.paths import EXAMPLE, ROOT
from benchmarks.versions import moved, publish_next
from contracts.assignments import LIVE, move
from contracts.engines import EngineReplica, read_replicas
from contracts.keys import create_key
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_key import ENGINE_KEY
from runtime.settings import Settings, write_settings
from services.engine.settings import EngineSettings
from tests.unit.services.serving import wait_until
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors

pytestmark = pytest.mark.slow

POLICY, RUN, KEY = "fleet", "run", "the-key-of-this-test-of-engines"
RATE, SECONDS, KILL_AFTER, MAX_TOKENS = 50, 6.0, 2.0, 8
REGIONS = {"near-1": "near", "near-2": "near", "far-1": "far"}
PATIENCE_SECONDS = 300.0


class Fleet(NamedTuple):
    """Running engines, and an endpoint in region `near`."""

    database: Database
    weights: Path
    processes: dict[str, subprocess.Popen[bytes]]
    url: str
    key: str

    def rows(self) -> dict[str, EngineReplica]:
        """The rows that are renewed, by name."""
        with self.database.snapshot() as connection:
            return {row.name: row for row in read_replicas(connection, POLICY) if row.is_fresh(time.time())}

    def assign(self, version: int) -> None:
        """Point live at a version."""
        with self.database.transaction() as connection:
            move(
                connection, policy=POLICY, arm=LIVE, version=version, expected_epoch=version, writer="test", reason="test", share=1.0
            )  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def settings_of(folder: Path, name: str, region: str, database: str) -> Settings:
    home = folder / name
    home.mkdir()
    (home / "weights").symlink_to(folder / "weights")
    return Settings(
        home=home, run=RUN, policy=POLICY, base=str(EXAMPLE / "base"), tasks=(EXAMPLE / "task.toml",), engine_port=free_port(),
        database_url=database, weights_unsigned=True, region=region, requests_per_minute=0,
    )  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv(ENGINE_KEY, KEY)
    (tmp_path / "weights").mkdir()
    database_url = f"sqlite:///{tmp_path / 'millrace.db'}"
    database = Database(database_url)
    migrate(database)
    base = read_safetensors(EXAMPLE / "base")
    publish_next(open_store_at(tmp_path / "weights"), POLICY, 0, base=None, target=base, run=RUN)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for name, region in REGIONS.items():
            settings = settings_of(tmp_path, name, region, database_url)
            write_settings(settings, {"engine": EngineSettings(name=name, slots=("live",))})
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            processes[name] = subprocess.Popen(  # noqa: S603 our own interpreter and module
                [sys.executable, "-m", "services.engine", str(settings.home)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(processes[name].wait)
            stack.callback(processes[name].kill)
        with database.transaction() as connection:
            key = create_key(connection, "app")
        fleet = Fleet(database, tmp_path / "weights", processes, "", key)
        fleet.assign(0)
        wait_until(lambda: all_serve(fleet, REGIONS, 0), PATIENCE_SECONDS)
        endpoint = settings_of(tmp_path, "endpoint", "near", database_url)
        endpoint = endpoint.model_copy(update={"web_port": free_port()})
        write_settings(endpoint, {})
        log = stack.enter_context((tmp_path / "endpoint.log").open("wb"))
        serving = subprocess.Popen(  # noqa: S603 our own interpreter and script
            [sys.executable, str(ROOT / "millrace.py"), "inference", "--home", str(endpoint.home)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(serving.wait)
        stack.callback(serving.kill)
        wait_until(lambda: is_ready(endpoint.web_url), PATIENCE_SECONDS)
        yield fleet._replace(url=endpoint.web_url)
    database.close()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5.0).is_success
    except httpx.TransportError:
        return False


def all_serve(fleet: Fleet, names: object, version: int) -> bool:
    rows = fleet.rows()
    return rows.keys() == set(REGIONS if names is REGIONS else names) and all(  # type: ignore[call-overload]
        row.status == "serving" and row.slots["live"] == version for row in rows.values()
    )


async def ask(client: openai.AsyncOpenAI, number: int) -> str:
    """One request, every other one streamed; how it ended."""
    content = f"Book a table for {number % 9 + 1} at 19:00, name Anna"
    metadata = {"session_id": f"guest {number % 40}"}
    try:
        if number % 2:
            stream = await client.chat.completions.create(
                model=POLICY, messages=[{"role": "user", "content": content}], metadata=metadata, max_tokens=MAX_TOKENS, stream=True
            )  # fmt: skip
            reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
            return "answered" if reasons[-1] in {"stop", "length"} else f"stream ended with {reasons[-1]}"
        answer = await client.chat.completions.create(
            model=POLICY, messages=[{"role": "user", "content": content}], metadata=metadata, max_tokens=MAX_TOKENS
        )
        return "answered" if answer.choices[0].finish_reason in {"stop", "length"} else "no finish reason"
    except openai.APIError as error:
        return f"{type(error).__name__}: {error} ({error.__cause__!r})"


async def open_loop(fleet: Fleet) -> Counter[str]:
    """Requests at a fixed rate, whatever becomes of the ones before; near-1 is killed in the middle."""
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0, timeout=PATIENCE_SECONDS
    ) as client:
        started, asked = time.monotonic(), list[asyncio.Task[str]]()
        killing = asyncio.get_running_loop().call_later(
            KILL_AFTER, lambda: fleet.processes["near-1"].send_signal(signal.SIGKILL)
        )
        for number in range(int(RATE * SECONDS)):
            await asyncio.sleep(max(0.0, started + number / RATE - time.monotonic()))
            asked.append(asyncio.create_task(ask(client, number)))
        killing.cancel()
        return Counter(await asyncio.gather(*asked))


def test_a_killed_replica_costs_no_answer_and_the_others_take_a_new_version(fleet: Fleet) -> None:
    ends = asyncio.run(open_loop(fleet))

    assert fleet.processes["near-1"].poll() == -signal.SIGKILL
    assert ends == {"answered": int(RATE * SECONDS)}

    wait_until(lambda: "near-1" not in fleet.rows(), PATIENCE_SECONDS)
    base = read_safetensors(EXAMPLE / "base")
    publish_next(open_store_at(fleet.weights), POLICY, 1, base=base, target=moved(base, 0.01, 1), run=RUN)
    fleet.assign(1)
    wait_until(lambda: all_serve(fleet, ("near-2", "far-1"), 1), PATIENCE_SECONDS)

    fleet.processes["near-2"].send_signal(signal.SIGTERM)
    fleet.processes["near-2"].wait(PATIENCE_SECONDS)
    assert fleet.rows().keys() == {"far-1"}, "a replica that ends in order removes its row"
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0) as client:
        answer = client.chat.completions.create(model=POLICY, messages=[{"role": "user", "content": "A table for 2"}])
    assert answer.model_extra is not None
    assert answer.model_extra["policy_version"] == 1, "the other region answers"
