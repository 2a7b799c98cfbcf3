"""SQL of tries: which requests were sent again, and the completions of those."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from contracts.records import Generation
from contracts.tables import generation
from contracts.tables.statements import among

_LOOK_BACK_SECONDS = 7200.0
"""More than a try takes and the ten minutes after it."""
_SWEEP_BACK_SECONDS = 300.0
_MOST = 1000
_IS_RETRY = text("retry_count > 0")  # as the index says it: a bound number would not fit


class Repeated(NamedTuple):
    """Requests that were sent again, and all completions of them that are held."""

    requests: frozenset[str] = frozenset()
    completion_ids: frozenset[str] = frozenset()


def repeated(connection: Connection, arriving: Iterable[Generation]) -> Repeated:
    """Of the requests of these records those that were sent again, by one of them or by one that is held."""
    tried = [(record, record.attempt) for record in arriving if record.attempt is not None]
    if not tried:
        return Repeated()
    again = {attempt.request for _, attempt in tried if attempt.count > 0}
    others = {attempt.request for _, attempt in tried} - again
    if others:
        wanted = among(connection, generation.c.request, others)
        again |= set(connection.execute(select(generation.c.request).where(wanted, _IS_RETRY)).scalars())
    return _held(connection, again, min(record.created_at for record, _ in tried))


def lately_repeated(connection: Connection, now: float) -> Repeated:
    """Requests whose later tries were joined in the last minutes."""
    columns = (generation.c.request, generation.c.created_at)
    lately = generation.c.joined_at >= now - _SWEEP_BACK_SECONDS
    rows = connection.execute(select(*columns).where(_IS_RETRY, lately).limit(_MOST)).all()
    return _held(connection, {row.request for row in rows}, min((row.created_at for row in rows), default=now))


def _held(connection: Connection, requests: Collection[str], since: float) -> Repeated:
    if not requests:
        return Repeated()
    wanted = among(connection, generation.c.request, requests)
    fresh = generation.c.created_at >= since - _LOOK_BACK_SECONDS
    newest = select(generation.c.completion_id).where(wanted, fresh).order_by(generation.c.created_at.desc())
    found = connection.execute(newest.limit(_MOST)).scalars()
    return Repeated(frozenset(requests), frozenset(found))
