"""One connection to Redis for all requests of a process.

In: commands. Out: their replies. Waits for: Redis, as long as its timeout allows. Commands that arrive while a batch is under way
wait for the next batch, so a burst of requests costs a few round trips and no further connections.

    call() ──▶ _waiting ──▶ _send_all ──▶ one pipeline to Redis ──▶ each caller's future
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from contracts.errors import Unavailable
from runtime.circuit import CircuitBreaker
from runtime.secret_values import REDIS_PASSWORD, secret_value

Command = tuple[str | bytes | int, ...]


class RedisConnection:
    """See the module. Belongs to one event loop.

    Raises:
        ValueError: the URL is not a Redis URL.
    """

    def __init__(self, url: str, circuit: CircuitBreaker, timeout_seconds: float) -> None:
        self._client = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        self._client.response_callbacks.clear()  # callers get replies as Redis sent them
        self._circuit = circuit
        self._timeout = timeout_seconds
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def call(self, *command: str | bytes | int) -> Any:
        """Send a command and return its reply.

        Raises:
            Unavailable: Redis is away, or refuses.
        """
        self._circuit.check()
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return await reply

    async def aclose(self) -> None:
        """Wait for the last replies, then disconnect."""
        if self._sending is not None:
            await self._sending
        await self._client.aclose()

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._send(batch)
        self._sending = None

    async def _send(self, batch: list[tuple[Command, asyncio.Future[Any]]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for command, _ in batch:
            pipeline.execute_command(*command)
        try:
            with self._circuit.calling():
                async with asyncio.timeout(self._timeout):
                    replies = await pipeline.execute()
        except Unavailable as error:
            for _, waiting in batch:
                if not waiting.done():  # its request was cancelled
                    waiting.set_exception(Unavailable(error.message))
        else:
            for (_, waiting), reply in zip(batch, replies, strict=True):
                if not waiting.done():
                    waiting.set_result(reply)


def with_password(url: str) -> str:
    """The URL of Redis with the password of the environment, unless it has one.

    Raises:
        InvalidSettings: the file with the password cannot be read.
    """
    parts, password = urlsplit(url), secret_value(REDIS_PASSWORD)
    if password is None or parts.password is not None:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}"))
