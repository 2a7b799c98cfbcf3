"""SQL of imports: which rows are known, the signals that were received, and what parts of one export refer to.

`Links` is a file of its own that is gone with the import: scores, requests and traces may stand anywhere in an export of any length.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, select

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog
from contracts.ids import parse_sample_key, sample_key
from contracts.ledger import UNDONE
from contracts.records import Generation, Outcome, Record, Signal, decode_shape
from contracts.tables import generation, received_signal
from contracts.tables.statements import among, insert_all_new
from contracts.topics import GENERATIONS, OUTCOMES
from runtime.log.recovery import ANY_BODY, unread_by_join
from runtime.seals import pages

Kind = TypeVar("Kind", bound=Record)
_BATCH = 1000


class ExportLink(NamedTuple):
    """A part of an export that another part needs. `kind` and `key`: how that part asks for it. `at` orders equal ones."""

    kind: str
    key: str
    content: bytes
    at: str = ""


class Links:
    """All links of an export, in a file without a name, which a kill leaves nowhere."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE link (kind TEXT, key TEXT, at TEXT, content BLOB)",
        ):
            self._connection.execute(statement)
        self.num_used = 0
        """Scores that an answer asked for."""

    def add(self, links: Iterable[ExportLink]) -> None:
        """Add all of them; call it once."""
        rows = ((link.kind, link.key, link.at, link.content) for link in links)
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO link VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("CREATE INDEX by_key ON link (kind, key, at)")
        self._connection.execute("COMMIT")

    def find(self, kind: str, key: str) -> list[bytes]:
        """What there is under a key, in the order of `at`."""
        statement = "SELECT content FROM link WHERE kind = ? AND key = ? ORDER BY at, rowid"
        return [content for (content,) in self._connection.execute(statement, (kind, key))]

    def scores(self, key: str) -> list[bytes]:
        """The scores of an answer, counted as used."""
        found = self.find("score", key)
        self.num_used += len(found)
        return found

    @property
    def num_unused(self) -> int:
        """Scores whose answer is not in the export."""
        (num,) = self._connection.execute("SELECT COUNT(*) FROM link WHERE kind = 'score'").fetchone()
        return max(0, int(num) - self.num_used)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


@contextmanager
def linked(links: Iterable[ExportLink]) -> Iterator[Links]:
    """Keep links until the block ends."""
    with closing(Links()) as found:
        found.add(links)
        yield found


def known_ids(connection: Connection, completion_ids: Collection[str]) -> dict[str, bool]:
    """Of these ids those that the ledger has; True if their import was taken back."""
    found: dict[str, bool] = {}
    wanted = sorted(completion_ids)
    columns = generation.c["completion_id", "state", "state_reason"]
    for start in range(0, len(wanted), _BATCH):
        here = among(connection, generation.c.completion_id, wanted[start : start + _BATCH])
        for row in connection.execute(select(*columns).where(here)):
            found[row.completion_id] = (row.state, row.state_reason) == ("quarantined", UNDONE)
    return found


def receive(connection: Connection, signals: Iterable[tuple[Signal, bytes]]) -> None:
    """Note signals, each with its wire form, as received. Known ones stay as they are."""
    rows = {
        (said.tenant, said.id): {"tenant": said.tenant, "id": said.id, "received_at": said.received_at, "record": wire}
        for said, wire in signals
    }
    insert_all_new(connection, received_signal, [row | {"body_hash": ANY_BODY} for row in rows.values()])


def joined_keys(connection: Connection, import_id: str) -> Iterator[str]:
    """Sample keys of the rows of an import that the join has read."""
    for row in pages(connection, generation.c.purpose == "imported", columns=[generation.c.record]):
        if import_of(decode_shape(Generation, row.record)) == import_id:
            yield sample_key(row.completion_id, row.choice)


def unread_keys(connection: Connection, log: EventLog, import_id: str) -> set[str]:
    """Sample keys of the rows of an import that only the log has. Of rows that two imports logged, the join keeps the first."""
    first = dict[str, str]()
    for record in _unread(connection, log, GENERATIONS, Generation):
        first.setdefault(record.completion_id, import_of(record))
    mine = {name for name, logged_by in first.items() if logged_by == import_id}
    return {sample_key(name, 0) for name in mine - known_ids(connection, mine).keys()}


def unread_undone(connection: Connection, log: EventLog) -> set[str]:
    """Completion ids of the rows that were taken back, where only the log says so."""
    told = (
        it for it in _unread(connection, log, OUTCOMES, Outcome) if (it.state, it.reason) == ("quarantined", UNDONE)
    )
    return {parse_sample_key(key)[0] for it in told for key in (it.key, *(also.key for also in it.also))}


def _unread(connection: Connection, log: EventLog, topic: str, kind: type[Kind]) -> Iterator[Kind]:
    for record in unread_by_join(connection, log, topic):
        with suppress(InvalidRecord):  # the join makes it a dead letter
            yield decode_shape(kind, record.value)


def import_of(record: Generation) -> str:
    """The import that logged a record; empty if none did."""
    return record.provided.import_id if record.provided is not None else ""
