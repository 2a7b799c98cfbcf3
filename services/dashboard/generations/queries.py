"""Pages of answers, newest first; and one answer with its signals, scores and outcomes.

A page walks down the index of times and stops after `MAX_LOOKED` rows, whether it found enough or not: the cost of a search does not grow
with the table. The next page continues where this one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, func, select, tuple_

from contracts.errors import InvalidRecord
from contracts.ids import sample_key
from contracts.ledger import effective_state
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation, outcome, score, signal

PAGE = 40
MAX_LOOKED = 20_000
MAX_READ = 2_000
"""Bodies that a search for text opens for one page."""
MAX_SIGNALS = 200
MAX_SCORES = 50
MAX_OUTCOMES = 100

_ORDER = (generation.c.created_at, generation.c.completion_id, generation.c.choice)
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
    version: int | None = None
    text: str = ""
    before: float | None = None


class SearchHit(NamedTuple):
    """One row of a page. `record` and `body` None: this process cannot read the record."""

    head: Row[Any]
    body: GenerationBody | None
    record: Generation | None


class Page(NamedTuple):
    """`after` None: there are no older answers. `num_looked`: how many answers a search read before it ended."""

    rows: list[SearchHit]
    after: Cursor | None
    num_looked: int | None = None


class AnswerRecord(NamedTuple):
    """One answer and its history. `record` None: `problem` is the reason why it cannot be read."""

    head: Any
    record: Generation | None
    problem: str
    choices: list[int]
    signals: list[Row[Any]]
    """id, tenant, name, submitter, at, received_at, state, reason, revision, record; oldest first."""
    scores: list[Row[Any]]
    """revision, reward, status, fault, components, at; by revision."""
    outcomes: list[Row[Any]]
    """revision, epoch, state, reason, version, writer, at; oldest first."""


def find_page(connection: Connection, search: Search, after: Cursor | None = None, most: int | None = None) -> Page:
    """The newest answers that match, older than `after`, among the next `most` answers."""
    most = most or (MAX_READ if search.text else MAX_LOOKED)
    walk = _walk(search, after, most)
    looked = walk.subquery()
    matching = select(looked).where(*_conditions(search, looked.c)).order_by(*_newest_first(looked.c))
    heads = list(connection.execute(matching if search.text else matching.limit(PAGE + 1)))
    hits = list(islice(_hits(connection, heads, search.text.casefold()), PAGE + 1))
    if len(hits) > PAGE:
        return Page(hits[:PAGE], _cursor(hits[PAGE - 1].head))
    edge = connection.execute(walk.offset(most - 1).limit(1)).one_or_none()
    if edge is not None:
        return Page(hits, _cursor(edge), most)
    num_looked = connection.execute(select(func.count()).select_from(looked)).scalar_one() if search.text else None
    return Page(hits, None, num_looked)


def find_answer(connection: Connection, completion_id: str, choice: int) -> AnswerRecord | None:
    """One answer, or None."""
    here = (generation.c.completion_id == completion_id, generation.c.choice == choice)
    table = generation.c
    columns = (*_HEAD, table.joined_at, table.closes_at, table.revision, table.record, table.superseded_by)
    head = connection.execute(select(*columns, effective_state().label("state")).where(*here)).one_or_none()
    if head is None:
        return None
    record, problem = _decoded(head.record)
    key = sample_key(completion_id, choice)
    siblings = select(generation.c.choice).where(generation.c.completion_id == completion_id)
    choices = list(connection.execute(siblings.order_by(generation.c.choice)).scalars())
    histories = (_signals(completion_id, choice), _scores(key), _outcomes(key))
    return AnswerRecord(head, record, problem, choices, *(list(connection.execute(rows)) for rows in histories))


def _hits(connection: Connection, heads: list[Row[Any]], text: str) -> Iterator[SearchHit]:
    """Heads with their bodies; with a text, only bodies that contain it. Bodies are compressed, so few are opened at a time."""
    for start in range(0, len(heads), PAGE):
        batch = heads[start : start + PAGE]
        opened = _opened(connection, batch)
        for head in batch:
            body, record = opened.get((head.completion_id, head.choice), (None, None))
            if not text or (body is not None and text in _words(body)):
                yield SearchHit(head, body, record)


def _walk(search: Search, after: Cursor | None, limit: int) -> Select[Any]:
    """The newest rows below a cursor, matching or not."""
    newest_first = _newest_first(generation.c)
    statement = select(*_HEAD, effective_state().label("state")).order_by(*newest_first)
    if search.completion:
        # "~" sorts behind every character of an id, so this is a range of the primary key.
        end = f"{search.completion}~"
        statement = statement.where(generation.c.completion_id >= search.completion, generation.c.completion_id < end)
    if search.before is not None:
        statement = statement.where(generation.c.created_at < search.before)
    if after is not None:
        # The plain comparison lets the index start at that time; the tuple orders rows of the same time.
        statement = statement.where(generation.c.created_at <= after.at, tuple_(*_ORDER) < tuple_(*after))
    return statement.limit(limit)


def _newest_first(columns: Any) -> list[ColumnElement[Any]]:
    return [columns[name].desc() for name in ("created_at", "completion_id", "choice")]


def _conditions(search: Search, columns: Any) -> list[ColumnElement[bool]]:
    wanted = {"state": search.state or None, "task": search.task or None, "version": search.version}
    return [columns[name] == value for name, value in wanted.items() if value is not None]


def _cursor(row: Row[Any]) -> Cursor:
    return Cursor(row.created_at, row.completion_id, row.choice)


def _opened(connection: Connection, heads: list[Row[Any]]) -> dict[tuple[str, int], tuple[GenerationBody, Generation]]:
    ids = [head.completion_id for head in heads]
    statement = select(generation.c.completion_id, generation.c.choice, generation.c.record)
    opened = {}
    for row in connection.execute(statement.where(generation.c.completion_id.in_(ids))):
        with suppress(InvalidRecord):
            record = decode_shape(Generation, row.record)
            opened[row.completion_id, row.choice] = record.open(), record
    return opened


def _decoded(wire: bytes) -> tuple[Generation | None, str]:
    try:
        return decode_shape(Generation, wire), ""
    except InvalidRecord as error:
        return None, error.message


def _words(body: GenerationBody) -> str:
    said = [str(message.get("content", "")) for message in body.messages]
    return "\n".join([*said, body.text]).casefold()


def _signals(completion_id: str, choice: int) -> Select[Any]:
    columns = signal.c
    names = columns["id", "tenant", "name", "submitter", "at", "received_at", "state", "reason", "revision", "record"]
    mine = select(*names).where(columns.completion_id == completion_id, columns.choice == choice)
    return mine.order_by(columns.received_at, columns.id).limit(MAX_SIGNALS)


def _scores(key: str) -> Select[Any]:
    columns = score.c["revision", "reward", "status", "fault", "components", "at"]
    return select(*columns).where(score.c.key == key).order_by(score.c.revision).limit(MAX_SCORES)


def _outcomes(key: str) -> Select[Any]:
    columns = outcome.c["revision", "epoch", "state", "reason", "version", "writer", "at"]
    oldest = outcome.c["at", "epoch", "revision"]
    return select(*columns).where(outcome.c.key == key).order_by(*oldest).limit(MAX_OUTCOMES)
