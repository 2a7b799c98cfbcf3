"""Runs services as a process: one port, whose paths choose the service.

In: requests. Out: responses, `/health` and `/ready`; metrics and log lines about each request. Waits for: nothing. When told to
stop, it reports unready at once, takes no new connection and lets open requests finish.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import structlog
import uvicorn
from fastapi import FastAPI, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import Unavailable
from runtime.clocks import ClockWatch
from runtime.heartbeat import end_heartbeats
from runtime.listening import listening_socket
from runtime.logs import set_up_logs
from runtime.metrics import REQUEST_SECONDS, REQUESTS, REQUESTS_IN_FLIGHT
from runtime.operations import Check, Operations, step_done
from runtime.settings import Settings, load_settings
from services import openapi
from services.guarding import FailedKeys, GuardedProtocol, address_of
from services.http import make_service, reply

MIN_FREE_BYTES = 64 * 2**20
DRAIN_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75
_NEW_OBJECTS = 10_000
"""How many new objects begin a collection: those of some fifty requests."""
_BEAT_SECONDS = 1.0
_BAD_REQUEST, _UNAUTHORIZED, _TOO_MANY, _UNAVAILABLE = 400, 401, 429, 503
_ERRORS = (0, 500, 502, 503, 504)
"""Statuses that an alarm counts; 0: the request ended without an answer."""
_OWN_PATHS = frozenset(("/health", "/ready", openapi.PATH))
_log = structlog.get_logger(__name__)


def make_web(children: Mapping[str, FastAPI], operations: Operations) -> FastAPI:
    """One application over several: a request goes to the first child whose prefix matches its path.

    The children's lifespans are entered here, because ASGI starts and stops only the outermost application.
    """

    @asynccontextmanager
    async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for child in dict.fromkeys(children.values()):  # one child may have several prefixes
                await stack.enter_async_context(child.router.lifespan_context(child))
            beating = asyncio.create_task(_beat())
            yield
            beating.cancel()

    web = make_service("Millrace", lifespan)
    asking: asyncio.Task[dict[str, str]] | None = None

    @web.get("/health")
    async def health() -> Response:
        """200 while the process is alive."""
        return reply({"status": "alive"})

    @web.get("/ready")
    async def ready() -> Response:
        """200 while the process can serve; else 503, with the problems."""
        nonlocal asking
        if asking is None or asking.done():  # one thread at most, however many clients ask
            asking = asyncio.create_task(asyncio.to_thread(operations.problems))
        problems = await asyncio.shield(asking)
        return reply({"ready": not problems, "problems": problems}, _UNAVAILABLE if problems else 200)

    @web.get(openapi.PATH)
    async def describe() -> Response:
        """The OpenAPI document of every route."""
        return reply(document())

    @cache
    def document() -> dict[str, Any]:
        return openapi.make_document([*dict.fromkeys(children.values()), web], metadata.version("millrace"))

    measured = {prefix: Measured(child, child.title.removeprefix("Millrace ")) for prefix, child in children.items()}
    web.add_middleware(_ToChildren, children=measured)
    return web


class _ToChildren:
    """Passes a request to the first child whose prefix matches, without FastAPI's routing, which would cost each one 0.1 ms."""

    def __init__(self, app: ASGIApp, children: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._children = children

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        child = self._app
        if scope["type"] == "http" and scope["path"] not in _OWN_PATHS:
            prefix = next((prefix for prefix in self._children if scope["path"].startswith(prefix)), "/")
            child = self._children[prefix]
        await child(scope, receive, send)


class Measured:
    """Counts and times the requests of one service, and binds the fields of their log lines. Holds back responses to unknown keys.

    The id of a request is the client's `x-request-id` or a new one. The response carries it, unless the service sets its own.
    """

    def __init__(self, app: ASGIApp, service: str) -> None:
        self._app = app
        self._failed_keys = FailedKeys()
        self._service = service
        self._in_flight = REQUESTS_IN_FLIGHT.labels(service)
        self._seconds = REQUEST_SECONDS.labels(service)
        for status in _ERRORS:
            REQUESTS.labels(service, str(status))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and measure it."""
        status, started = 0, time.perf_counter()
        request = Headers(scope=scope).get("x-request-id") or uuid.uuid4().hex

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault("x-request-id", request)
                if status == _UNAUTHORIZED and not await self._failed_keys.hold_back(address_of(scope)):
                    message["status"] = status = _TOO_MANY
                    MutableHeaders(scope=message)["retry-after"] = "10"
            await send(message)

        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(process=self._service, request=request)
        self._in_flight.inc()
        try:
            await self._app(scope, receive, noting)
        finally:
            seconds = time.perf_counter() - started
            self._in_flight.dec()
            self._seconds.observe(seconds)
            REQUESTS.labels(self._service, str(status)).inc()
            note = _log.warning if status >= _BAD_REQUEST else _log.debug
            note("request", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 4))


def disk_check(folder: Path) -> Check:
    """Unready while the disk of a folder is nearly full."""

    def check() -> None:
        free = shutil.disk_usage(folder).free
        if free < MIN_FREE_BYTES:
            raise Unavailable(
                f"{free // 2**20} MiB free under {folder}, less than {MIN_FREE_BYTES // 2**20}: free disk space"
            )

    return check


def storage_check(settings: Settings) -> Check:
    """For a service that acknowledges by a commit: unready while the disk is nearly full or the database takes no writer."""
    check_disk = disk_check(settings.home)

    def check() -> None:
        check_disk()
        with closing(settings.database()) as database, database.transaction():
            pass

    return check


def clock_check(settings: Settings) -> Check:
    """Unready while this machine's clock is wrong: completion ids begin with its time."""
    return ClockWatch(settings.database()).check


def run_services(
    process: str,
    home: Path,
    make: Callable[[Settings], Mapping[str, FastAPI]],
    checks: Mapping[str, Callable[[Settings], Check]],
    url: Callable[[Settings], str],
) -> None:
    """Serve applications of a home, at the address of its settings, until SIGTERM or SIGINT."""
    set_up_logs(process)
    settings = load_settings(home)
    address = httpx.URL(url(settings))
    serve(make(settings), {name: check(settings) for name, check in checks.items()}, address.host, address.port or 80)


def serve(children: Mapping[str, FastAPI], checks: Mapping[str, Check], host: str, port: int) -> None:
    """Serve applications behind one port until SIGTERM or SIGINT; see `make_web`."""
    operations = Operations(checks)
    config = uvicorn.Config(
        make_web(children, operations),
        loop="uvloop",
        http=GuardedProtocol,
        ws="none",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    _Server(config, operations).run([listening_socket(host, port)])
    operations.close()


class _Server(uvicorn.Server):
    """Reports unready before it drains, ends with status 0 when told to, and keeps collections of garbage short."""

    def __init__(self, config: uvicorn.Config, operations: Operations) -> None:
        super().__init__(config)
        self._operations = operations

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # A full collection would walk everything that was imported, 180,000 objects: 66 ms in which nobody is answered.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """End after the open requests; a second Ctrl-C does not wait for them.

        Uvicorn's own would raise the signal again after the drain, and a process that did as it was told would end with 143.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._operations.drain()
        await super().shutdown(sockets)
        await asyncio.to_thread(end_heartbeats)


async def _beat() -> None:
    while True:
        step_done()
        await asyncio.sleep(_BEAT_SECONDS)
