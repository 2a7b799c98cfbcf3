"""The rows of replicas as one process knows them: read anew, kept while the database is away, stale by our own clock."""

from __future__ import annotations

import time

import pytest

from contracts.engines import FRESH_SECONDS, EngineReplica
from contracts.errors import Unavailable
from contracts.sampling import Sampling
from engines.wire import EngineRequest
from services.inference.engine.choosing import ServingSlot, slot_of
from services.inference.engine.connection import EngineConnection
from services.inference.engine.rows import FixedEngine, ReplicaRows
from tests.unit.services.inference.world import FakeEngine, Stage


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


async def test_the_engine_at_the_fixed_address_counts_while_nobody_renews_a_row(stage: Stage) -> None:
    stage.engine = engine = FakeEngine("{ok}")
    table = Table()
    table.seen_at -= 2 * FRESH_SECONDS
    fixed = FixedEngine(stage.url, "demo", "local", EngineConnection(stage.url, "key", 5.0))
    rows = ReplicaRows(table.read, lambda: table.now, fixed)

    [old, row] = await rows.held()
    assert (rows.is_stale(old.name), rows.is_stale(row.name)) == (True, False)
    assert (row.name, row.url, row.status, row.slots) == (
        stage.url,
        stage.url,
        "serving",
        {"live": 3, "candidate": None},
    )
    engine.num_starts, engine.version, engine.serving = 2, 4, False
    assert await rows.refresh()
    [_, row] = await rows.held()
    assert (row.instance, row.status, row.slots["live"]) == ("start 2", "restarting", 4)
    table.seen_at = time.time()
    assert await rows.refresh()
    assert [row.name for row in await rows.held()] == ["a"], "a replica announces itself again"
    await rows.close()


async def test_a_fixed_engine_that_never_answered_is_stale_and_its_row_says_why() -> None:
    table = Table()
    table.names = []
    fixed = FixedEngine("http://127.0.0.1:1", "demo", "local", EngineConnection("http://127.0.0.1:1", "key", 5.0))
    rows = ReplicaRows(table.read, lambda: table.now, fixed)

    [row] = await rows.held()
    assert rows.is_stale(row.name)
    assert "cannot be reached" in row.status
    await rows.close()


ROW = EngineReplica("one", "demo", "http://h:1", "millrace", "eu", "serving", {}, frozenset(), "i", "e", "d", 0.0)


def slot(arm: str, model: str, *, any_version: bool = True, **slots: int | None) -> ServingSlot | None:
    sampling = Sampling(temperature=1.0, max_tokens=4)
    request = EngineRequest(model, [1], sampling, "r", arm=arm, any_version=any_version)
    return slot_of(ROW._replace(slots=slots), request)


def test_a_version_is_found_in_any_slot() -> None:
    for arm in ("canary", "learning", "holdout", "candidate", "pinned"):
        assert slot(arm, "demo@v5", live=5, canary=None) == ServingSlot(5, "demo@v5")
    assert slot("live", "demo", live=3, canary=5) == ServingSlot(3, "demo")
    assert slot("live", "demo", live=None, canary=5) is None


@pytest.mark.parametrize("arm", ["canary", "holdout"])
def test_no_other_version_answers_for_an_arm_that_is_judged(arm: str) -> None:
    held: dict[str, int | None] = {"live": 3, arm: 4}
    assert slot(arm, "demo@v5", any_version=True, **held) is None


def test_the_learning_arm_goes_on_with_the_version_that_its_slot_has() -> None:
    assert slot("learning", "demo@v5", live=3, learning=4) == ServingSlot(4, "demo@v4")
    assert slot("learning", "demo@v5", live=3, learning=4, any_version=False) is None, "the request named it"
