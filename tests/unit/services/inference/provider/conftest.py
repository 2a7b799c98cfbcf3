from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from contracts.records import Generation, GenerationBody, decode
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.settings import write_settings
from services.inference.app import create_app
from services.provider import ProviderSettings
from tests.databases import write_migrated
from tests.unit.services.inference.world import StubbornLog
from tests.unit.services.serving import make_home, make_key, serve, wait_until
from tests.worlds.servers.provider import MODEL, FakeProvider

KEY = "sk-of-the-provider"


class Fronted:
    """The real service over HTTP, with a fake provider behind it, for one tenant."""

    def __init__(self, provider: FakeProvider, log: StubbornLog, url: str, database: Database) -> None:
        self.provider, self.log, self.url = provider, log, url
        self.begins = log.ends(GENERATIONS)
        self.tenant = uuid.uuid4().hex
        self.key = make_key(database, tenant=self.tenant)
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=self.key, max_retries=0)

    def ask(self, **changes: Any) -> Any:
        arguments = {"model": MODEL, "messages": [{"role": "user", "content": "table for 4"}]} | changes
        return self.client.chat.completions.create(**arguments)

    def send(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {self.key}", **headers}
        return httpx.post(f"{self.url}/v1/{path}", json={"model": MODEL, **body}, headers=given, timeout=10.0)

    def logged(self) -> list[Generation]:
        places = range(self.log.num_partitions)
        found = [record for place in places for record in self.log.read(GENERATIONS, place, self.begins[place], 100)]
        return [decode(Generation, record.value) for record in sorted(found, key=lambda record: record.appended_at)]

    def last(self) -> tuple[Generation, GenerationBody]:
        wait_until(self.logged)
        record = self.logged()[-1]
        return record, record.open()

    @property
    def sent(self) -> dict[str, Any]:
        """The newest body that the provider got."""
        return self.provider.asked[-1][2]


class _Standing(NamedTuple):
    provider: FakeProvider
    log: StubbornLog
    url: str
    database: Database


@pytest.fixture(scope="session")
def standing_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Standing]:
    folder, fake = tmp_path_factory.mktemp("fronted"), FakeProvider()
    settings = make_home(folder).model_copy(update={"base": ""})
    write_migrated(folder / "millrace.db")
    log = StubbornLog(folder / "log")
    with closing(settings.database()) as database, serve(fake.app) as there, pytest.MonkeyPatch.context() as given:
        given.setenv("MILLRACE_PROVIDER_KEY", KEY)
        provider = ProviderSettings(url=f"{there}/v1", model=MODEL, input_price=2.0, output_price=8.0)
        write_settings(settings, {"provider": provider})
        with serve(create_app(settings, event_log=log)) as url:
            yield _Standing(fake, log, url, database)


@pytest.fixture
def fronted(standing_front: _Standing) -> Iterator[Fronted]:
    """A service that other tests ask too: with a provider, a tenant and an empty log for this one."""
    fresh = FakeProvider()
    vars(standing_front.provider).update({name: value for name, value in vars(fresh).items() if name != "app"})
    world = Fronted(*standing_front)
    yield world
    world.provider.go.set()
    world.log.open.set()
    world.log.full.clear()
    world.client.close()
