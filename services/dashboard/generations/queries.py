"""Answers, newest first, page by page; and one answer with all that became of it.

A page walks down the index of times and stops after `MAX_LOOKED` rows, found or not: the cost of a search does not
grow with the table. The next page goes on where this one stopped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_

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
_HEAD = (
    generation.c.completion_id,
    generation.c.choice,
    generation.c.task,
    generation.c.purpose,
    generation.c.arm,
    generation.c.version,
    generation.c.created_at,
    generation.c.state_reason,
    generation.c.state_version,
)


class Cursor(NamedTuple):
    """The last row of a page."""

    at: float
    completion_id: str
    choice: int


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; empty fields ask nothing. `before` is UTC epoch seconds, `completion` the beginning of an id."""

    completion: str = ""
    state: str = ""
    task: str = ""
    version: int | None = None
    text: str = ""
    before: float | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is asked."""
        return self == Search()


class SearchHit(NamedTuple):
    """One row of a page. `body` None: its record cannot be read here."""

    head: Row[Any]
    body: GenerationBody | None


class Page(NamedTuple):
    """`after` None: there is nothing older. `num_looked` None: every row was found by what was asked."""

    rows: list[SearchHit]
    after: Cursor | None
    num_looked: int | None = None


class AnswerRecord(NamedTuple):
    """One answer. `record` None: `problem` says why it cannot be read."""

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
    """The newest answers that fit, older than `after`, among the next `most`."""
    if search.text:
        return _read_page(connection, search, after, most or MAX_READ)
    return _head_page(connection, search, after, most or MAX_LOOKED)


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
    signals, scores, outcomes = _signals(completion_id, choice), _scores(key), _outcomes(key)
    return AnswerRecord(
        head,
        record,
        problem,
        choices,
        list(connection.execute(signals)),
        list(connection.execute(scores)),
        list(connection.execute(outcomes)),
    )


def _head_page(connection: Connection, search: Search, after: Cursor | None, most: int) -> Page:
    walk = _walk(search, after, most)
    looked = walk.subquery()
    asked = _asked(search, looked.c)
    statement = select(looked).where(*asked).order_by(*_newest_first(looked.c)).limit(PAGE + 1)
    heads = list(connection.execute(statement))
    last: Cursor | None = None
    num_looked: int | None = None
    if len(heads) > PAGE:
        heads = heads[:PAGE]
        last = _cursor(heads[-1])
    elif (edge := connection.execute(walk.offset(most - 1).limit(1)).one_or_none()) is not None:
        last, num_looked = _cursor(edge), most
    bodies = _bodies(connection, heads)
    return Page([SearchHit(head, bodies.get((head.completion_id, head.choice))) for head in heads], last, num_looked)


def _read_page(connection: Connection, search: Search, after: Cursor | None, most: int) -> Page:
    """The text is compressed: bodies are opened one by one, and no more than `most` of them."""
    looked = _walk(search, after, most).subquery()
    found: list[SearchHit] = []
    wanted, num_read = search.text.casefold(), 0
    last: Cursor | None = None
    records = generation.c
    statement = select(looked, records.record).join(
        generation, (records.completion_id == looked.c.completion_id) & (records.choice == looked.c.choice)
    )
    ordered = statement.order_by(*_newest_first(looked.c)).execution_options(yield_per=100)
    for row in connection.execute(ordered):
        last, num_read = _cursor(row), num_read + 1
        if not _fits(search, row):
            continue
        body = _body(row.record)
        if body is not None and wanted in _words(body):
            found.append(SearchHit(row, body))
            if len(found) == PAGE:
                return Page(found, last, num_read)
    return Page(found, last if num_read == most else None, num_read)


def _walk(search: Search, after: Cursor | None, limit: int) -> Select[Any]:
    """The newest rows below a place, whatever they are."""
    newest_first = _newest_first(generation.c)
    statement = select(*_HEAD, effective_state().label("state")).order_by(*newest_first)
    if search.completion:
        # Ids are hexadecimal and "~" sorts behind all of that: a range of the primary key.
        end = f"{search.completion}~"
        statement = statement.where(generation.c.completion_id >= search.completion, generation.c.completion_id < end)
    if search.before is not None:
        statement = statement.where(generation.c.created_at < search.before)
    if after is not None:
        # The bare time lets the index begin there; the tuple settles who shares it.
        statement = statement.where(generation.c.created_at <= after.at, tuple_(*_ORDER) < tuple_(*after))
    return statement.limit(limit)


def _newest_first(columns: Any) -> list[ColumnElement[Any]]:
    return [columns[name].desc() for name in ("created_at", "completion_id", "choice")]


def _asked(search: Search, columns: Any) -> list[ColumnElement[bool]]:
    wanted = {"state": search.state or None, "task": search.task or None, "version": search.version}
    return [columns[name] == value for name, value in wanted.items() if value is not None]


def _fits(search: Search, row: Row[Any]) -> bool:
    return (
        search.state in {"", row.state}
        and search.task in {"", row.task}
        and (search.version is None or search.version == row.version)
    )


def _cursor(row: Row[Any]) -> Cursor:
    return Cursor(row.created_at, row.completion_id, row.choice)


def _bodies(connection: Connection, heads: list[Row[Any]]) -> dict[tuple[str, int], GenerationBody]:
    ids = [head.completion_id for head in heads]
    statement = select(generation.c.completion_id, generation.c.choice, generation.c.record)
    rows = connection.execute(statement.where(generation.c.completion_id.in_(ids)))
    opened = {(row.completion_id, row.choice): _body(row.record) for row in rows}
    return {key: body for key, body in opened.items() if body is not None}


def _decoded(wire: bytes) -> tuple[Generation | None, str]:
    try:
        return decode_shape(Generation, wire), ""
    except InvalidRecord as error:
        return None, error.message


def _body(wire: bytes) -> GenerationBody | None:
    try:
        return decode_shape(Generation, wire).open()
    except InvalidRecord:
        return None


def _words(body: GenerationBody) -> str:
    said = [str(message.get("content", "")) for message in body.messages]
    return "\n".join([*said, body.text]).casefold()


def _signals(completion_id: str, choice: int) -> Select[Any]:
    columns = signal.c
    return (
        select(
            columns.id,
            columns.tenant,
            columns.name,
            columns.submitter,
            columns.at,
            columns.received_at,
            columns.state,
            columns.reason,
            columns.revision,
            columns.record,
        )
        .where(columns.completion_id == completion_id, columns.choice == choice)
        .order_by(columns.received_at, columns.id)
        .limit(MAX_SIGNALS)
    )


def _scores(key: str) -> Select[Any]:
    columns = score.c
    return (
        select(columns.revision, columns.reward, columns.status, columns.fault, columns.components, columns.at)
        .where(columns.key == key)
        .order_by(columns.revision)
        .limit(MAX_SCORES)
    )


def _outcomes(key: str) -> Select[Any]:
    columns = outcome.c
    return (
        select(
            columns.revision,
            columns.epoch,
            columns.state,
            columns.reason,
            columns.version,
            columns.writer,
            columns.at,
        )
        .where(columns.key == key)
        .order_by(columns.at, columns.epoch, columns.revision)
        .limit(MAX_OUTCOMES)
    )
