"""Links between replicas that share a Redis. A call waits a tenth of a second at most; while Redis is away, calls do not wait.

Every key expires by itself. A limit is one number: the time at which its debt is paid, by Redis' clock, because clocks of
replicas may differ. The operator bounds the memory; `maxmemory-policy volatile-ttl` removes the oldest keys first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import redis

from contracts.errors import InvalidSettings, Unavailable
from runtime.circuit import CircuitBreaker
from runtime.replicas import ANSWER_SECONDS, LEASE_SECONDS, Allowance, ReplicaLinks, RequestClaim, allowance_of
from runtime.replicas.in_process import LocalLimiter
from runtime.replicas.redis_bell import RedisBell
from runtime.replicas.redis_connection import RedisConnection, with_password

TIMEOUT_SECONDS = 0.1
_MICROSECONDS = 1_000_000

# `ports.take`, in microseconds.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, num, minute = tonumber(ARGV[1]), tonumber(ARGV[2]), 60000000
local debt = math.max(0, tonumber(redis.call('GET', KEYS[1]) or 0) - now)
local wait = math.ceil(debt + math.min(num, limit) * minute / limit - minute)
if wait > 0 then return {debt, wait} end
debt = math.ceil(debt + num * minute / limit)
redis.call('SET', KEYS[1], string.format('%.0f', now + debt), 'PX', math.ceil(debt / 1000))
return {debt, 0}
"""

# A value that another holder wrote stays.
_PUT = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""


class RedisLimiter:
    """A `RateLimiter` for all replicas; while Redis is away, each replica counts alone."""

    def __init__(self, redis: RedisConnection, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self._own = LocalLimiter()

    async def allow(self, key: str, limit: int, num: int = 1) -> Allowance:
        """See the port."""
        try:
            debt, wait = await self.redis.call("EVAL", _TAKE, 1, self.prefix + key, limit, num)
        except Unavailable:
            return await self._own.allow(key, limit, num)
        return allowance_of(limit, debt / _MICROSECONDS, wait / _MICROSECONDS)


@dataclass(eq=False)
class RedisIdempotencyStore:
    """An `IdempotencyStore` for all replicas; while Redis is away, requests run again."""

    redis: RedisConnection
    prefix: str

    async def claim(self, key: str, mine: RequestClaim) -> RequestClaim:
        """See the port."""
        lease = _milliseconds(LEASE_SECONDS)
        try:
            held = await self.redis.call("SET", self.prefix + key, _packed(mine), "NX", "GET", "PX", lease)
        except Unavailable:
            return mine
        return mine if held is None else msgspec.msgpack.decode(held, type=RequestClaim)

    async def renew(self, key: str, mine: RequestClaim) -> None:
        """See the port."""
        await self._put(key, mine, _packed(mine), LEASE_SECONDS)

    async def finish(self, key: str, mine: RequestClaim, answer: bytes) -> None:
        """See the port."""
        await self._put(key, mine, _packed(msgspec.structs.replace(mine, answer=answer)), ANSWER_SECONDS)

    async def release(self, key: str, mine: RequestClaim) -> None:
        """See the port."""
        await self._put(key, mine, b"", LEASE_SECONDS)

    async def _put(self, key: str, mine: RequestClaim, value: bytes, seconds: float) -> None:
        # While Redis is away the lease ends by itself, and the next request runs again.
        with suppress(Unavailable):
            await self.redis.call("EVAL", _PUT, 1, self.prefix + key, _packed(mine), value, _milliseconds(seconds))


@dataclass(eq=False)
class RedisSessionStore:
    """A `SessionStore` for all replicas; while Redis is away, nothing is found and nothing kept."""

    redis: RedisConnection
    prefix: str

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """See the port."""
        if not names:
            return []
        try:
            found: list[bytes | None] = await self.redis.call("MGET", *(self.prefix + name for name in names))
        except Unavailable:
            return [None] * len(names)
        return found

    async def write(self, values: Mapping[str, bytes], seconds: float) -> None:
        """See the port."""
        # Commands that are called together share a round trip.
        commands = [("SET", self.prefix + name, value, "PX", _milliseconds(seconds)) for name, value in values.items()]
        await self._send(commands)

    async def shorten(self, names: Sequence[str], seconds: float) -> None:
        """See the port."""
        await self._send([("PEXPIRE", self.prefix + name, _milliseconds(seconds), "LT") for name in names])

    def close(self) -> None:
        """See the port; the connection is closed with the links."""

    async def _send(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> None:
        with suppress(Unavailable):
            await asyncio.gather(*(self.redis.call(*command) for command in commands))


def connect(url: str, prefix: str, timeout_seconds: float = TIMEOUT_SECONDS) -> ReplicaLinks:
    """Links over one Redis, which need not run yet; keys and channels begin with `prefix`.

    Without a password in the URL, MILLRACE_REDIS_PASSWORD is used, or the file that MILLRACE_REDIS_PASSWORD_FILE names.

    Raises InvalidSettings: the URL is not a Redis URL.
    """
    url = with_password(url)
    try:
        connection = RedisConnection(url, _circuit(url), timeout_seconds)
        bell = RedisBell(url, _circuit(url), prefix, timeout_seconds)
    except ValueError as error:
        raise InvalidSettings(f"[millrace] redis: {error}; write redis://host:port/0") from error

    async def aclose() -> None:
        await asyncio.to_thread(bell.close)
        await connection.aclose()

    return ReplicaLinks(
        RedisLimiter(connection, f"{prefix}limit:"),
        RedisIdempotencyStore(connection, f"{prefix}turn:"),
        RedisSessionStore(connection, f"{prefix}session:"),
        bell,
        aclose,
    )


def _circuit(url: str) -> CircuitBreaker:
    server = urlsplit(url).netloc.rpartition("@")[2]  # without the password
    return CircuitBreaker(f"redis at {server}", errors=(redis.RedisError, OSError))


def _packed(claim: RequestClaim) -> bytes:
    return msgspec.msgpack.encode(claim)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
