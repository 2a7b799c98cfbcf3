"""The dashboard's application: one room for each subject, and what all rooms share.

Requests of signed-in browsers come in; pages and moves of the assignments go out. `live/watcher.py` draws who waits for whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.assignments import MOVED
from contracts.errors import NotFound
from runtime.operations import WeightStoreMetrics
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from services.dashboard.generations.detail import TokenTexts
from services.dashboard.generations.routes import router as generations
from services.dashboard.live.reader import StateReader
from services.dashboard.live.routes import router as live
from services.dashboard.live.watcher import Watcher, stop_on_signal
from services.dashboard.policies.routes import router as policies
from services.dashboard.rewards.routes import router as rewards
from services.dashboard.sessions.routes import router as sessions
from services.dashboard.signin.pages import show_unknown
from services.dashboard.signin.repository import Sessions
from services.dashboard.signin.routes import router as signin
from services.dashboard.tenant.watchers import TenantReader, Watchers
from services.http import make_service
from services.provider import load_provider
from weights.stores.opening import open_weight_store

_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
"""They forbid browsers everything that the pages do not need."""


class SafeHeaders:
    """Adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def create_app(settings: Settings, *, links: ReplicaLinks | None = None, has_trains: bool = True) -> FastAPI:
    """The dashboard of one home, to be served at the root; `links` replaces the home's own. `has_trains`: [train] enabled."""
    links, front = links or settings.replica_links(), load_provider(settings)
    provider = None if settings.base else front

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database, event_log = settings.database(), settings.event_log()
        app.state.database, app.state.sessions = database, Sessions(database)
        app.state.store = store = open_weight_store(settings, measures=WeightStoreMetrics())
        reader = StateReader(settings.policy, database, event_log, store, has_trains=has_trains, provider=provider)
        watcher = Watcher(reader.read)
        app.state.watchers = watchers = Watchers(watcher, TenantReader(settings.policy, database, provider))
        loop = asyncio.get_running_loop()
        links.bell.listen(MOVED, lambda: loop.call_soon_threadsafe(watchers.wake))
        watching = asyncio.create_task(watcher.keep_watch())
        with stop_on_signal(watchers.stop):
            yield
        watching.cancel()
        await links.aclose()
        watchers.close()
        event_log.close()
        database.close()

    app = make_service("Millrace dashboard", lifespan)
    app.state.settings, app.state.policy, app.state.provider = settings, settings.policy, provider
    app.state.bell = links.bell
    app.state.token_texts = TokenTexts(settings.base)
    for room in (signin, live, policies, generations, sessions, rewards):
        app.include_router(room)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_middleware(SafeHeaders)
    reply_as_json = app.exception_handlers[HTTPException]

    @app.exception_handler(NotFound.status)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
            return await run_in_threadpool(show_unknown, request)
        return await reply_as_json(request, error)  # type: ignore[misc, no-any-return] # `make_service` registers coroutines

    return app
