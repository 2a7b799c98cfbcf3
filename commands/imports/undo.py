"""Takes an import back: every row of it becomes `quarantined(import)`, also those that the join has not read. Nothing is deleted.

In: the rows of the import, of the ledger and of the log behind it. Out: outcomes. The ledger keeps such an outcome whatever comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from commands.imports import repository
from contracts.event_log import EventLog, Message
from contracts.ids import parse_sample_key, route_of
from contracts.ledger import UNDONE
from contracts.records import Also, Outcome
from contracts.topics import OUTCOMES
from runtime.database import Database
from runtime.log.outbox import message

Item = TypeVar("Item")
_AT_ONCE = 500
"""Rows in one record."""
_RECORDS = 20
"""Records in one append."""


def undo(database: Database, log: EventLog, import_id: str, now: float) -> int:
    """Take an import back. Returns the number of its rows. Doing it again changes nothing. Raises Unavailable."""
    with database.snapshot() as connection:
        keys = {*repository.unread_keys(connection, log, import_id), *repository.joined_keys(connection, import_id)}
    parts: dict[int, list[str]] = {}
    for key in sorted(keys):
        parts.setdefault(route_of(parse_sample_key(key)[0]) % log.num_partitions, []).append(key)
    for batch in _batched(list(_outcomes(parts.values(), now)), _RECORDS):
        log.append(batch)
    return len(keys)


def _outcomes(parts: Iterable[list[str]], now: float) -> Iterator[Message]:
    for part in parts:
        for first, *others in _batched(part, _AT_ONCE):
            also = tuple(Also(key, 1, 0) for key in others)
            told = Outcome(
                key=first, revision=1, epoch=0, state="quarantined", reason=UNDONE, writer="episodes", at=now, also=also
            )
            yield message(OUTCOMES, first, told)


def _batched(items: list[Item], size: int) -> Iterator[list[Item]]:
    yield from (items[start : start + size] for start in range(0, len(items), size))
