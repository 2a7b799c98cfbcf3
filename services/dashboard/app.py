"""The process's web application: the pages, their data and what an operator decides.

In: requests of signed-in browsers. Out: pages; moves of the assignments. Waits for: see `watcher`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.assignments import MOVED
from runtime.replicas import ReplicaLinks
from runtime.settings import Settings
from runtime.weight_metrics import WeightStoreMetrics
from services.dashboard.generations.tokens import TokenTexts
from services.dashboard.live.watcher import StateReader, Watcher
from services.dashboard.routes import router
from services.dashboard.signin.sessions import Sessions
from services.dashboard.tenant.watchers import TenantReader, Watchers
from services.http import make_service
from weights.stores.opening import open_weight_store

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def create_app(settings: Settings, *, links: ReplicaLinks | None = None) -> FastAPI:
    """The dashboard of one home, to be served at the root; `links` replaces the home's own."""
    links = links or settings.replica_links()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database, event_log = settings.database(), settings.event_log()
        app.state.store = store = open_weight_store(settings, measures=WeightStoreMetrics())
        reader = StateReader(settings, database, event_log, store)
        app.state.database = database
        app.state.sessions = Sessions(database)
        watcher = Watcher(reader.read)
        app.state.watchers = watchers = Watchers(watcher, TenantReader(settings, database))
        loop = asyncio.get_running_loop()
        links.bell.listen(MOVED, lambda: loop.call_soon_threadsafe(watchers.wake))
        watching = asyncio.create_task(watcher.keep_watch())
        with _told_to_stop(watchers.stop):
            yield
        watching.cancel()
        await links.aclose()
        watchers.close()
        event_log.close()
        database.close()

    app = make_service("Millrace dashboard", lifespan)
    app.state.settings = settings
    app.state.bell = links.bell
    app.state.token_texts = TokenTexts(settings.base)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_middleware(SafeHeaders)
    return app


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


@contextmanager
def _told_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the process is told to end, before whoever else listens.

    A server waits for open responses before it ends lifespans, and an event stream never ends by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    listeners = {number: listener for number, listener in found.items() if callable(listener)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        listeners[signal.Signals(number)](number, frame)

    for number in listeners:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, listener in listeners.items():
            signal.signal(number, listener)
