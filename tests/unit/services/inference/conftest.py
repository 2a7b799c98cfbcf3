from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.settings import Settings
from runtime.template.chat_template import ChatTemplate
from services.inference.app import create_app
from tests.chat_templates.bundled import BundledTemplates
from tests.databases import write_migrated
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog, make_base
from tests.unit.services.serving import make_home, make_key, serve

SAYS = "Tisch für 4: {ok}"


def text_of(answer: Any) -> str:
    """Of a whole or a streamed answer."""
    if hasattr(answer, "choices"):
        return str(answer.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


class Inference:
    """The real service over HTTP, a fake engine behind it."""

    tenant = "default"

    def __init__(self, engine: FakeEngine, log: StubbornLog, url: str, key: str, operator: str) -> None:
        self.begins: dict[int, int] = {}  # in each partition: records before are of earlier tests
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

    def ask(self, client: openai.OpenAI | None = None, /, **changes: Any) -> Any:
        arguments = {"model": "demo", "messages": [{"role": "user", "content": "table for 4"}]} | changes
        return (client or self.client).chat.completions.create(**arguments)

    def logged(self) -> list[Generation]:
        places = range(self.log.num_partitions)
        records = [
            record for place in places for record in self.log.read(GENERATIONS, place, self.begins.get(place, 0), 100)
        ]
        return [decode(Generation, record.value) for record in sorted(records, key=lambda r: r.appended_at)]


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    return BundledTemplates()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(SAYS)


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """One port for the engines of all tests: stopping a server takes longer than a test."""
    stage = Stage()
    with serve(stage) as stage.url:
        yield stage


@pytest.fixture
def alone() -> None:
    """For tests whose service is no other's: they break its engine or its log, leave answers behind, or look into its home."""


@pytest.fixture
def inference(request: pytest.FixtureRequest) -> Inference:
    """The service of all tests; its own for a test that uses `alone`."""
    found: Inference = request.getfixturevalue("own" if "alone" in request.fixturenames else "shared")
    return found


@pytest.fixture
def own(tmp_path: Path, database: Database, engine: FakeEngine, stage: Stage) -> Iterator[Inference]:
    make_base(tmp_path / "base")
    with a_service(make_home(tmp_path, stage.url), database, stage, engine, patience_seconds=1.5) as world:
        yield world


@contextmanager
def a_service(
    settings: Settings, database: Database, stage: Stage, engine: FakeEngine, **options: Any
) -> Iterator[Inference]:
    """A service of these settings; `options`: of `create_app`."""
    stage.engine, log = engine, StubbornLog(settings.home / "log")
    keys = make_key(database), make_key(database, "operator")
    with serve(create_app(settings, event_log=log, **options)) as url:
        yield from _asking(Inference(engine, log, url, *keys))


class _Standing(NamedTuple):
    stage: Stage
    database: Database
    url: str
    log: StubbornLog


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Standing]:
    home, stage = tmp_path_factory.mktemp("standing"), Stage()
    write_migrated(home / "millrace.db")
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    with closing(database), serve(stage) as stage.url, _serving(home, stage.url) as (url, log):
        yield _Standing(stage, database, url, log)


@pytest.fixture
def shared(standing: _Standing) -> Iterator[Inference]:
    """A service that other tests ask too: with an engine, a tenant and an empty log for this one."""
    stage, database, url, log = standing
    stage.engine = FakeEngine(SAYS)
    tenant, log.num_appends = uuid.uuid4().hex, 0
    keys = make_key(database, tenant=tenant), make_key(database, "operator", tenant)
    world = Inference(stage.engine, log, url, *keys)
    world.tenant, world.begins = tenant, log.ends(GENERATIONS)
    yield from _asking(world)


@contextmanager
def _serving(home: Path, engine_url: str) -> Iterator[tuple[str, StubbornLog]]:
    make_base(home / "base")
    log = StubbornLog(home / "log")
    with serve(create_app(make_home(home, engine_url), event_log=log, patience_seconds=1.5)) as url:
        yield url, log


def _asking(world: Inference) -> Iterator[Inference]:
    try:
        yield world
    finally:
        world.log.open.set()
        world.engine.go.set()
        world.client.close()
