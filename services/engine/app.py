"""The engine's web application: it starts follower and announcer, and stops them and the engine at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runtime.heartbeat import end_heartbeats
from services.engine.announcing import EngineAnnouncer
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.guard import Guard
from services.engine.routes import make_router
from services.http import make_service

_MOST_BODY_BYTES = 2**24
"""A prompt of two million ids. Only our gateways ask here, and they bound what apps send."""


def make_app(engine: Engine, follower: Follower, key: str, announcer: EngineAnnouncer | None = None) -> FastAPI:
    """The application over an engine; `key`: the secret that every caller must send."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        follower.start()
        if announcer is not None:
            announcer.start()
        yield
        if announcer is not None:
            await asyncio.to_thread(announcer.stop)
        await asyncio.to_thread(follower.stop)
        await asyncio.to_thread(engine.close)
        await asyncio.to_thread(end_heartbeats)

    app = make_service("Millrace engine", lifespan, most_body_bytes=_MOST_BODY_BYTES)
    app.include_router(make_router(engine, follower))
    app.add_middleware(Guard, key=key)  # the middleware that is added last runs first
    return app
