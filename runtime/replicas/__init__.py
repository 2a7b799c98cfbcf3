"""What the replicas of a process share, as far as it may be lost: limits, answers to repeated requests, sessions, wake-ups.

None of it is the source of truth. Without Redis, or while Redis is away, each process relies on what it knows itself: limits
count per replica, a repeated request runs again, a session is rendered anew, and a change that nobody announced is found at the next poll.

Here are the ports, and the arithmetic that their implementations share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

MINUTE = 60.0
LEASE_SECONDS = 3.0
"""A claim ends this long after its process last renewed it."""
ANSWER_SECONDS = 600.0
"""How long an answer is kept for repeats of its request."""


class Allowance(NamedTuple):
    """What a key may still do.

    `wait_seconds` above 0: the request was refused and nothing was taken; a retry after that time succeeds.
    """

    limit: int
    remaining: int
    reset_seconds: float
    """Until the whole limit is available again."""
    wait_seconds: float


def take(debt: float, limit: int, num: int) -> tuple[float, float]:
    """The generic cell rate algorithm. Its state is one number: how many seconds a key is ahead of its steady rate.

    A key may spend its whole limit at once, and gets it back evenly over a minute. A batch larger than the limit is allowed
    when the key owes nothing, and is owed afterwards: otherwise it could never be sent.

    The library `limits` was measured and not taken: its windows give a spent limit back after up to a minute instead of evenly,
    it reports no exact time for a retry, needs a second round trip to Redis for `remaining`, and is 6 to 9 times slower in memory.

    Returns:
        the debt afterwards in seconds, and the seconds to wait (0: allowed).
    """
    interval = MINUTE / limit
    wait = debt + min(num, limit) * interval - MINUTE
    return (debt, wait) if wait > 1e-9 else (debt + num * interval, 0.0)  # noqa: PLR2004 below is rounding, not debt


def allowance_of(limit: int, debt: float, wait: float) -> Allowance:
    """The allowance that a debt leaves."""
    return Allowance(limit, max(0, int((MINUTE - debt) * limit / MINUTE + 1e-6)), debt, wait)


class RateLimiter(Protocol):
    """Counts what keys do."""

    async def allow(self, key: str, limit: int, num: int = 1) -> Allowance:
        """Take `num` of the `limit` that a key has per minute. Never fails."""


class RequestClaim(msgspec.Struct, frozen=True, array_like=True):
    """The value under an idempotency key: which run of the request holds it, and the answer once there is one."""

    digest: bytes
    """Of the request: another request under the same key is a mistake of the client."""
    holder: bytes
    """Random; tells two runs of the same request apart."""
    answer: bytes | None = None


class IdempotencyStore(Protocol):
    """Answers of the last minutes, for requests that are sent again. Best effort: never fails, may forget."""

    async def claim(self, key: str, mine: RequestClaim) -> RequestClaim:
        """The claim that holds a key now: `mine` if the key was free, or if the store is away."""

    async def renew(self, key: str, mine: RequestClaim) -> None:
        """Extend a claim while its request runs; call it more often than every `LEASE_SECONDS`."""

    async def finish(self, key: str, mine: RequestClaim, answer: bytes) -> None:
        """Keep the answer for `ANSWER_SECONDS`, unless another run holds the key by now."""

    async def release(self, key: str, mine: RequestClaim) -> None:
        """Give up a claim without an answer: the next request runs again."""


class SessionStore(Protocol):
    """What the next call of a session needs, for some hours. Best effort: never fails; what is lost, or too old, is None."""

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """The values under some names, in their order."""

    async def write(self, values: Mapping[str, bytes], seconds: float) -> None:
        """Keep values under their names for some seconds."""

    async def shorten(self, names: Sequence[str], seconds: float) -> None:
        """Keep these no longer than some more seconds."""

    def close(self) -> None:
        """Close what was opened. May be called twice."""


class Bell(Protocol):
    """Wakes every process that waits for a change. Best effort: a listener must also poll from time to time."""

    def ring(self, name: str) -> None:
        """Wake every listener, in this process and in others. Never fails; call it after the commit."""

    def listen(self, name: str, wake: Callable[[], object]) -> None:
        """Call `wake` at each ring, and whenever one may have been missed. `wake` runs on any thread; it must not block or fail."""

    def close(self) -> None:
        """Stop calling `wake`. May be called twice."""


class ReplicaLinks(NamedTuple):
    """All of them, for one process."""

    limiter: RateLimiter
    idempotency: IdempotencyStore
    sessions: SessionStore
    bell: Bell
    aclose: Callable[[], Awaitable[None]]
    """Closes all of them, once. A process without an event loop closes its bell instead."""
