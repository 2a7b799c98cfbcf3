"""Fetches one object over a long, lossy link: in parts, over several open connections, each part once.

    Download ─▶ one _work() per connection ─▶ the file, at the part's place
                  ▲ next part            └─▶ on a break: the part goes to `_returned`, and the next worker continues it

In: a path at the upstream. Out: a file. Waits for: the upstream. A connection takes seconds to reach its rate, so it stays
open between parts. It should never be idle for a round trip, so the next parts are requested before the last one has
arrived (HTTP/1.1 pipelining). An upstream that closes its connection after each answer gets one request at a time, and is slow.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from contracts.errors import InvalidSettings, NotFound, Unavailable

BROKEN = (OSError, EOFError)
UNFINISHED = ".part"
OK, NOT_MODIFIED, NOT_FOUND = 200, 304, 404
_PARTIAL, _BEYOND, _SERVER_ERROR = 206, 416, 500
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_PIECE_BYTES = 64 * 1024


class Fetching(NamedTuple):
    """How objects are fetched.

    Each of `connections` first requests `first_bytes`; together they are more than the link holds (bandwidth times round trip). When the
    length is known, each keeps `depth` parts of `part_bytes` on the way. A connection without data for `silence` seconds is closed. After
    `tries` failures in a row, `pause` seconds apart, the fetch fails.
    """

    connections: int = 16
    first_bytes: int = 256 * 1024
    depth: int = 8
    part_bytes: int = 64 * 1024
    tries: int = 5
    pause: float = 0.2
    silence: float = 5.0


class Stats(msgspec.Struct):
    """Counts since the start: bytes and requests of the upstream, broken connections, and objects fetched whole."""

    upstream_bytes: int = 0
    upstream_requests: int = 0
    num_broken: int = 0
    num_fetched: int = 0


class Head(NamedTuple):
    """The head of a response; the names of `fields` are in lower case."""

    status: int
    fields: dict[str, str]

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return 0 if self.status == NOT_MODIFIED else int(self.fields["content-length"])


class Connection:
    """HTTP/1.1 to the upstream, with pipelining. Every method raises OSError or EOFError when the connection breaks."""

    def __init__(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._upstream, self._reader, self._writer = upstream, reader, writer
        self.reusable = True

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self.reusable and not self._reader.at_eof() and not self._writer.is_closing()

    def ask(self, target: str, fields: str) -> None:
        """Send a GET; `fields`: more lines of its head."""
        self._upstream.stats.upstream_requests += 1
        path = f"{self._upstream.prefix}/{target}"
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: {self._upstream.host}\r\n{fields}\r\n".encode())

    async def head(self) -> Head:
        """Read the head of the next response."""
        async with asyncio.timeout(self._upstream.fetching.silence):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if fields.get("connection", "").lower() == "close":
            self.reusable = self._upstream.keeps_open = False
        head = Head(int(lines[0].split()[1]), fields)
        if head.status != NOT_MODIFIED and "content-length" not in fields:
            raise InvalidSettings("the upstream answers without Content-Length: use a server that sends it")
        return head

    async def read(self, length: int, store: Callable[[bytes], None]) -> None:
        """Pass `length` bytes to `store`, piece by piece, including those that arrived before a break."""
        while length:
            try:
                async with asyncio.timeout(self._upstream.fetching.silence):
                    piece = await self._reader.readexactly(min(length, _PIECE_BYTES))
            except asyncio.IncompleteReadError as broken:
                self._upstream.stats.upstream_bytes += len(broken.partial)
                store(broken.partial)
                raise
            self._upstream.stats.upstream_bytes += len(piece)
            store(piece)
            length -= len(piece)

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()


class Upstream:
    """Where objects come from, and the open connections to it. Raises InvalidSettings unless `url` is `http://host:port/prefix`."""

    def __init__(self, url: str, fetching: Fetching) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            said = f"the upstream {url!r} is not a URL: {error}; give http://HOST:PORT/PREFIX"
            raise InvalidSettings(said) from error
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidSettings(
                f"the upstream is http://HOST:PORT/PREFIX, not {url!r}; for https put a proxy or a tunnel in between"
            )
        self._address = (parts.hostname, port)
        self.host, self.prefix = parts.netloc, parts.path.rstrip("/")
        self.fetching, self.stats = fetching, Stats()
        self.keeps_open = True
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """An open connection, or a new one. It stays open unless something goes wrong."""
        while self._idle:
            if (connection := self._idle.pop()).usable:
                break
            connection.close()
        else:
            async with asyncio.timeout(self.fetching.silence):
                reader, writer = await asyncio.open_connection(*self._address, limit=4 * _PIECE_BYTES)
            connection = Connection(self, reader, writer)
        clean = False
        try:
            yield connection
            clean = connection.usable
        finally:
            if clean:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


class Download:
    """One object on its way from the upstream's `target` to the file `path`. Parts that arrived are kept when `run` fails."""

    def __init__(self, target: str, path: Path, upstream: Upstream) -> None:
        self._target, self._path, self._upstream = target, path, upstream
        self._size: int | None = None
        self._positions: dict[int, int] = {}
        self._next = 0
        self._returned: deque[int] = deque()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = path.with_name(f"{path.name}{UNFINISHED}")
        self._file = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    async def run(self) -> None:
        """Fetch what is missing, then move the file to its place.

        Raises NotFound, Unavailable: the upstream has no such object, or does not answer; InvalidSettings: the upstream does not serve
        parts, or changed the object.
        """
        workers = [asyncio.create_task(self._work()) for _ in range(self._upstream.fetching.connections)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if any(self._positions[number] < self._end(number) for number in range(self._next)):
            raise InvalidSettings(
                f"the upstream denied a part of {self._target}: use a server that serves parts (Range)"
            )
        os.close(self._file)
        self._temporary.replace(self._path)

    def drop(self) -> None:
        """Remove what has arrived."""
        os.close(self._file)
        self._temporary.unlink()

    async def _work(self) -> None:
        """Fetch parts, over a new connection after each break, until no part is left."""
        failures = 0
        while failures < self._upstream.fetching.tries:
            asked: deque[int] = deque()
            before = self._upstream.stats.upstream_bytes
            try:
                async with self._upstream.connection() as connection:
                    try:
                        await self._receive_parts(connection, asked)
                    finally:
                        self._returned.extend(asked)
            except BROKEN:
                self._upstream.stats.num_broken += 1
                failures = 0 if self._upstream.stats.upstream_bytes > before else failures + 1
                await asyncio.sleep(self._upstream.fetching.pause)
            else:
                if not self._returned and (self._size is None or self._start(self._next) >= self._size):
                    return
        said = (
            f"the upstream is silent, {self._target} is not complete: try again, the fetch continues where it stopped"
        )
        raise Unavailable(said)

    async def _receive_parts(self, connection: Connection, asked: deque[int]) -> None:
        """Fetch parts until none is left. `asked`: the parts on the way, also after a break."""
        while True:
            self._ask_ahead(connection, asked)
            if not asked:
                return
            head = await connection.head()
            self._check(head, self._positions[asked[0]])
            self._ask_ahead(connection, asked)  # the length may be known only now
            await connection.read(head.length, partial(self._store, head, asked[0]))
            asked.popleft()

    def _ask_ahead(self, connection: Connection, asked: deque[int]) -> None:
        # Asking for the length first would cost a round trip. So each connection first requests a part that may not exist.
        known = self._size is not None and self._upstream.keeps_open
        depth = self._upstream.fetching.depth if known else 1
        while len(asked) < depth and connection.usable and (number := self._next_part()) is not None:
            asked.append(number)
            connection.ask(self._target, f"range: bytes={self._positions[number]}-{self._end(number) - 1}\r\n")

    def _store(self, head: Head, number: int, piece: bytes) -> None:
        if head.status == _PARTIAL:
            os.pwrite(self._file, piece, self._positions[number])
            self._positions[number] += len(piece)

    def _check(self, head: Head, start: int) -> None:
        """Learn the size of the object; raise if the response is not the requested part."""
        if head.status == NOT_FOUND:
            raise NotFound(f"the upstream has no {self._target}")
        if head.status >= _SERVER_ERROR:
            raise ConnectionError(f"the upstream answered {head.status}")
        content_range = head.fields.get("content-range", "")
        if head.status == _BEYOND:
            if content_range == "bytes */0":
                self._size = 0
            return
        found = _CONTENT_RANGE.fullmatch(content_range)
        if head.status != _PARTIAL or found is None or int(found[1]) != start:
            raise InvalidSettings(
                f"the upstream answers {head.status} to a Range of {self._target}: use a server that serves parts"
            )
        if self._size not in {None, int(found[2])}:
            raise InvalidSettings(
                f"the upstream changed {self._target} during the fetch: objects must keep their bytes"
            )
        self._size = int(found[2])

    def _next_part(self) -> int | None:
        if self._returned:
            return self._returned.popleft()
        start = self._start(self._next)
        if self._size is not None and start >= self._size:
            return None
        self._positions[self._next] = start
        self._next += 1
        return self._next - 1

    def _start(self, number: int) -> int:
        fetching = self._upstream.fetching
        num_first = min(number, fetching.connections)
        return num_first * fetching.first_bytes + (number - num_first) * fetching.part_bytes

    def _end(self, number: int) -> int:
        end = self._start(number + 1)
        return end if self._size is None else min(end, self._size)
