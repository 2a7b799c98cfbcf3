"""One process that only knows itself: the embedded default, and what is left while Redis is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from runtime.replicas.ports import (
    LEASE_SECONDS,
    WINDOW_SECONDS,
    Allowance,
    ReplicaLinks,
    RequestClaim,
    allowance_of,
    take,
)

_MAX_KEYS = 4096
_TURN_BYTES = 256  # what a turn takes beside its answer, about


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
    """A `IdempotencyStore`, bounded in number and bytes: the oldest goes first. Belongs to one event loop."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, max_turns: int = 4096, max_bytes: int = 32 * 2**20
    ) -> None:
        self._clock = clock
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._turns: OrderedDict[str, tuple[float, RequestClaim]] = OrderedDict()

    async def claim(self, key: str, turn: RequestClaim) -> RequestClaim:
        """See the port."""
        held = self._held(key)
        if held is None:
            self._put(key, turn, LEASE_SECONDS)
        return held or turn

    async def renew(self, key: str, turn: RequestClaim) -> None:
        """See the port."""
        if self._held(key) in (None, turn):
            self._put(key, turn, LEASE_SECONDS)

    async def finish(self, key: str, turn: RequestClaim, answer: bytes) -> None:
        """See the port."""
        if self._held(key) in (None, turn):
            self._put(key, msgspec.structs.replace(turn, answer=answer), WINDOW_SECONDS)

    async def release(self, key: str, turn: RequestClaim) -> None:
        """See the port."""
        if self._held(key) == turn:
            self._drop(key)

    def _held(self, key: str) -> RequestClaim | None:
        until, turn = self._turns.get(key, (0.0, None))
        return turn if until > self._clock() else None

    def _put(self, key: str, turn: RequestClaim, seconds: float) -> None:
        self._drop(key)
        self._turns[key] = (self._clock() + seconds, turn)
        self._num_bytes += _size_of(turn)
        while len(self._turns) > self._max_turns or self._num_bytes > self._max_bytes or self._oldest_is_over():
            self._drop(next(iter(self._turns)))

    def _oldest_is_over(self) -> bool:
        return bool(self._turns) and next(iter(self._turns.values()))[0] <= self._clock()

    def _drop(self, key: str) -> None:
        if key in self._turns:
            self._num_bytes -= _size_of(self._turns.pop(key)[1])


def _size_of(turn: RequestClaim) -> int:
    return _TURN_BYTES + len(turn.answer or b"")


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
        """What is listened to."""
        return list(self._wakes)

    def close(self) -> None:
        """See the port."""
        self._wakes.clear()


def local_links() -> ReplicaLinks:
    """All of it, for a process that only knows itself."""
    bell = LocalBell()

    async def aclose() -> None:
        bell.close()

    return ReplicaLinks(LocalLimiter(), LocalIdempotencyStore(), bell, aclose)
