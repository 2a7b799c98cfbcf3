"""A TCP proxy that is slow on request: everything that passes arrives later, in both directions, in its order."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024
_CHUNKS_ON_THE_WAY = 1024


class SlowProxy:
    """Listens on a port of its own while the block runs; `delay`: seconds for each direction, from now on."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-proxy")
        self._connections: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()  # nobody there
            return
        ways = [asyncio.ensure_future(self._way(*ends)) for ends in ((reader, there_writer), (there_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            there_writer.close()
            writer.close()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Latency, not bandwidth: many chunks are on the way at the same time."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_ON_THE_WAY)

        async def arrive() -> None:
            while True:
                due, chunk = await on_the_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()

        arriving = asyncio.ensure_future(arrive())
        try:
            with suppress(OSError):
                while chunk := await reader.read(_CHUNK):
                    await on_the_way.put((self._loop.time() + self.delay, chunk))
            await on_the_way.put((self._loop.time(), b""))
            with suppress(OSError):
                await arriving
        finally:
            arriving.cancel()
