"""Applications on a real loopback port, and a home for them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from contracts.keys import Role, create_key
from runtime.database import Database
from runtime.settings import Settings
from services.guarding import GuardedProtocol

PATIENCE_SECONDS = 60.0
"""How long what takes a moment may take, on the slowest machine."""
TASK = """
name = "booking"
window_seconds = 5

[sampling]
owner = "task"
temperature = 1.0
max_tokens = 32

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[signals.stars]
type = "number"
minimum = 1
maximum = 5

[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }

[signals.edited]
type = "text"
reward = 0.0
"""

PRIVATE_TASK = """
name = "private"
consent = "none"

[sampling]
owner = "caller"
temperature = 0.7
max_tokens = 8

[signals.accepted]
type = "text"
reward = 1.0
"""


class _Server(uvicorn.Server):
    """Waits to be ended instead of looking a hundred times a second, and stops at once where nobody is connected."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self.on_tick(0)  # the date in the headers of all answers
        await self._ended.wait()

    def end(self) -> None:
        """Callable from any thread."""
        if self.started:
            self._loop.call_soon_threadsafe(self._ended.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, which sleeps a tenth of a second before it looks who is connected."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(3):  # connections without a request are gone in the next round of the loop
            await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()


@contextmanager
def serve(app: ASGIApp) -> Iterator[str]:
    """Run an application in a thread; its URL."""
    config = uvicorn.Config(
        app, "127.0.0.1", 0, http=GuardedProtocol, ws="none", log_level="critical", timeout_graceful_shutdown=5
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, name="serve")
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.end()
        thread.join()


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Fail if it does not come true in time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "waited without success"
        time.sleep(min(0.1, 0.005 + waited / 20))  # a condition may cost more than what it waits for


def make_home(folder: Path, engine_url: str = "http://127.0.0.1:1") -> Settings:
    """Settings of a home in `folder`, with two tasks: `booking` owns its sampling, `private` leaves it to the caller."""
    (folder / "task.toml").write_text(TASK)
    (folder / "private.toml").write_text(PRIVATE_TASK)
    return Settings(
        home=folder,
        run="test",
        policy="demo",
        base=str(folder / "base"),
        tasks=(folder / "task.toml", folder / "private.toml"),
        engine_port=int(engine_url.rpartition(":")[2]),
        weights_unsigned=True,
    )


def make_key(database: Database, role: Role = "app", tenant: str = "default") -> str:
    with database.transaction() as connection:
        return create_key(connection, role, tenant)
