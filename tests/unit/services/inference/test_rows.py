"""The rows of replicas as one process knows them: read anew, kept while the database is away, stale by our own clock."""

from __future__ import annotations

import time

from contracts.engines import FRESH_SECONDS, EngineReplica
from contracts.errors import Unavailable
from services.inference.engine.rows import ReplicaRows


class Table:
    """What is read; `away`: nothing can be."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.seen_at = time.time()
        self.names = ["a"]

    def read(self) -> list[EngineReplica]:
        """All rows."""
        if self.away:
            raise Unavailable("no database")
        return [
            EngineReplica(
                name, "demo", "http://h:1", "millrace", "local", "serving", {"live": 1}, frozenset(), "i", "e", "d", self.seen_at
            )
            for name in self.names
        ]  # fmt: skip


async def test_a_row_that_is_not_renewed_is_stale_and_one_that_is_again_is_not() -> None:
    table = Table()
    rows = ReplicaRows(table.read, lambda: table.now)
    assert [row.name for row in await rows.held()] == ["a"]
    assert not rows.is_stale("a")
    for _ in range(int(FRESH_SECONDS) + 2):
        table.now += 1.0
        assert await rows.refresh()
    assert rows.is_stale("a")
    table.seen_at -= 3600.0  # its clock is wrong, which is no reason to distrust it
    assert await rows.refresh()
    assert not rows.is_stale("a")


async def test_a_row_that_was_old_at_first_sight_is_stale() -> None:
    table = Table()
    table.seen_at -= 2 * FRESH_SECONDS
    rows = ReplicaRows(table.read, lambda: table.now)
    await rows.held()
    assert rows.is_stale("a")


async def test_an_hour_without_the_database_makes_nobody_stale() -> None:
    table = Table()
    rows = ReplicaRows(table.read, lambda: table.now)
    await rows.held()
    table.away = True
    for _ in range(60):
        table.now += 60.0
        assert not await rows.refresh()
        assert [row.name for row in await rows.held()] == ["a"]
        assert not rows.is_stale("a")
    table.away = False
    assert await rows.refresh()
    assert not rows.is_stale("a"), "it gets time to renew its row"
    table.names = []
    assert await rows.refresh()
    assert await rows.held() == []
