"""The application of a region's cache. It needs no key, because the upstream serves the same objects without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse

from services.cache.cache import RegionCache
from services.http import make_service, reply


class _LargeFile(FileResponse):
    chunk_size = 2**20


def create_app(cache: RegionCache) -> FastAPI:
    """What replicas of the region talk to; it closes the cache when it ends."""

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        yield
        await cache.close()

    service = make_service("Millrace cache", lifespan)

    @service.get("/_stats")
    async def stats() -> Response:
        return reply(cache.stats)

    @service.api_route("/{name:path}", methods=["GET", "HEAD"])
    async def get(name: str, request: Request) -> Response:
        if name.endswith(".json") or request.url.query:
            small = await cache.small(f"{quote(name)}?{request.url.query}".rstrip("?"))
            headers = {"etag": small.etag} if small.etag else None
            return Response(small.body, media_type=small.media_type, headers=headers)
        return _LargeFile(await cache.object(name), media_type="application/octet-stream")

    return service
