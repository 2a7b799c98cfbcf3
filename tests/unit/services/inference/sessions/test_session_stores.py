"""The stores of sessions: memory and file behave alike, forget in time, stay small, and never fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from runtime.replicas.on_disk import DiskSessionStore
from tests.worlds.passing import Clock

Make = Callable[[Path, Clock], SessionStore]
MAKERS: dict[str, Make] = {
    "memory": lambda _path, clock: LocalSessionStore(clock),
    "file": lambda path, clock: DiskSessionStore(path / "sessions.db", clock),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_values_are_read_in_order_until_their_time(tmp_path: Path, make: Make) -> None:
    clock = Clock(1000.0)
    store = make(tmp_path, clock)

    async def use() -> None:
        await store.write({"a": b"1", "b": b"2"}, 100.0)
        await store.write({"b": b"3"}, 200.0)
        assert await store.read(["b", "none", "a"]) == [b"3", None, b"1"]
        await store.shorten(["b", "none"], 50.0)
        await store.shorten(["a"], 500.0)  # shorten never makes it longer
        clock.now += 60.0
        assert await store.read(["b", "a"]) == [None, b"1"]
        clock.now += 60.0
        assert await store.read(["a"]) == [None]
        assert await store.read([]) == []

    asyncio.run(use())
    store.close()
    store.close()


def test_a_file_survives_its_process_and_is_read_by_another(tmp_path: Path) -> None:
    async def use() -> None:
        one, other = DiskSessionStore(tmp_path / "s.db"), DiskSessionStore(tmp_path / "s.db")
        await one.write({"a": b"1"}, 60.0)
        assert await other.read(["a"]) == [b"1"]
        one.close()
        other.close()
        assert await DiskSessionStore(tmp_path / "s.db").read(["a"]) == [b"1"]

    asyncio.run(use())


def test_a_file_that_cannot_be_used_finds_nothing_and_fails_nobody(tmp_path: Path) -> None:
    async def use() -> None:
        missing = DiskSessionStore(tmp_path / "none" / "s.db")
        (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
        broken = DiskSessionStore(tmp_path / "broken.db")
        for store in (missing, broken):
            await store.write({"a": b"1"}, 60.0)
            await store.shorten(["a"], 1.0)
            assert await store.read(["a", "b"]) == [None, None]

    asyncio.run(use())


def test_a_locked_file_is_not_waited_for(tmp_path: Path) -> None:
    async def use() -> None:
        store = DiskSessionStore(tmp_path / "s.db")
        await store.write({"a": b"1"}, 60.0)
        with sqlite3.connect(tmp_path / "s.db") as other:
            other.execute("BEGIN IMMEDIATE")
            await store.write({"b": b"2"}, 60.0)
            assert await store.read(["a", "b"]) == [b"1", None]
        await store.write({"b": b"2"}, 60.0)
        assert await store.read(["b"]) == [b"2"]

    asyncio.run(use())


def test_memory_is_bounded() -> None:
    async def use() -> None:
        store = LocalSessionStore(max_bytes=10_000)
        for number in range(100):
            await store.write({str(number): bytes(1000)}, 60.0)
        found = await store.read([str(number) for number in range(100)])
        assert found[-1] is not None
        assert 1 <= sum(value is not None for value in found) <= 10

    asyncio.run(use())


def test_a_file_is_bounded(tmp_path: Path) -> None:
    async def use() -> None:
        clock = Clock(1000.0)
        store = DiskSessionStore(tmp_path / "s.db", clock, max_bytes=200_000)
        for number in range(100):
            clock.now += 61.0  # each write sweeps
            await store.write({str(number): bytes(10_000)}, 1e6)
        found = await store.read([str(number) for number in range(100)])
        assert found[-1] is not None
        assert 1 <= sum(value is not None for value in found) <= 25

    asyncio.run(use())
