"""Pages of a tenant's completions in the order of their ids, which is that of their times; and all choices of one.

A page walks along the index of the tenant until it is full. It looks at up to `MAX_LOOKED` rows and opens up to `MAX_READ` bodies, so
its cost does not grow with the table; if it has found nothing by then, it says so: an empty page would end a client's search.
Completions whose bodies were erased are not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import zstandard
from sqlalchemy import Connection, select

from contracts.errors import InvalidRecord, InvalidRequest, NotFound
from contracts.ledger import AnswerRecord, find_answer
from contracts.record_checks import MAX_ID
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation

MAX_LOOKED = 200_000
"""Rows that a search looks at for one page."""
MAX_READ = 10_000
MAX_PAGE_BYTES = 2**22
"""Of the bodies that a page shows; it ends with the completion that exceeds them."""
_WINDOW = 2_000
_BATCH = 100
_ERASED = "erased"


class StoredChoice(NamedTuple):
    """One choice of a completion."""

    record: Generation
    body: GenerationBody


class StoredSearch(NamedTuple):
    """What to list. `version` None: any. `after`: the id of the last completion of the page before."""

    tenant: str
    policy: str
    version: int | None = None
    metadata: Mapping[str, str] = {}
    after: str | None = None
    limit: int = 20
    newest_first: bool = False
    most_read: int = MAX_READ
    """Completions whose bodies it opens."""


class StoredPage(NamedTuple):
    """Completions, each with its choices in order."""

    completions: list[list[StoredChoice]]
    has_more: bool


def find_stored(connection: Connection, search: StoredSearch) -> StoredPage:
    """The completions of users that match. Raises InvalidRequest: nothing matched as far as it may look; the message says how to go on."""
    found: list[list[StoredChoice]] = []
    after, num_looked, num_read, num_bytes = search.after, 0, 0, 0
    while num_looked < MAX_LOOKED and num_read < search.most_read:
        window = _window(connection, search, after)
        is_last = len(window) < _WINDOW
        if not is_last and window[0].completion_id != window[-1].completion_id:
            # Its further choices may lie behind the window.
            window = [row for row in window if row.completion_id != window[-1].completion_id]
        known = [row for row in window if row.policy == search.policy and row.state != _ERASED]
        ids = list(dict.fromkeys(row.completion_id for row in known if search.version in (None, row.version)))
        num_looked, num_read = num_looked + len(window), num_read + len(ids)
        for start in range(0, len(ids), _BATCH):
            for choices in _opened(connection, search.tenant, ids[start : start + _BATCH]):
                if search.metadata.items() <= choices[0].body.metadata.items():
                    found.append(choices)
                    # They were opened, so they are frames.
                    num_bytes += sum(max(0, zstandard.frame_content_size(choice.record.body)) for choice in choices)
                if len(found) > search.limit:
                    return StoredPage(found[: search.limit], has_more=True)
                if num_bytes > MAX_PAGE_BYTES:
                    return StoredPage(found, has_more=True)
        if is_last:
            return StoredPage(found, has_more=False)
        after = window[-1].completion_id
    if not found:
        none = f"none of the {num_looked:,} completions that were looked at matches"
        param = "metadata" if search.metadata else "model"
        raise InvalidRequest(f"{none}, and there are more; go on with after={after}", param=param)
    return StoredPage(found, has_more=True)


def find_choices(connection: Connection, tenant: str, completion_id: str) -> list[StoredChoice]:
    """The choices of one completion of a tenant; empty if there is no such completion."""
    return next(iter(_opened(connection, tenant, [completion_id])), [])


def find_histories(connection: Connection, tenant: str, completion_id: str) -> list[AnswerRecord]:
    """What became of each choice of one completion of a tenant; empty if there is no such completion."""
    table = generation.c
    its = (table.completion_id == completion_id, table.tenant == tenant, table.state != _ERASED)
    choices = connection.execute(select(table.choice).where(*its).order_by(table.choice)).scalars().all()
    return [answer for choice in choices if (answer := find_answer(connection, completion_id, choice)) is not None]


def unknown_completion(completion_id: str) -> NotFound:
    """The error for an id: the caller's tenant has no such completion."""
    why = "it may not have arrived yet, its request may have had store=false, or its day was deleted"
    return NotFound(f"there is no completion {completion_id[:MAX_ID]!r} here; {why}", param="completion_id")


def _window(connection: Connection, search: StoredSearch, after: str | None) -> Sequence[Any]:
    table = generation.c
    place = table.completion_id
    walk = select(place, table.policy, table.version, table.state).where(
        table.tenant == search.tenant, table.purpose == "user"
    )
    if after is not None:
        walk = walk.where(place < after if search.newest_first else place > after)
    return connection.execute(walk.order_by(place.desc() if search.newest_first else place.asc()).limit(_WINDOW)).all()


def _opened(connection: Connection, tenant: str, ids: list[str]) -> list[list[StoredChoice]]:
    """Choices by completion, in the order of `ids`; records that cannot be read are left out."""
    table = generation.c
    rows = connection.execute(
        select(table.completion_id, table.record)
        .where(table.completion_id.in_(ids), table.tenant == tenant, table.state != _ERASED)
        .order_by(table.completion_id, table.choice)
    )
    opened: dict[str, list[StoredChoice]] = {}
    for completion_id, group in groupby(rows, lambda row: row.completion_id):
        if choices := [choice for row in group if (choice := _choice(row.record)) is not None]:
            opened[completion_id] = choices
    return [opened[completion_id] for completion_id in ids if completion_id in opened]


def _choice(wire: bytes) -> StoredChoice | None:
    try:
        record = decode_shape(Generation, wire)
        body = record.open()
    except InvalidRecord:
        return None
    # Without tokens and without a provider, its arm failed, and nobody got an answer.
    return StoredChoice(record, body) if body.completion_ids or record.provided else None
