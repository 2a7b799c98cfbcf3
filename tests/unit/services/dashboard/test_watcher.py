import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import func, select, update

from contracts.errors import Unavailable
from contracts.tables import generation, training_step
from runtime.metrics import LEDGER_UNEXPLAINED
from runtime.settings import Settings
from services.dashboard.live.state import State
from services.dashboard.live.watcher import MAX_VIEWERS, Watcher
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import writing

PERIOD = 0.02


class Scripted:
    """Answers with the same state until `change`, or fails."""

    def __init__(self, state: State) -> None:
        self.num_reads = 0
        self.failing = False
        self.fault: Exception = Unavailable("the disk is full")
        self._state = state

    def change(self) -> None:
        self._state = State(
            **{name: getattr(self._state, name) for name in self._state.__struct_fields__} | {"live": 77}
        )

    async def read_more(self, num: int) -> None:
        """Wait for this many more reads."""
        until = self.num_reads + num
        while self.num_reads < until:  # noqa: ASYNC110 the reads are on another thread, which knows of no event
            await asyncio.sleep(0.001)

    def __call__(self, now: float) -> State:
        assert now == pytest.approx(time.time(), abs=5)
        self.num_reads += 1
        if self.failing:
            raise self.fault
        return self._state


@pytest.fixture
def scripted(bare: Settings, reader_of: ReaderOf) -> Scripted:
    return Scripted(reader_of(bare).read(time.time()))


def parse(event: bytes) -> tuple[str, object]:
    name, data = event.decode().rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def collect(watcher: Watcher, num_events: int) -> list[str]:
    async with aclosing(watcher.events()) as events:
        return [parse(await anext(events))[0] for _ in range(num_events)]


async def _rest(events: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [event async for event in events]


async def test_a_state_is_sent_only_when_it_changed(scripted: Scripted) -> None:
    watcher = Watcher(scripted, PERIOD)
    async with aclosing(watcher.events()) as events:
        names = [parse(await anext(events))[0] for _ in range(4)]
        scripted.change()
        name, data = parse(await anext(events))
    watcher.close()
    assert names == ["state", "time", "time", "time"]
    assert name == "state"
    assert isinstance(data, dict)
    assert data["live"] == 77


async def test_many_viewers_share_one_read(scripted: Scripted) -> None:
    watcher = Watcher(scripted, period=60.0)
    seen = await asyncio.gather(*(collect(watcher, 2) for _ in range(20)))
    watcher.close()
    assert seen == [["state", "time"]] * 20
    assert scripted.num_reads == 1


async def test_without_viewers_there_are_no_reads(scripted: Scripted) -> None:
    watcher = Watcher(scripted, PERIOD)
    await collect(watcher, 2)
    before = scripted.num_reads
    await asyncio.sleep(5 * PERIOD)
    watcher.close()
    assert scripted.num_reads == before


async def test_a_failed_read_is_told_and_the_stream_goes_on(scripted: Scripted) -> None:
    watcher = Watcher(scripted, PERIOD)
    scripted.failing = True
    async with aclosing(watcher.events()) as events:
        assert parse(await anext(events)) == ("fault", "the disk is full")
        scripted.failing = False
        names = [parse(await anext(events))[0] for _ in range(2)]
    watcher.close()
    assert names == ["time", "state"]


async def test_a_fault_of_ours_is_told_without_its_words_and_the_stream_goes_on(scripted: Scripted) -> None:
    watcher = Watcher(scripted, PERIOD)
    scripted.failing, scripted.fault = True, KeyError("secret")
    async with aclosing(watcher.events()) as events:
        assert parse(await anext(events)) == ("fault", "the log of the dashboard has a traceback")
        scripted.failing = False
        names = [parse(await anext(events))[0] for _ in range(2)]
    watcher.close()
    assert names == ["time", "state"]


async def test_the_watch_goes_on_whatever_a_read_raises(scripted: Scripted) -> None:
    before = faults("look")
    watcher = Watcher(scripted, period=0.0, unwatched=0.0)
    scripted.failing, scripted.fault = True, OverflowError("cannot convert float infinity to integer")
    watching = asyncio.create_task(watcher.keep_watch())
    await scripted.read_more(3)
    scripted.failing = False
    await scripted.read_more(2)
    watching.cancel()
    watcher.close()
    assert faults("look") >= before + 2


def faults(what: str) -> float:
    return REGISTRY.get_sample_value("millrace_dashboard_faults_total", {"what": what}) or 0.0


def test_one_record_of_no_time_hides_nothing(small: Settings, reader_of: ReaderOf) -> None:
    reader = reader_of(small)
    before = reader.read(time.time())
    with writing(small) as connection:
        newest = select(func.max(generation.c.completion_id)).scalar_subquery()
        connection.execute(update(generation).where(generation.c.completion_id == newest).values(created_at=1e300))
    after = reader_of(small).read(time.time())
    assert (after.generations, after.tiles, after.versions) == (before.generations, before.tiles, before.versions)


def test_a_chart_that_cannot_be_drawn_is_counted_and_the_ledger_is_told(small: Settings, reader_of: ReaderOf) -> None:
    reader = reader_of(small)
    before, num_faults = reader.read(time.time()), faults("flow")
    LEDGER_UNEXPLAINED.labels("generations").set(7)
    with writing(small) as connection:
        connection.execute(update(training_step).values(at=math.inf))
    after = reader_of(small).read(time.time())
    assert faults("flow") == num_faults + 1
    assert after.generations == before.generations
    assert after.rates["at"] == []
    assert REGISTRY.get_sample_value("millrace_ledger_unexplained", {"kind": "generations"}) == 0


def test_a_row_that_no_page_can_show_does_not_keep_the_ledger_from_being_checked(
    small: Settings, reader_of: ReaderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    LEDGER_UNEXPLAINED.labels("generations").set(7)

    def stumble(*_: object) -> None:
        raise AttributeError("a row of another shape")

    monkeypatch.setattr("services.dashboard.live.queries.read_loop", stumble)
    reader = reader_of(small)
    reader._looked_at -= 100
    with pytest.raises(AttributeError, match="another shape"):
        reader.read(time.time())
    assert REGISTRY.get_sample_value("millrace_ledger_unexplained", {"kind": "generations"}) == 0
    assert (REGISTRY.get_sample_value("millrace_ledger_look_age_seconds", {"policy": small.policy}) or 100) < 100


def test_how_long_ago_the_ledger_was_looked_at_is_a_figure(bare: Settings, reader_of: ReaderOf) -> None:
    reader = reader_of(bare)
    labels = {"policy": bare.policy}
    reader._looked_at -= 100
    assert (REGISTRY.get_sample_value("millrace_ledger_look_age_seconds", labels) or 0) >= 100
    reader.read(time.time())
    assert (REGISTRY.get_sample_value("millrace_ledger_look_age_seconds", labels) or 100) < 100


async def test_a_woken_watcher_reads_and_sends_at_once(scripted: Scripted) -> None:
    watcher = Watcher(scripted, period=60.0)
    async with aclosing(watcher.events()) as events:
        for _ in range(2):
            await anext(events)
        scripted.change()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        watcher.wake()
        name, data = parse(await asyncio.wait_for(waiting, 5.0))
    watcher.close()
    assert name == "state"
    assert isinstance(data, dict)
    assert data["live"] == 77


async def test_streams_end_when_told(scripted: Scripted) -> None:
    watcher = Watcher(scripted, period=60.0)

    async with aclosing(watcher.events()) as events:
        await anext(events)
        watcher.stop()
        rest = await asyncio.wait_for(_rest(events), 2.0)
    watcher.close()
    assert [parse(event)[0] for event in rest] == ["time"]


async def test_the_number_of_viewers_is_bounded_and_places_come_free(scripted: Scripted) -> None:
    watcher = Watcher(scripted, period=60.0)
    streams = [watcher.events() for _ in range(MAX_VIEWERS)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(Unavailable):
        watcher.events()
    await streams[0].aclose()
    assert await collect(watcher, 1) == ["state"]
    for stream in streams:
        await stream.aclose()
    watcher.close()


def test_a_damaged_manifest_leaves_the_version_without_sizes(small: Settings, reader_of: ReaderOf) -> None:
    manifest: Path = small.weights / "reservations" / "v000003" / "step.json"
    manifest.write_text("{")
    versions = {row.version: row for row in reader_of(small).read(time.time()).versions}
    assert versions[3].payload_bytes is None
    assert versions[3].status == "accepted"
    assert versions[4].payload_bytes
