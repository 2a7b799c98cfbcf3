"""A region's cache: what its replicas ask for crosses the link to the trainer once.

    replicas ─GET─▶ cache ──▶ folder                    objects: never change, fetched once, kept
                      └─────▶ upstream (services/cache/fetch.py)

In: GET /PATH, with or without Range. Out: the object from the folder. Waits for: the upstream.

An object that is not in the folder yet is fetched once; requests that arrive meanwhile wait for the same fetch. One that failed continues
with the next request. Paths that end in `.json`, and paths with a query, are small and may change. They are asked for every time, with
`If-None-Match` when the upstream gave an ETag; requests at the same time share one question.

Limits: the upstream must answer without a key. The cache checks no hash, because replicas verify everything. It removes
nothing, and does not sync what it writes: after a power cut, empty the folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from contracts.errors import InvalidRequest, InvalidSettings, NotFound, Unavailable
from services.cache.fetch import BROKEN, NOT_FOUND, NOT_MODIFIED, OK, UNFINISHED, Download, Stats, Upstream


class SmallAnswer(NamedTuple):
    """The last answer of the upstream for a path that may change."""

    etag: str
    media_type: str
    body: bytes


class RegionCache:
    """Objects in a folder, fetched from the upstream at the first request. Belongs to one event loop."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream, self._folder = upstream, folder.resolve()
        self._fetches: dict[str, asyncio.Task[Any]] = {}
        self._downloads: dict[str, Download] = {}
        self._smalls: dict[str, SmallAnswer] = {}

    @property
    def stats(self) -> Stats:
        """The counts since the start."""
        return self._upstream.stats

    async def object(self, name: str) -> Path:
        """The file of an object; fetches it first if necessary. The next request continues where a failed one stopped.

        Raises NotFound, Unavailable, InvalidSettings: see `Download.run`; InvalidRequest: the path leads out of the folder.
        """
        path = (self._folder / name).resolve()
        if not name or not path.is_relative_to(self._folder) or path.is_dir() or path.suffix == UNFINISHED:
            raise InvalidRequest(f"{name!r} is not the path of an object")
        if not path.is_file():
            await self._once(name, lambda: self._download(name, path))
        return path

    async def small(self, target: str) -> SmallAnswer:
        """The upstream's current answer for a path and its query. Raises NotFound, Unavailable."""
        found: SmallAnswer = await self._once(f"?{target}", lambda: self._revalidate(target))
        return found

    async def close(self) -> None:
        """Cancel what is being fetched, and close the connections."""
        for fetch in (fetches := list(self._fetches.values())):
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        self._upstream.close()

    async def _once(self, key: str, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """One fetch for all requests at the same time; it continues when their clients leave."""
        if (fetch := self._fetches.get(key)) is None:
            fetch = self._fetches[key] = asyncio.create_task(start())
            fetch.add_done_callback(lambda done: self._fetched(key, done))
        return await asyncio.shield(fetch)

    def _fetched(self, key: str, fetch: asyncio.Task[Any]) -> None:
        del self._fetches[key]
        if not fetch.cancelled():
            fetch.exception()  # retrieved, or asyncio warns when every client has left

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
            raise Unavailable(f"the upstream does not answer for {target} ({error!r}): try again") from error
        if known and head.status == NOT_MODIFIED:
            return known
        if head.status == NOT_FOUND:
            raise NotFound(f"the upstream has no {target}")
        if head.status != OK:
            raise Unavailable(f"the upstream answers {head.status} for {target}: try again")
        media_type = head.fields.get("content-type", "application/json")
        found = self._smalls[target] = SmallAnswer(head.fields.get("etag", ""), media_type, bytes(body))
        return found
