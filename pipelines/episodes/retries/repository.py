"""SQL of tries: requests that were sent again, and their completions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from contracts.records import Generation
from contracts.tables import generation
from contracts.tables.statements import among

_LOOK_BACK_SECONDS = 7200.0
"""Longer than one try and the ten minutes after it."""
_SWEEP_BACK_SECONDS = 300.0
_MAX_ROWS = 1000
_IS_RETRY = text("retry_count > 0")  # written as in the index: with a bound number the index would not be used


class RepeatedRequests(NamedTuple):
    """Requests that were sent again, and all their stored completions."""

    requests: frozenset[str] = frozenset()
    completion_ids: frozenset[str] = frozenset()


def repeated(connection: Connection, arriving: Iterable[Generation]) -> RepeatedRequests:
    """The requests of these records that were sent again, by one of the records or by a stored one."""
    tried = [(record, record.attempt) for record in arriving if record.attempt is not None]
    if not tried:
        return RepeatedRequests()
    again = {attempt.request for _, attempt in tried if attempt.count > 0}
    others = {attempt.request for _, attempt in tried} - again
    if others:
        wanted = among(connection, generation.c.request, others)
        again |= set(connection.execute(select(generation.c.request).where(wanted, _IS_RETRY)).scalars())
    return _held(connection, again, min(record.created_at for record, _ in tried))


def lately_repeated(connection: Connection, now: float) -> RepeatedRequests:
    """Requests whose later tries were joined in the last minutes."""
    columns = (generation.c.request, generation.c.created_at)
    lately = generation.c.joined_at >= now - _SWEEP_BACK_SECONDS
    rows = connection.execute(select(*columns).where(_IS_RETRY, lately).limit(_MAX_ROWS)).all()
    return _held(connection, {row.request for row in rows}, min((row.created_at for row in rows), default=now))


def _held(connection: Connection, requests: Collection[str], since: float) -> RepeatedRequests:
    if not requests:
        return RepeatedRequests()
    wanted = among(connection, generation.c.request, requests)
    fresh = generation.c.created_at >= since - _LOOK_BACK_SECONDS
    newest = select(generation.c.completion_id).where(wanted, fresh).order_by(generation.c.created_at.desc())
    found = connection.execute(newest.limit(_MAX_ROWS)).scalars()
    return RepeatedRequests(frozenset(requests), frozenset(found))
