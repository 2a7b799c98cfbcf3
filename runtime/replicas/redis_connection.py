"""One connection to Redis for all requests of a process.

In: commands. Out: their replies. Waits for: Redis, as long as its timeout allows. Commands that arrive while a batch is under way
wait for the next batch, so a burst of requests costs a few round trips and no further connections.

    call() ──▶ _waiting ──▶ _send_all ──▶ one pipeline to Redis ──▶ each caller's future
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as RetryInThread

from contracts.errors import Unavailable
from runtime.certificates import certificate_of, refusal_of
from runtime.circuit import CircuitBreaker
from runtime.secret_values import REDIS_PASSWORD, secret_value

Command = tuple[str | bytes | int, ...]
_REFUSAL_SECONDS = 3.0
_PORT = 6379


class RedisConnection:
    """See the module. Belongs to one event loop. Raises ValueError: the URL is not a Redis URL."""

    def __init__(self, url: str, circuit: CircuitBreaker, timeout_seconds: float) -> None:
        self._client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        self._client.response_callbacks.clear()  # callers get replies as Redis sent them
        self._circuit = circuit
        self._timeout = timeout_seconds
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def call(self, *command: str | bytes | int) -> Any:
        """Send a command and return its reply. Raises Unavailable: Redis is away, or refuses."""
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

    Raises InvalidSettings: the file with the password cannot be read.
    """
    parts, password = urlsplit(url), secret_value(REDIS_PASSWORD)
    if password is None or parts.password is not None:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}"))


def redis_refusal(url: str) -> str:
    """What is wrong and what to do; empty if Redis lets this client in, or cannot be reached.

    Raises InvalidSettings: the file with the password cannot be read; ValueError: the URL is not a Redis URL.
    """
    seconds, retry = _REFUSAL_SECONDS, RetryInThread(NoBackoff(), 0)
    client = redis.Redis.from_url(
        with_password(url), socket_timeout=seconds, socket_connect_timeout=seconds, retry=retry
    )
    try:
        client.ping()
    except redis.AuthenticationError as error:
        return f"Redis refuses this sign-in ({error}): check the user in `redis` and the password in MILLRACE_REDIS_PASSWORD"
    except redis.ResponseError as error:
        return f"Redis refuses ({error}): allow this user what Millrace does there"
    except (redis.RedisError, OSError) as error:
        return _why_no_connection(url, error)
    finally:
        client.close()
    return ""


def _why_no_connection(url: str, error: BaseException) -> str:
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or _PORT
    if parts.scheme == "rediss":
        named = parse_qs(parts.query).get("ssl_ca_certs", [""])[0]
        if named and not Path(named).is_file():
            return f"ssl_ca_certs in `redis`: {named} cannot be read; put the authority of Redis' certificate there"
        found = refusal_of(
            host, port, _REFUSAL_SECONDS, authority=Path(named) if named else None, setting="ssl_ca_certs of `redis`"
        )
        if found is None and _ssl_error_in(error):
            return f"Redis refuses this client's certificate ({error}): set ssl_certfile and ssl_keyfile in `redis`"
        return "" if found is None else f"Redis at {found[1]}" if found[0] == "no_tls" else found[1]
    with suppress(OSError, ValueError):
        certificate_of(host, port, _REFUSAL_SECONDS)
        return f"Redis at {host}:{port} speaks TLS: write rediss:// instead of redis://"
    return ""


def _ssl_error_in(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
