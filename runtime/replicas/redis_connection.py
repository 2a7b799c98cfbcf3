"""One connection to Redis for all requests of a process.

Flows in: commands. Flows out: their replies. Waits for: Redis, within its patience. While one batch is under way,
whoever comes shares the next: a burst of requests costs a few round trips, not a connection each.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from contracts.errors import Unavailable
from runtime.replicas.circuit import Circuit

Command = tuple[str | bytes | int, ...]


class RedisConnection:
    """See the module. Belongs to one event loop.

    Raises:
        ValueError: the URL is none of Redis.
    """

    def __init__(self, url: str, circuit: Circuit, patience_seconds: float) -> None:
        self._client = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        self._client.response_callbacks.clear()  # replies stay as they came
        self._circuit = circuit
        self._patience = patience_seconds
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._talking: asyncio.Task[None] | None = None

    async def ask(self, *command: str | bytes | int) -> Any:
        """Send a command; its reply.

        Raises:
            Unavailable: Redis is away, or refuses.
        """
        self._circuit.check()
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if self._talking is None:
            self._talking = asyncio.create_task(self._talk())
        return await reply

    async def aclose(self) -> None:
        """Hear the last replies, then hang up."""
        if self._talking is not None:
            await self._talking
        await self._client.aclose()

    async def _talk(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._send(batch)
        self._talking = None

    async def _send(self, batch: list[tuple[Command, asyncio.Future[Any]]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for command, _ in batch:
            pipeline.execute_command(*command)
        try:
            with self._circuit.trying():
                async with asyncio.timeout(self._patience):
                    replies = await pipeline.execute()
        except Unavailable as error:
            for _, waiting in batch:
                if not waiting.done():  # its request was cancelled
                    waiting.set_exception(Unavailable(error.message))
        else:
            for (_, waiting), reply in zip(batch, replies, strict=True):
                if not waiting.done():
                    waiting.set_result(reply)
