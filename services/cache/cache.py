"""A region's cache: whatever its replicas ask for crosses the link to the trainer once.

usage: python -m services.cache.cache --upstream URL --folder DIR --host H --port P

In: GET /PATH, with or without Range. Out: the object from the folder. Waits: for the upstream, whose objects keep their
bytes. A path that is not in the folder yet is fetched once (`services.cache.fetch` says how); whoever asks meanwhile waits for
the same fetch, and a later request takes up one that was given up. Paths that end in `.json`, and those with a query,
are small and may change: they are asked for every time (`If-None-Match` when the upstream gave an ETag), several at
once as one.

What it is not: it holds no keys (the upstream must answer without), checks no hash (replicas do), never removes
anything, and does not sync what it writes: after a power cut, empty the folder. `GET /_stats` counts what came.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from contracts.errors import InvalidRequest, InvalidSettings, MillraceError, NotFound, Unavailable
from services.cache.fetch import (
    BROKEN,
    NOT_FOUND,
    NOT_MODIFIED,
    OK,
    UNFINISHED,
    Download,
    Fetching,
    Stats,
    Upstream,
)


class SmallAnswer(NamedTuple):
    """The last answer about a path that may change."""

    etag: str
    media_type: str
    body: bytes


class RegionCache:
    """Objects in a folder, fetched when first asked for.

    Args:
        upstream: where they come from.
        folder: where they stay.
    """

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream, self._folder = upstream, folder.resolve()
        self._flights: dict[str, asyncio.Task[Any]] = {}
        self._downloads: dict[str, Download] = {}
        self._smalls: dict[str, SmallAnswer] = {}

    @property
    def stats(self) -> Stats:
        """The counts so far."""
        return self._upstream.stats

    async def object(self, name: str) -> Path:
        """Where the object is, once it is there.

        Raises:
            NotFound: upstream has none.
            Unavailable: upstream is away; asking again goes on where this stopped.
            InvalidSettings: upstream serves no parts, or objects that change.
            InvalidRequest: the path leads out of the folder.
        """
        path = (self._folder / name).resolve()
        if not name or not path.is_relative_to(self._folder) or path.is_dir() or path.suffix == UNFINISHED:
            raise InvalidRequest(f"{name!r} is no path of an object")
        if not path.is_file():
            await self._once(name, lambda: self._download(name, path))
        return path

    async def small(self, target: str) -> SmallAnswer:
        """What upstream says now about a path and its query.

        Raises:
            NotFound: upstream has none.
            Unavailable: upstream is away.
        """
        found: SmallAnswer = await self._once(f"?{target}", lambda: self._revalidate(target))
        return found

    async def close(self) -> None:
        """Give up what is being fetched, and the connections."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        self._upstream.close()

    async def _once(self, key: str, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """One flight for all who ask at the same time; it goes on when they leave."""
        if (flight := self._flights.get(key)) is None:
            flight = self._flights[key] = asyncio.create_task(start())
            flight.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(flight)

    def _landed(self, key: str, flight: asyncio.Task[Any]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # seen, even when everybody who asked has left

    async def _download(self, name: str, path: Path) -> None:
        if (download := self._downloads.get(name)) is None:
            download = self._downloads[name] = Download(quote(name), path, self._upstream)
        try:
            await download.run()
        except (NotFound, InvalidSettings):
            self._downloads.pop(name).drop()
            raise
        del self._downloads[name]
        self.stats.num_fetched += 1

    async def _revalidate(self, target: str) -> SmallAnswer:
        known = self._smalls.get(target)
        body = bytearray()
        try:
            async with self._upstream.connection() as connection:
                connection.ask(target, f"if-none-match: {known.etag}\r\n" if known and known.etag else "")
                head = await connection.head()
                await connection.read(head.length, body.extend)
        except BROKEN as error:
            raise Unavailable(f"upstream does not answer about {target} ({error!r}): ask again") from error
        if known and head.status == NOT_MODIFIED:
            return known
        if head.status == NOT_FOUND:
            raise NotFound(f"upstream has no {target}")
        if head.status != OK:
            raise Unavailable(f"upstream answers {head.status} about {target}: ask again")
        media_type = head.fields.get("content-type", "application/json")
        found = self._smalls[target] = SmallAnswer(head.fields.get("etag", ""), media_type, bytes(body))
        return found


class _Served(FileResponse):
    chunk_size = 2**20


def create_app(cache: RegionCache) -> FastAPI:
    """What replicas talk to."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await cache.close()

    app = FastAPI(openapi_url=None, lifespan=lifespan)

    @app.exception_handler(MillraceError)
    async def say(_: Request, error: MillraceError) -> JSONResponse:
        return JSONResponse(error.as_openai(), error.status)

    @app.get("/_stats")
    async def stats() -> Response:
        return Response(msgspec.json.encode(cache.stats), media_type="application/json")

    @app.api_route("/{name:path}", methods=["GET", "HEAD"])
    async def get(name: str, request: Request) -> Response:
        if name.endswith(".json") or request.url.query:
            small = await cache.small(f"{quote(name)}?{request.url.query}".rstrip("?"))
            return Response(
                small.body, media_type=small.media_type, headers={"etag": small.etag} if small.etag else None
            )
        return _Served(await cache.object(name), media_type="application/octet-stream")

    return app


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal comes."""
    usual = Fetching()
    parser = argparse.ArgumentParser(
        prog="python -m services.cache.cache", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--upstream", required=True, help="where objects come from, http://HOST:PORT/PREFIX")
    parser.add_argument("--folder", type=Path, required=True, help="where they stay")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=usual.connections, help="to upstream, for one object")
    parser.add_argument("--depth", type=int, default=usual.depth, help="parts asked for at a time on each connection")
    parser.add_argument("--part-bytes", type=int, default=usual.part_bytes)
    options = parser.parse_args(arguments)
    fetching = Fetching(connections=options.connections, depth=options.depth, part_bytes=options.part_bytes)
    app = create_app(RegionCache(Upstream(options.upstream, fetching), options.folder))
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1:])
