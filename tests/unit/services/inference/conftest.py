from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.database import Database
from services.inference.app import create_app
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog, make_base
from tests.unit.services.serving import make_home, make_key, serve


class Inference:
    """The real service over HTTP, a fake engine behind it."""

    def __init__(self, engine: FakeEngine, log: StubbornLog, url: str, key: str, operator: str) -> None:
        self.engine = engine
        self.log = log
        self.url = url
        self.key = key
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        self.operator = self.client.with_options(api_key=operator)

    def post(self, body: str, **headers: str) -> httpx.Response:
        """Raw bytes, for what the SDK would not send."""
        headers = {"authorization": f"Bearer {self.key}", **headers}
        return httpx.post(f"{self.url}/v1/chat/completions", content=body, headers=headers, timeout=10.0)

    def holds(self, version: int) -> bool:
        """Whether the endpoint knows by now that an engine holds a version."""
        return f"demo@v{version}" in [model.id for model in self.client.models.list()]

    def ask(self, **changes: Any) -> Any:
        arguments = {"model": "demo", "messages": [{"role": "user", "content": "table for 4"}]} | changes
        return self.client.chat.completions.create(**arguments)

    def logged(self) -> list[Generation]:
        places = range(self.log.num_partitions)
        records = [record for place in places for record in self.log.read(GENERATIONS, place, 0, 100)]
        return [decode(Generation, record.value) for record in sorted(records, key=lambda r: r.appended_at)]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("Tisch für 4: {ok}")


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """One port for the engines of all tests: stopping a server takes longer than a test."""
    stage = Stage()
    with serve(stage) as stage.url:
        yield stage


@pytest.fixture
def inference(tmp_path: Path, database: Database, engine: FakeEngine, stage: Stage) -> Iterator[Inference]:
    make_base(tmp_path / "base")
    stage.engine = engine
    log = StubbornLog(tmp_path / "log")
    keys = make_key(database), make_key(database, "operator")
    with serve(create_app(make_home(tmp_path, stage.url), event_log=log, patience_seconds=1.5)) as url:
        world = Inference(engine, log, url, *keys)
        yield world
        log.open.set()
        engine.go.set()
        world.client.close()
