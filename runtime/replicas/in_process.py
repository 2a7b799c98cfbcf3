"""Links of a process without replicas: the embedded default, and the fallback while Redis is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from runtime.replicas import (
    ANSWER_SECONDS,
    LEASE_SECONDS,
    Allowance,
    ReplicaLinks,
    RequestClaim,
    SessionStore,
    allowance_of,
    take,
)

_MAX_KEYS = 4096
_CLAIM_BYTES = 256  # roughly what a claim takes beside its answer


class LocalLimiter:
    """A `RateLimiter`. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid_at: dict[str, float] = {}

    async def allow(self, key: str, limit: int, num: int = 1) -> Allowance:
        """See the port."""
        now = self._clock()
        debt, wait = take(max(0.0, self._paid_at.get(key, 0.0) - now), limit, num)
        if len(self._paid_at) >= _MAX_KEYS:
            self._paid_at = {held: until for held, until in self._paid_at.items() if until > now}
        self._paid_at[key] = now + debt
        return allowance_of(limit, debt, wait)


class LocalIdempotencyStore:
    """An `IdempotencyStore`, bounded in number and bytes: the oldest claim goes first. Belongs to one event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, max_claims: int = 4096, max_bytes: int = 32 * 2**20
    ) -> None:
        self._clock = clock
        self._max_claims = max_claims
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._claims: OrderedDict[str, tuple[float, RequestClaim]] = OrderedDict()

    async def claim(self, key: str, mine: RequestClaim) -> RequestClaim:
        """See the port."""
        held = self._held(key)
        if held is None:
            self._put(key, mine, LEASE_SECONDS)
        return held or mine

    async def renew(self, key: str, mine: RequestClaim) -> None:
        """See the port."""
        if self._held(key) in (None, mine):
            self._put(key, mine, LEASE_SECONDS)

    async def finish(self, key: str, mine: RequestClaim, answer: bytes) -> None:
        """See the port."""
        if self._held(key) in (None, mine):
            self._put(key, msgspec.structs.replace(mine, answer=answer), ANSWER_SECONDS)

    async def release(self, key: str, mine: RequestClaim) -> None:
        """See the port."""
        if self._held(key) == mine:
            self._drop(key)

    def _held(self, key: str) -> RequestClaim | None:
        until, claim = self._claims.get(key, (0.0, None))
        return claim if until > self._clock() else None

    def _put(self, key: str, claim: RequestClaim, seconds: float) -> None:
        self._drop(key)
        self._claims[key] = (self._clock() + seconds, claim)
        self._num_bytes += _size_of(claim)
        while len(self._claims) > self._max_claims or self._num_bytes > self._max_bytes or self._oldest_has_ended():
            self._drop(next(iter(self._claims)))

    def _oldest_has_ended(self) -> bool:
        return bool(self._claims) and next(iter(self._claims.values()))[0] <= self._clock()

    def _drop(self, key: str) -> None:
        if key in self._claims:
            self._num_bytes -= _size_of(self._claims.pop(key)[1])


def _size_of(claim: RequestClaim) -> int:
    return _CLAIM_BYTES + len(claim.answer or b"")


class LocalSessionStore:
    """A `SessionStore` in memory, bounded in bytes: what was written first goes first. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, max_bytes: int = 64 * 2**20) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """See the port."""
        now = self._clock()
        held = (self._values.get(name, (0.0, None)) for name in names)
        return [value if until > now else None for until, value in held]

    async def write(self, values: Mapping[str, bytes], seconds: float) -> None:
        """See the port."""
        until = self._clock() + seconds
        for name, value in values.items():
            self._drop(name)
            self._values[name] = (until, value)
            self._num_bytes += len(value) + _CLAIM_BYTES
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._values)))

    async def shorten(self, names: Sequence[str], seconds: float) -> None:
        """See the port."""
        until = self._clock() + seconds
        for name in names:
            if name in self._values:
                held, value = self._values[name]
                self._values[name] = (min(held, until), value)

    def close(self) -> None:
        """See the port."""
        self._values.clear()
        self._num_bytes = 0

    def _drop(self, name: str) -> None:
        if name in self._values:
            self._num_bytes -= len(self._values.pop(name)[1]) + _CLAIM_BYTES


class LocalBell:
    """A `Bell` within one process."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Callable[[], object]]] = {}

    def ring(self, name: str) -> None:
        """See the port."""
        for wake in tuple(self._wakes.get(name, ())):
            wake()

    def listen(self, name: str, wake: Callable[[], object]) -> None:
        """See the port."""
        self._wakes.setdefault(name, []).append(wake)

    def names(self) -> list[str]:
        """Names that somebody listens to."""
        return list(self._wakes)

    def close(self) -> None:
        """See the port."""
        self._wakes.clear()


def local_links(sessions: SessionStore | None = None) -> ReplicaLinks:
    """The links of a process without replicas. `sessions`: by default in memory."""
    bell, kept = LocalBell(), sessions or LocalSessionStore()

    async def aclose() -> None:
        bell.close()
        kept.close()

    return ReplicaLinks(LocalLimiter(), LocalIdempotencyStore(), kept, bell, aclose)
