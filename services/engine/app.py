"""The engine's web application: while it runs, the follower follows; when it ends, the engine is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.guard import Guard
from services.engine.routes import make_router
from services.http import make_service


def make_app(engine: Engine, follower: Follower, key: str) -> FastAPI:
    """The application over an engine; `key`: what every caller must send."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        follower.start()
        yield
        await asyncio.to_thread(follower.stop)
        await asyncio.to_thread(engine.close)

    app = make_service("Millrace engine", lifespan)
    app.include_router(make_router(engine, follower))
    app.add_middleware(Guard, key=key)  # the last one added is the first one asked
    return app
