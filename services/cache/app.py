"""The application of a region's cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from services.cache.cache import RegionCache
from services.cache.routes import add_routes
from services.http import make_service


def create_app(cache: RegionCache) -> FastAPI:
    """What replicas of the region talk to; it closes the cache when it ends."""

    @asynccontextmanager
    async def lifespan(_service: FastAPI) -> AsyncIterator[None]:
        yield
        await cache.close()

    service = make_service("Millrace cache", lifespan)
    add_routes(service, cache)
    return service
