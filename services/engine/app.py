"""The engine's web application: while it runs, the follower follows; when it ends, the engine is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import MillraceError
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.routes import make_router


def make_app(engine: Engine, follower: Follower) -> FastAPI:
    """The application over an engine."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        follower.start()
        yield
        await asyncio.to_thread(follower.stop)
        await asyncio.to_thread(engine.close)

    app = FastAPI(title="Millrace engine", openapi_url=None, lifespan=lifespan)
    app.include_router(make_router(engine, follower))

    @app.exception_handler(MillraceError)
    async def expected_failure(_request: Request, error: MillraceError) -> Response:
        return Response(msgspec.json.encode(error.as_openai()), status_code=error.status, media_type="application/json")

    return app
