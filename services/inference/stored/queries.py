"""Pages of a tenant's completions in the order of their ids, which is that of their times; and all choices of one.

A page walks along the primary key and looks at up to `MAX_LOOKED` rows, whether it found enough or not: the cost of a page does not
grow with the table. Completions whose bodies were erased are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, select

from contracts.errors import InvalidRecord
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation

MAX_LOOKED = 50_000
MAX_READ = 2_000
"""Rows whose bodies a search opens for one page."""
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


class StoredPage(NamedTuple):
    """Completions, each with its choices in order."""

    completions: list[list[StoredChoice]]
    has_more: bool


def find_stored(connection: Connection, search: StoredSearch) -> StoredPage:
    """The completions of users that match."""
    found: list[list[StoredChoice]] = []
    after, num_read = search.after, 0
    while num_read < MAX_READ:
        ids = list(connection.execute(_ids(search, after)).scalars())
        for choices in _opened(connection, search.tenant, ids):
            if _matches(choices, search):
                found.append(choices)
            if len(found) > search.limit:
                return StoredPage(found[: search.limit], has_more=True)
        if len(ids) < _BATCH:
            return StoredPage(found, has_more=False)
        after, num_read = ids[-1], num_read + len(ids)
    return StoredPage(found, has_more=True)


def find_choices(connection: Connection, tenant: str, completion_id: str) -> list[StoredChoice]:
    """The choices of one completion of a tenant; empty if there is no such completion."""
    return next(iter(_opened(connection, tenant, [completion_id])), [])


def _ids(search: StoredSearch, after: str | None) -> Select[Any]:
    table = generation.c
    order = table.completion_id.desc() if search.newest_first else table.completion_id.asc()
    walk = select(table.completion_id, table.tenant, table.policy, table.purpose, table.version, table.state)
    if after is not None:
        walk = walk.where(table.completion_id < after if search.newest_first else table.completion_id > after)
    looked = walk.order_by(order).limit(MAX_LOOKED).subquery()
    columns = looked.c
    ids = select(columns.completion_id).where(
        columns.tenant == search.tenant,
        columns.policy == search.policy,
        columns.purpose == "user",
        columns.state != _ERASED,
    )
    if search.version is not None:
        ids = ids.where(columns.version == search.version)
    place = columns.completion_id.desc() if search.newest_first else columns.completion_id.asc()
    return ids.distinct().order_by(place).limit(_BATCH)


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
        return StoredChoice(record, record.open())
    except InvalidRecord:
        return None


def _matches(choices: list[StoredChoice], search: StoredSearch) -> bool:
    return search.metadata.items() <= choices[0].body.metadata.items()
