"""The ports, and the arithmetic that both sides of them share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

MINUTE = 60.0
LEASE_SECONDS = 3.0
"""How long a request that is running is believed to run without word from its process."""
WINDOW_SECONDS = 600.0
"""How long an answer is kept for repeats of its request."""


class Allowance(NamedTuple):
    """Where a key stands. `wait_seconds` above 0: refused, nothing was taken; so long until it would be allowed."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until the whole limit is there again."""
    wait_seconds: float


def take(debt: float, limit: int, num: int) -> tuple[float, float]:
    """The generic cell rate algorithm on one number: the seconds that a key is ahead of its steady rate.

    A key may spend its whole limit at once and gets it back evenly over a minute. More than the limit in one piece is
    let through when nothing is owed, and owed afterwards: a batch must not be refused for ever.

    Returns:
        the debt afterwards, and the seconds to wait (0: allowed).
    """
    interval = MINUTE / limit
    wait = debt + min(num, limit) * interval - MINUTE
    return (debt, wait) if wait > 1e-9 else (debt + num * interval, 0.0)  # noqa: PLR2004 what floats lose is no debt


def allowance_of(limit: int, debt: float, wait: float) -> Allowance:
    """What a debt means to the caller."""
    return Allowance(limit, max(0, int((MINUTE - debt) * limit / MINUTE + 1e-6)), debt, wait)


class RateLimiter(Protocol):
    """Counts what keys do."""

    async def allow(self, key: str, limit: int, num: int = 1) -> Allowance:
        """Take `num` of the `limit` that a key has in a minute. Never fails."""


class RequestClaim(msgspec.Struct, frozen=True, array_like=True):
    """What stands under an idempotency key: who runs the request, and its answer once there is one."""

    digest: bytes
    """Of the request's body: another body under the same key is a mistake."""
    holder: bytes
    """Random; tells two runs of the same request apart."""
    answer: bytes | None = None


class IdempotencyStore(Protocol):
    """Answers of the last minutes, for requests that are sent again. Best effort: never fails, may forget."""

    async def claim(self, key: str, turn: RequestClaim) -> RequestClaim:
        """The turn that holds a key now: `turn` itself if it was free, or if nobody can be asked."""

    async def renew(self, key: str, turn: RequestClaim) -> None:
        """Still running: to be said more often than every `LEASE_SECONDS`."""

    async def finish(self, key: str, turn: RequestClaim, answer: bytes) -> None:
        """Keep the answer for `WINDOW_SECONDS`, unless somebody else holds the key by now."""

    async def release(self, key: str, turn: RequestClaim) -> None:
        """There is no answer: the next one runs again."""


class Bell(Protocol):
    """Wakes whoever waits for a thing to change. Best effort: who listens must also look from time to time."""

    def ring(self, name: str) -> None:
        """Tell every listener, in this process and in others. Never fails; call it after the commit."""

    def listen(self, name: str, wake: Callable[[], object]) -> None:
        """Call `wake`, which neither blocks nor fails, at each ring and whenever one may have been missed; on any thread."""

    def close(self) -> None:
        """No `wake` is called after it. May be called twice."""


class ReplicaLinks(NamedTuple):
    """All of it, for one process."""

    limiter: RateLimiter
    idempotency: IdempotencyStore
    bell: Bell
    aclose: Callable[[], Awaitable[None]]
    """Ends it, once; a process without an event loop closes its bell instead."""
