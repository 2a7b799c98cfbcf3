import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.settings import Settings
from services.dashboard.state import State
from services.dashboard.watcher import MAX_VIEWERS, Watcher
from tests.unit.services.dashboard.conftest import ReaderOf

PERIOD = 0.02


class Scripted:
    """Answers with the same state until `change`, or fails."""

    def __init__(self, state: State) -> None:
        self.num_reads = 0
        self.failing = False
        self._state = state

    def change(self) -> None:
        self._state = State(
            **{name: getattr(self._state, name) for name in self._state.__struct_fields__} | {"live": 77}
        )

    def __call__(self, now: float) -> State:
        assert now == pytest.approx(time.time(), abs=5)
        self.num_reads += 1
        if self.failing:
            raise Unavailable("the disk is full")
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


async def test_nobody_watching_means_nobody_reading(scripted: Scripted) -> None:
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
