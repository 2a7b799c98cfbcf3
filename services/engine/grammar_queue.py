"""Whose grammar is compiled next. Pure.

Tenants take turns, and each compiles one grammar at a time, in the order in which it asked. So with two workers one is always free
for others. A tenant whose grammars took too many seconds within a minute is refused until they lie further back. Equal grammars are
one compilation for everybody who waits; it takes the first turn that any of them has.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from concurrent.futures import Future
from typing import Any, NamedTuple

from contracts.errors import Overloaded

_WINDOW_SECONDS = 60.0


class QueueBounds(NamedTuple):
    """What each tenant may have: seconds of compiling, after which its new grammars are refused, and requests that wait for one."""

    seconds_per_minute: float = 20.0
    num_requests: int = 256


class Compilation:
    """A grammar, and who waits for it. `turn_of`: the tenant whose turn it took; None: it waits."""

    def __init__(self, grammar: str) -> None:
        self.grammar = grammar
        self.waiters: list[GrammarWaiter] = []
        self.turn_of: str | None = None


class GrammarWaiter(NamedTuple):
    """One request that waits for a grammar. `told`: what became of the grammar."""

    tenant: str
    compilation: Compilation
    told: Future[Any]


class GrammarQueue:
    """See the module. Not thread-safe; times are of any one clock."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._open: dict[str, Compilation] = {}
        self._waiting: OrderedDict[str, dict[str, Compilation]] = OrderedDict()
        """Tenant to its grammars, oldest first; the tenant that waited longest for a turn comes first."""
        self._working: set[str] = set()
        self._spent: dict[str, deque[tuple[float, float]]] = {}
        """Tenant to when each of its compilations ended, and how many seconds it took."""

    def join(self, grammar: str, tenant: str, now: float) -> GrammarWaiter:
        """Wait for a grammar; its compilation may have begun for others. Raises Overloaded: the tenant's seconds or requests are used up."""
        if self._seconds_left(tenant, now):
            raise self.refusal(tenant, now)
        num_waiting = sum(waiter.tenant == tenant for one in self._open.values() for waiter in one.waiters)
        if num_waiting >= self._bounds.num_requests:
            raise Overloaded(
                f"{num_waiting} requests of yours wait for their schemas and grammars to be compiled, which is the limit; send "
                "fewer at once, or try again in 1 s",
                1,
            )
        compilation = self._open.setdefault(grammar, Compilation(grammar))
        waiter = GrammarWaiter(tenant, compilation, Future())
        compilation.waiters.append(waiter)
        if compilation.turn_of is None:
            self._waiting.setdefault(tenant, {})[grammar] = compilation
        return waiter

    def leave(self, waiter: GrammarWaiter) -> Compilation | None:
        """Wait no more. Returns the compilation if it has begun and nobody else waits for it."""
        compilation = waiter.compilation
        if waiter not in compilation.waiters:
            return None  # it was told
        compilation.waiters.remove(waiter)
        if all(other.tenant != waiter.tenant for other in compilation.waiters):
            self._unqueue(waiter.tenant, compilation)
        if compilation.waiters:
            return None
        del self._open[compilation.grammar]  # who asks again does not join what is being killed
        return None if compilation.turn_of is None else compilation

    def take(self) -> Compilation | None:
        """Begin the next compilation; None if there is none, or if everybody who waits has one that runs."""
        tenant = next((name for name in self._waiting if name not in self._working), None)
        if tenant is None:
            return None
        compilation = next(iter(self._waiting[tenant].values()))
        for other in {waiter.tenant for waiter in compilation.waiters}:
            self._unqueue(other, compilation)
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
        self._working.add(tenant)
        compilation.turn_of = tenant
        return compilation

    def answered(self, compilation: Compilation) -> list[GrammarWaiter]:
        """The compilation has a result. Returns those who are to be told; none if it was given up."""
        waiters, compilation.waiters = compilation.waiters, []
        if waiters:
            del self._open[compilation.grammar]
        return waiters

    def end(self, compilation: Compilation, seconds: float, now: float) -> list[GrammarWaiter]:
        """The worker of a compilation is free again, after so many seconds. Returns requests that `refusal` is to be told."""
        tenant = compilation.turn_of or ""
        self._working.discard(tenant)
        self._spent.setdefault(tenant, deque()).append((now, seconds))
        self._spent = {name: spent for name, spent in self._spent.items() if spent[-1][0] > now - _WINDOW_SECONDS}
        if not self._seconds_left(tenant, now):
            return []
        own = self._waiting.get(tenant, {}).values()
        refused = [waiter for waiting in own for waiter in waiting.waiters if waiter.tenant == tenant]
        for waiter in refused:
            self.leave(waiter)
        return refused

    def refusal(self, tenant: str, now: float) -> Overloaded:
        """Why a tenant that has spent its seconds is refused."""
        seconds = max(1, self._seconds_left(tenant, now))
        most = self._bounds.seconds_per_minute
        return Overloaded(
            f"your new schemas and grammars took more than {most:g} s to compile within a minute; those that were used lately "
            f"still work; send simpler ones, or try again in {seconds} s",
            seconds,
        )

    def empty(self) -> list[GrammarWaiter]:
        """Forget every grammar. Returns all who waited."""
        waiters = [waiter for compilation in self._open.values() for waiter in compilation.waiters]
        for waiter in waiters:
            self.leave(waiter)
        return waiters

    def _seconds_left(self, tenant: str, now: float) -> int:
        """Seconds until a tenant may compile again; 0: it may now."""
        recent = [(at, seconds) for at, seconds in self._spent.get(tenant, ()) if at > now - _WINDOW_SECONDS]
        total, until = sum(seconds for _, seconds in recent), now
        for at, seconds in recent:
            if total < self._bounds.seconds_per_minute:
                break
            total, until = total - seconds, at + _WINDOW_SECONDS
        return math.ceil(until - now)

    def _unqueue(self, tenant: str, compilation: Compilation) -> None:
        own = self._waiting.get(tenant, {})
        if own.get(compilation.grammar) is compilation:
            del own[compilation.grammar]
            if not own:
                del self._waiting[tenant]
