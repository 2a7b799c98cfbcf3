from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from services.cache.app import create_app
from services.cache.cache import RegionCache
from services.cache.fetch import Fetching, Upstream

_RANGE = re.compile(r"range: bytes=(\d+)-(\d+)")
_ETAG = re.compile(r'if-none-match: (".*")')
_FETCHING = Fetching(connections=3, first_bytes=500, depth=1, part_bytes=300, tries=3, pause=0.0)
_PIPELINED = _FETCHING._replace(depth=4)
_NAME = "policy/v000001/payload-abc.bin"


class Origin:
    """An upstream that keeps count of every byte it sends, and breaks when told to."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: dict[str, list[int]] = {}
        self.statuses: list[int] = []
        self.break_after: list[int] = []
        self.broken = False
        self.ranges = True
        self.closes = False
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.url = ""

    def put(self, name: str, size: int) -> bytes:
        body = random.Random(size).randbytes(size)
        self.objects[name], self.sent[name] = body, [0] * size
        return body

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                while await self._answer(reader, writer):
                    pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/weights"
        try:
            yield
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        self.asked.set()
        await self.open.wait()
        return not self.broken and self._reply(writer, head)

    def _reply(self, writer: asyncio.StreamWriter, head: str) -> bool:
        name = head.split()[1].removeprefix("/weights/")
        if (body := self.objects.get(name)) is None:
            return self._write(writer, 404, "", b"no such object")
        if name.endswith(".json"):
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            if (known := _ETAG.search(head)) and known[1] == etag:
                return self._write(writer, 304, "", b"")
            return self._write(writer, 200, f"etag: {etag}\r\n", body)
        found = _RANGE.search(head)
        if found is None or not self.ranges:
            return self._write(writer, 200, "", body)
        start, end = int(found[1]), min(int(found[2]) + 1, len(body))
        if start >= len(body):
            return self._write(writer, 416, f"content-range: bytes */{len(body)}\r\n", b"")
        return self._part(writer, name, start, end)

    def _part(self, writer: asyncio.StreamWriter, name: str, start: int, end: int) -> bool:
        body = self.objects[name]
        stop = min(end, start + self.break_after.pop(0)) if self.break_after else end
        for place in range(start, stop):
            self.sent[name][place] += 1
        end_of_connection = "connection: close\r\n" if self.closes else ""
        whole = f"{end_of_connection}content-range: bytes {start}-{end - 1}/{len(body)}\r\ncontent-length: {end - start}\r\n\r\n"
        self.statuses.append(206)
        writer.write(b"HTTP/1.1 206 x\r\n" + whole.encode() + body[start:stop])
        return stop == end and not self.closes

    def _write(self, writer: asyncio.StreamWriter, status: int, fields: str, body: bytes) -> bool:
        self.statuses.append(status)
        writer.write(f"HTTP/1.1 {status} x\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body)
        return True


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    origin = Origin()
    async with origin.running():
        yield origin


def files(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.is_file()]


@asynccontextmanager
async def replicas(url: str, folder: Path, fetching: Fetching = _FETCHING) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a cache before `url`."""
    cache = RegionCache(Upstream(url, fetching), folder)
    transport = httpx.ASGITransport(create_app(cache))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://cache") as client:
            yield client
    finally:
        await cache.close()


async def test_eight_readers_at_once_cost_upstream_each_byte_once(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 50_000)
    async with replicas(origin.url, tmp_path, _PIPELINED) as client:
        answers = await asyncio.gather(*(client.get(_NAME) for _ in range(8)))
        assert [answer.content for answer in answers] == [body] * 8
        assert (await client.get(_NAME)).content == body
        stats = (await client.get("_stats")).json()
    assert set(origin.sent[_NAME]) == {1}
    assert (stats["upstream_bytes"], stats["num_fetched"], stats["num_broken"]) == (50_000, 1, 0)
    assert files(tmp_path) == ["payload-abc.bin"]


async def test_reader_that_leaves_does_not_stop_the_fetch(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 5_000)
    async with replicas(origin.url, tmp_path) as client:
        origin.open.clear()
        leaving, staying = (asyncio.create_task(client.get(_NAME)) for _ in range(2))
        await origin.asked.wait()
        leaving.cancel()
        origin.open.set()
        assert (await staying).content == body
    assert set(origin.sent[_NAME]) == {1}


@pytest.mark.parametrize("size", [0, 1, 499, 500, 501, 1_500, 1_801])
async def test_any_size_arrives_whole(origin: Origin, tmp_path: Path, size: int) -> None:
    body = origin.put(_NAME, size)
    async with replicas(origin.url, tmp_path, _PIPELINED) as client:
        assert (await client.get(_NAME)).content == body


async def test_broken_connections_go_on_from_the_bytes_they_got(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 5_000)
    origin.break_after = [123, 0, 7, 299, 1, 70, 250]
    async with replicas(origin.url, tmp_path, _FETCHING._replace(connections=1)) as client:
        assert (await client.get(_NAME)).content == body
        stats = (await client.get("_stats")).json()
    assert set(origin.sent[_NAME]) == {1}
    assert (stats["upstream_bytes"], stats["num_broken"]) == (5_000, 6)  # 70 were all that was left of that part


async def test_breaks_lose_no_part_that_was_asked_for_ahead(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 20_000)
    origin.break_after = [500, 500, 500, 10, 300, 20, 300, 30, 300, 40]
    async with replicas(origin.url, tmp_path, _PIPELINED) as client:
        assert (await client.get(_NAME)).content == body


async def test_upstream_that_closes_after_each_answer_is_asked_for_one_part_at_a_time(
    origin: Origin, tmp_path: Path
) -> None:
    body = origin.put(_NAME, 5_000)
    origin.closes = True
    async with replicas(origin.url, tmp_path, _PIPELINED) as client:
        assert (await client.get(_NAME)).content == body
        stats = (await client.get("_stats")).json()
    assert stats["num_broken"] == 0
    assert set(origin.sent[_NAME]) == {1}


async def test_fetch_that_was_given_up_is_taken_up_again(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 5_000)
    async with replicas(origin.url, tmp_path) as client:
        origin.break_after = [400, 300, 200] + [0] * 100
        answer = await client.get(_NAME)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert sum(origin.sent[_NAME]) == 900
        origin.break_after = []
        assert (await client.get(_NAME)).content == body
    assert set(origin.sent[_NAME]) == {1}


async def test_ranges_are_served_from_the_folder(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 5_000)
    async with replicas(origin.url, tmp_path) as client:
        middle = await client.get(_NAME, headers={"range": "bytes=10-1019"})
        assert (middle.status_code, middle.headers["content-range"]) == (206, "bytes 10-1019/5000")
        assert middle.content == body[10:1020]
        asked = len(origin.statuses)
        assert (await client.get(_NAME, headers={"range": "bytes=-5"})).content == body[-5:]
        assert (await client.get(_NAME, headers={"range": "bytes=4990-"})).content == body[4990:]
        assert (await client.get(_NAME, headers={"range": "bytes=5000-"})).status_code == 416
        assert (await client.head(_NAME)).headers["content-length"] == "5000"
    assert len(origin.statuses) == asked


async def test_missing_object_is_passed_on_and_not_remembered(origin: Origin, tmp_path: Path) -> None:
    async with replicas(origin.url, tmp_path) as client:
        assert (await client.get(_NAME)).status_code == 404
        assert files(tmp_path) == []
        body = origin.put(_NAME, 5_000)
        assert (await client.get(_NAME)).content == body


async def test_json_is_asked_for_every_time_and_sent_once(origin: Origin, tmp_path: Path) -> None:
    origin.objects["policy/live.json"] = b'{"version":1}'
    async with replicas(origin.url, tmp_path) as client:
        origin.open.clear()
        asking = [asyncio.create_task(client.get("policy/live.json")) for _ in range(8)]
        await origin.asked.wait()
        origin.open.set()
        assert {answer.json()["version"] for answer in await asyncio.gather(*asking)} == {1}
        assert (await client.get("policy/live.json")).json() == {"version": 1}
        assert origin.statuses == [200, 304]
        origin.objects["policy/live.json"] = b'{"version":2}'
        assert (await client.get("policy/live.json")).json() == {"version": 2}
        assert (await client.get("policy/other.json")).status_code == 404


async def test_upstream_that_is_away_is_named_and_what_is_here_is_served(origin: Origin, tmp_path: Path) -> None:
    body = origin.put(_NAME, 5_000)
    origin.objects["live.json"] = b"{}"
    async with replicas(origin.url, tmp_path) as client:
        await client.get(_NAME)
        origin.broken = True
        assert (await client.get(_NAME)).content == body
        assert (await client.get("live.json")).status_code == 503
        assert (await client.get("other.bin")).status_code == 503


async def test_upstream_without_parts_is_refused(origin: Origin, tmp_path: Path) -> None:
    origin.put(_NAME, 5_000)
    origin.ranges = False
    async with replicas(origin.url, tmp_path) as client:
        answer = await client.get(_NAME)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "invalid_settings")
        assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["..%2F..%2Fsecret", "%2Fetc%2Fpasswd", "a.part", ""])
async def test_paths_that_are_no_object_are_refused(origin: Origin, tmp_path: Path, name: str) -> None:
    async with replicas(origin.url, tmp_path / "folder") as client:
        assert (await client.get(f"/{name}")).status_code == 400
    assert origin.statuses == []
