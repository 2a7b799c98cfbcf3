"""Writes the rows of engine replicas, and keeps two replicas from using one name. Waits for: the database.

A name belongs to the replica that announced it first. A new replica takes over the row of a dead one: at once if the row names its own
address, on which nobody else can listen; else once the row was not renewed for three seconds. If the row is renewed by another, or
if another takes it back, the name is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from contracts import engines
from contracts.engines import FRESH_SECONDS, EngineReplica
from contracts.errors import NameTaken
from runtime.database import Database

_DEAD_SECONDS = 3.0
"""Living replicas renew their rows every second."""
_SETTLED_SECONDS = 5.0
"""A replica that held a name for so long takes it back. A newcomer gives way."""
_log = structlog.get_logger(__name__)


class _Seen(NamedTuple):
    seen_at: float
    first_seen: float


class EngineRows:
    """See the module. One thread writes the row of each name."""

    def __init__(self, database: Database, policy: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._policy, self._clock = database, policy, clock
        self._told: dict[str, str] = {}
        """Name to the instance that was announced last."""
        self._held_since: dict[str, float] = {}
        self._others: dict[str, _Seen] = {}

    def announce(self, replica: EngineReplica) -> None:
        """Write or renew a row, unless it is not known yet whether the holder of its name lives. Raises NameTaken, Unavailable."""
        name = replica.name
        with self._database.transaction() as connection:
            held = engines.read_replica(connection, self._policy, name)
            if held is not None and not self._may_replace(held, replica):
                return
            if not engines.announce(connection, replica, instead_of=None if held is None else held.instance):
                return  # another one wrote it first: the next look decides
        self._others.pop(name, None)
        self._told[name] = replica.instance
        self._held_since.setdefault(name, self._clock())

    def withdraw(self, name: str) -> None:
        """Remove a row that was written here, and those that nobody has renewed for a day. Raises Unavailable."""
        with self._database.transaction() as connection:
            if (instance := self._told.get(name)) is not None:
                engines.withdraw(connection, self._policy, name, instance)
            engines.forget_gone(connection, self._policy)

    def _may_replace(self, held: EngineReplica, replica: EngineReplica) -> bool:
        name, now = replica.name, self._clock()
        if held.instance in {replica.instance, self._told.get(name)}:
            return True
        if (since := self._held_since.get(name)) is not None:
            if now - since < _SETTLED_SECONDS:
                raise _taken(held)
            _log.warning("engine_name_used_twice", name=name, url=replica.url, other=held.url)
            return True
        if held.url == replica.url or not held.is_fresh(time.time()):
            return True
        before = self._others.setdefault(name, _Seen(held.seen_at, now))
        if held.seen_at != before.seen_at:
            raise _taken(held)
        return now - before.first_seen > _DEAD_SECONDS


def read_engines(database: Database, policy: str) -> list[EngineReplica]:
    """All rows of a policy, also those that are not fresh any more. Raises Unavailable."""
    with database.snapshot() as connection:
        return engines.read_replicas(connection, policy)


def _taken(held: EngineReplica) -> NameTaken:
    return NameTaken(
        f"an engine named {held.name} already runs at {held.url} (region {held.region}): give this one another name, [engine] name "
        f"or [vllm] name, or end that one and wait {FRESH_SECONDS:.0f} s"
    )
