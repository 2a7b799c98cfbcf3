"""One port for apps and operators: inference, feedback and dashboard in one process.

Flows in: every request; its path chooses the service. Flows out: their answers, and `/health` and `/ready` of its own.
Waits for: nothing; on SIGTERM it takes no new connection and lets the open ones finish.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from contracts.database import Database
from contracts.errors import Unavailable
from contracts.listening import listening_socket
from contracts.logs import set_up_logs
from contracts.settings import Settings, load_settings
from services.dashboard.app import create_app as create_dashboard
from services.feedback.app import create_app as create_feedback
from services.http import make_service, reply
from services.inference.app import create_app as create_inference
from services.inference.engine_client import EngineClient

MIN_FREE_BYTES = 64 * 2**20
DRAIN_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75
_UNAVAILABLE = 503


def create_app(settings: Settings) -> FastAPI:
    """All services of one home. Each child's lifespan is entered here: ASGI tells only the outermost application."""
    children = {
        "/v1/feedback": create_feedback(settings),
        "/v1/": create_inference(settings),
        "/": create_dashboard(settings),
    }

    database, engine = settings.database(), EngineClient(settings.engine_url)

    @asynccontextmanager
    async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for child in children.values():
                await stack.enter_async_context(child.router.lifespan_context(child))
            yield
        await engine.close()
        database.close()

    web = make_service("Millrace", lifespan)
    _add_health(web, settings.home, database, engine)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        prefix = next((prefix for prefix in children if scope["path"].startswith(prefix)), "/")
        await children[prefix](scope, receive, send)

    web.mount("/", dispatch)
    return web


def _add_health(web: FastAPI, home: Path, database: Database, engine: EngineClient) -> None:
    @web.get("/health")
    async def health() -> Response:
        return reply({"status": "alive"})

    @web.get("/ready")
    async def ready() -> Response:
        problems = {}
        try:
            await run_in_threadpool(_check_storage, home, database)
        except Unavailable as error:
            problems["storage"] = error.message
        try:
            await engine.check_health()
        except Unavailable as error:
            problems["engine"] = error.message
        return reply({"ready": not problems, "problems": problems}, _UNAVAILABLE if problems else 200)


def _check_storage(home: Path, database: Database) -> None:
    """Tables and log share a disk; Raises Unavailable if it is nearly full or the database takes no writer."""
    free = shutil.disk_usage(home).free
    if free < MIN_FREE_BYTES:
        raise Unavailable(
            f"{free // 2**20} MiB free under {home}, less than {MIN_FREE_BYTES // 2**20}: free disk space"
        )
    with database.transaction():
        pass


def main(home: Path) -> None:
    """Run the process `web` of a home until SIGTERM or SIGINT."""
    set_up_logs("web")
    settings = load_settings(home)
    config = uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    uvicorn.Server(config).run([listening_socket(settings.web_host, settings.web_port)])
