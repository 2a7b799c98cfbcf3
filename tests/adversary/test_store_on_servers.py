"""Answers that are not kept, and numbers that no table holds, where PostgreSQL and Redis keep things."""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import SystemRandom

import pytest
import redis
from sqlalchemy import inspect, text

from runtime.database import Database
from tests.adversary.attacks import store
from tests.worlds.homes import StoreHome, a_home
from tests.worlds.servers.postgres import create_migrated
from tests.worlds.traces import holds, traces

pytestmark = [pytest.mark.services, pytest.mark.enable_socket, pytest.mark.slow]


@pytest.fixture
def servers() -> dict[str, str]:
    if (redis_url := os.environ.get("MILLRACE_REDIS")) is None:
        pytest.skip("no MILLRACE_REDIS: run make test-services")
    return {"database_url": create_migrated(), "redis": redis_url, "run": f"attack-{secrets.token_hex(6)}"}


def kept(servers: dict[str, str], word: str) -> Iterator[str]:
    """Columns and keys that hold a word."""
    database = Database(servers["database_url"])
    with database.snapshot() as connection:
        for table in inspect(connection).get_table_names():
            for row in connection.execute(text(f'SELECT * FROM "{table}"')).mappings():  # noqa: S608 names of its own tables
                for column, value in row.items():
                    if holds(bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode(), word):
                        yield f"{table}.{column}"
    database.close()
    client = redis.Redis.from_url(servers["redis"])
    for key in client.scan_iter():
        if servers["run"].encode() in key and holds(key + (client.get(key) or b""), word):
            yield f"redis: {key!r}"
    client.close()


def test_nothing_of_an_answer_that_is_not_kept_is_in_a_table_or_in_redis(servers: dict[str, str]) -> None:
    canary, control = f"canary-{uuid.uuid4().hex}", f"control-{uuid.uuid4().hex}"

    async def attack() -> None:
        async with a_home(**servers) as world:
            codes = await store.speak(world, canary, "reservations", {"store": False})
            assert set(codes) == {"not_stored"}
            await store.speak(world, control, "reservations", {"store": True})
            await asyncio.to_thread(world.work)
            await asyncio.to_thread(world.work, 3600.0)
            assert traces(world.settings.home, canary) == []
            found = set(await asyncio.to_thread(lambda: list(kept(servers, control))))
            assert "received_signal.record" in found
            assert any(name.startswith("generation") for name in found)
            assert any(name.startswith("redis") for name in found), "Redis holds the repeats of kept answers"
            assert list(await asyncio.to_thread(lambda: list(kept(servers, canary)))) == []

    asyncio.run(attack())


@pytest.mark.parametrize("name", ["numbers", "retries", "choices", "leaving"])
def test_the_attacks_fail_on_servers_too(servers: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "targets", partial(some_targets, store.targets))

    async def attack() -> str | None:
        async with a_home(**servers) as world:
            refused: str | None = await getattr(store, name)(world)
            return refused

    assert asyncio.run(attack()) is None


def some_targets(all_of: Callable[[StoreHome], Iterable[tuple[str, str]]], world: StoreHome) -> list[tuple[str, str]]:
    """A third, drawn anew; a failure names what was asked. `make attacks` asks all."""
    found = list(all_of(world))
    return SystemRandom().sample(found, len(found) // 3)
