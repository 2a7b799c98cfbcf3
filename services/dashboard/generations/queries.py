"""Pages of answers, newest first.

A page walks down the index of times until it is full, and at most to the time of the `MAX_LOOKED`th row: the cost of a search does not
grow with the table. The next page continues where this one stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, func, select, tuple_

from contracts.errors import InvalidRecord
from contracts.ids import first_id_at, sample_key
from contracts.ledger import MAX_SIGNALS, effective_state
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation, score, signal

PAGE = 40
MAX_LOOKED = 20_000
MAX_READ = 2_000
"""Bodies that a search for text opens for one page."""

_ORDER = (generation.c.created_at, generation.c.completion_id, generation.c.choice)
_STATE = effective_state()
_LOWEST = (f"{first_id_at(0)}-7000-8000-000000000000", 0)
"""Id and choice that sort before every other of their time."""
_HEAD = generation.c[
    "completion_id", "choice", "task", "purpose", "arm", "version", "created_at", "state_reason", "state_version"
]


class Cursor(NamedTuple):
    """The last row of a page."""

    at: float
    completion_id: str
    choice: int


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; an empty field matches every answer. `before` is in UTC epoch seconds, `completion` the beginning of an id."""

    completion: str = ""
    state: str = ""
    task: str = ""
    purpose: str = ""
    version: int | None = None
    text: str = ""
    before: float | None = None


class SearchHit(NamedTuple):
    """One row of a page. `record` and `body` None: this process cannot read the record. `score` None: it has none."""

    head: Row[Any]
    body: GenerationBody | None
    record: Generation | None
    signals: tuple[Row[Any], ...] = ()
    """name, state, record; oldest first."""
    score: Row[Any] | None = None
    """reward, status, fault: of the newest revision."""


class Page(NamedTuple):
    """`after` None: there are no older answers. `num_looked`: how many answers a search read before it ended."""

    rows: list[SearchHit]
    after: Cursor | None
    num_looked: int | None = None


def find_page(connection: Connection, search: Search, after: Cursor | None = None, most: int | None = None) -> Page:
    """The newest answers that match, older than `after`, among the next `most` answers."""
    most = most or (MAX_READ if search.text else MAX_LOOKED)
    looked = _range(search, after)
    # From the index alone.
    times = select(generation.c.created_at).where(*looked).order_by(generation.c.created_at.desc())
    edge: float | None = connection.execute(times.offset(most - 1).limit(1)).scalar_one_or_none()
    if edge is not None:
        looked.append(generation.c.created_at >= edge)
    if after is not None:
        looked.append(tuple_(*_ORDER) < tuple_(*after))
    wanted = {_STATE: search.state or None, generation.c.version: search.version}
    wanted |= {generation.c[name]: getattr(search, name) or None for name in ("task", "purpose")}
    matching = select(*_HEAD, _STATE.label("state")).where(
        *looked, *(column == value for column, value in wanted.items() if value is not None)
    )
    matching = matching.order_by(*(column.desc() for column in _ORDER))
    heads: list[Row[Any]] = list(connection.execute(matching if search.text else matching.limit(PAGE + 1)))
    hits = list(islice(_hits(connection, heads, search.text.casefold()), PAGE + 1))
    if len(hits) > PAGE:
        last = hits[PAGE - 1].head
        after = Cursor(last.created_at, last.completion_id, last.choice)
        return Page(_completed(connection, hits[:PAGE]), after)
    hits = _completed(connection, hits)
    if edge is not None:
        return Page(hits, Cursor(edge, *_LOWEST), most)
    counted = select(func.count()).select_from(generation).where(*looked)
    return Page(hits, None, connection.execute(counted).scalar_one() if search.text else None)


def _hits(connection: Connection, heads: list[Row[Any]], text: str) -> Iterator[SearchHit]:
    """Heads with their bodies; with a text, only bodies that contain it. Bodies are compressed, so few are opened at a time."""
    for start in range(0, len(heads), PAGE):
        batch = heads[start : start + PAGE]
        opened = _opened(connection, batch)
        for head in batch:
            body, record = opened.get((head.completion_id, head.choice), (None, None))
            if not text or (body is not None and text in _words(body)):
                yield SearchHit(head, body, record)


def _words(body: GenerationBody) -> str:
    return "\n".join([*(str(message.get("content", "")) for message in body.messages), body.text]).casefold()


def _range(search: Search, after: Cursor | None) -> list[ColumnElement[bool]]:
    """The rows to look at, matching or not; rows of the cursor's own time are among them."""
    conditions = []
    if search.completion:
        # "~" sorts behind every character of an id, so this is a range of the primary key.
        end = f"{search.completion}~"
        conditions += [generation.c.completion_id >= search.completion, generation.c.completion_id < end]
    if search.before is not None:
        conditions.append(generation.c.created_at < search.before)
    if after is not None:
        conditions.append(generation.c.created_at <= after.at)
    return conditions


def _completed(connection: Connection, hits: list[SearchHit]) -> list[SearchHit]:
    """The same with what users said and what the answers earned."""
    ids = [hit.head.completion_id for hit in hits]
    keys = [sample_key(hit.head.completion_id, hit.head.choice) for hit in hits]
    said = signal.c["completion_id", "choice", "name", "state", "record"]
    about = select(*said).where(signal.c.completion_id.in_(ids))
    signals: defaultdict[tuple[str, int], list[Row[Any]]] = defaultdict(list)
    for row in connection.execute(about.order_by(signal.c.received_at, signal.c.id).limit(MAX_SIGNALS)):
        signals[row.completion_id, row.choice].append(row)
    earned = select(*score.c["key", "reward", "status", "fault"]).where(score.c.key.in_(keys))
    scores = {row.key: row for row in connection.execute(earned.order_by(score.c.revision))}
    return [
        hit._replace(signals=tuple(signals[hit.head.completion_id, hit.head.choice]), score=scores.get(key))
        for hit, key in zip(hits, keys, strict=True)
    ]


def _opened(connection: Connection, heads: list[Row[Any]]) -> dict[tuple[str, int], tuple[GenerationBody, Generation]]:
    ids = [head.completion_id for head in heads]
    statement = select(generation.c.completion_id, generation.c.choice, generation.c.record)
    opened = {}
    for row in connection.execute(statement.where(generation.c.completion_id.in_(ids))):
        with suppress(InvalidRecord):
            record = decode_shape(Generation, row.record)
            opened[row.completion_id, row.choice] = record.open(), record
    return opened
