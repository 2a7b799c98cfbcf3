"""One import: reads an export from its beginning, checks and counts each row, and logs those that are not logged yet, in batches.

In: the values of a file. Out: per batch, `received_signal`, the topics `signals` and `generations`, then the progress. Waits for: the log's fsync.

A crash repeats at most one batch, with the same ids: the join keeps the first of each. Signals go first, so that the join rarely closes a row
before it has read what was said of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from commands.imports import progress, repository
from commands.imports.elements import Element, elements
from commands.imports.formats import Format
from commands.imports.mapping import with_fields, with_scores
from commands.imports.progress import ImportProgress
from commands.imports.records import (
    CheckedRow,
    MadeSignal,
    Target,
    checked,
    completion_id_of,
    generation_of,
    made_signal,
)
from commands.imports.repository import Links
from commands.imports.rows import ImportedRow
from commands.imports.tally import ImportTally
from contracts.event_log import EventLog, Message
from contracts.tasks.planted_secrets import find_secret
from contracts.tasks.scores import OtherScore, Refused
from runtime.database import Database

BATCH = 1000
MAX_BATCH_BYTES = 16 * 2**20
_SAY_EVERY_SECONDS = 5.0
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class Destination(NamedTuple):
    """Where an import goes. `writes`: False in a dry run."""

    folder: Path
    database: Database
    log: EventLog
    writes: bool


class _Row(NamedTuple):
    checked: CheckedRow
    scores: tuple[OtherScore, ...]
    end: int
    is_new: bool
    """False: this input had the row before, and only what was said of it is logged."""


def run(
    home: Destination, file: BinaryIO, kind: Format, target: Target, held: ImportProgress, *, batch_size: int = BATCH
) -> ImportTally:
    """Import a file, so many rows at a time. Returns what it found; rows that were logged by an earlier run count too.

    Raises Unavailable: the log or the database cannot be used; the next run goes on.
    """
    tally, importer = ImportTally(), _Importer(home, target, held)
    if home.writes:
        progress.write(home.folder, held)  # so that it can be taken back, however early it ends
    with repository.linked(_links(file, kind)) as links:
        batch, num_bytes, said_at, began_at = list[_Row](), 0, time.monotonic(), 0
        for found in elements(file):
            rows = list(_rows(found, kind, links, target, tally))
            batch += rows
            num_bytes += (found.end - began_at) if rows else 0
            began_at = found.end
            if len(batch) >= batch_size or num_bytes >= MAX_BATCH_BYTES:
                importer.log(batch, tally)
                batch, num_bytes = [], 0
            if time.monotonic() - said_at > _SAY_EVERY_SECONDS:
                said_at = time.monotonic()
                print(f"{sum(tally['row'].values()):,} rows, {found.end / 2**20:,.0f} MiB", file=sys.stderr, flush=True)
        importer.log(batch, tally)
        tally.add("orphan", num=links.num_unused)
    if home.writes:
        importer.finish()
    return tally


def _links(file: BinaryIO, kind: Format) -> Iterator[repository.ExportLink]:
    if kind.links is None:
        return
    for found in elements(file):
        if isinstance(found.value, dict):
            try:
                yield from kind.links(found.value)
            except _MALFORMED:
                continue  # it is counted when rows are read


def _rows(found: Element, kind: Format, links: Links, target: Target, tally: ImportTally) -> Iterator[_Row]:
    """The rows of a value that can be logged. All others are counted by the reason why not."""
    if found.is_latin1:
        tally.add("latin1")
    if found.problem or not isinstance(found.value, dict):
        tally.add("row")
        tally.add("refused", found.problem or "not_an_object")
        return
    content: dict[str, Any] = with_fields(found.value, target.maps)
    try:
        for row in kind.rows(content, links):
            tally.add("row")
            if (made := _checked(row, content, found.end, target, tally)) is not None:
                yield made
    except (Refused, *_MALFORMED) as error:
        tally.add("row")
        tally.add("refused", _reason(error))


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, Refused) else "malformed"


def _checked(row: ImportedRow, content: dict[str, Any], end: int, target: Target, tally: ImportTally) -> _Row | None:
    try:
        made = checked(row, target)
    except Refused as refused:
        tally.add("refused", refused.reason)
        return None
    scores = with_scores(row, content, target.maps)
    if not tally.is_new(completion_id_of(made, 0).encode()):
        tally.add("duplicate", "in this input")
        return _Row(made, scores, end, is_new=False)
    tally.add_person(row.user)
    texts = (text for message in made.messages if (text := message.get("content")))
    edits = (score.value for score in scores if isinstance(score.value, str))
    if secret := find_secret("\n".join((*texts, made.reply.text, *edits))):
        tally.add("secret", secret)
    return _Row(made, scores, end, is_new=True)


class _Importer:
    def __init__(self, home: Destination, target: Target, held: ImportProgress) -> None:
        self._home, self._target, self._held = home, target, held
        with home.database.snapshot() as connection:
            self._undone = repository.unread_undone(connection, home.log)

    def log(self, batch: list[_Row], tally: ImportTally) -> None:
        """Log a batch, as far as it is not logged. It is durable when this returns."""
        if not batch:
            return
        ids = self._place([row.checked for row in batch])
        generations, signals = list[Message](), list[MadeSignal]()
        for row, (completion_id, is_known) in zip(batch, ids, strict=True):
            is_ours = row.end <= self._held.next_byte
            if row.is_new and is_known and not is_ours:
                tally.add("duplicate", "logged before")
            try:
                sent = generation_of(row.checked, completion_id, self._target)
            except (Refused, *_MALFORMED) as error:  # such as a number of a tool that has more than 64 bits
                tally.add("refused", _reason(error))
                continue
            made = list(self._signals(row, completion_id, tally))
            if row.is_new and (is_ours or not is_known):
                tally.add("logged")
            if not is_ours:
                signals += made
                generations += [sent] if row.is_new and not is_known else []
        if self._home.writes and batch[-1].end > self._held.next_byte:
            with self._home.database.transaction(gives_way=True) as connection:
                repository.receive(connection, [(said.record, said.message.value) for said in signals])
            if messages := [*(said.message for said in signals), *generations]:
                self._home.log.append(messages)
            self._note(next_byte=batch[-1].end)

    def finish(self) -> None:
        """Note that all of the file is logged."""
        self._note(done_at=time.time())

    def _note(self, **changes: Any) -> None:
        self._held = msgspec.structs.replace(self._held, **changes)
        progress.write(self._home.folder, self._held)

    def _place(self, rows: list[CheckedRow]) -> list[tuple[str, bool]]:
        """The id of each row, and whether the ledger has it. What was imported and taken back gets a new id."""
        found: dict[int, tuple[str, bool]] = {}
        attempt, left = 0, list(range(len(rows)))
        while left:
            ids = {place: completion_id_of(rows[place], attempt) for place in left}
            with self._home.database.snapshot() as connection:
                known = repository.known_ids(connection, ids.values())
            found |= {place: (name, name in known) for place, name in ids.items()}
            left = [place for place, name in ids.items() if known.get(name, False) or name in self._undone]
            attempt += 1
        return [found[place] for place in range(len(rows))]

    def _signals(self, row: _Row, completion_id: str, tally: ImportTally) -> Iterator[MadeSignal]:
        for score in row.scores:
            tally.add("joined")
            try:
                made = made_signal(score, row.checked, completion_id, self._target)
            except (Refused, *_MALFORMED) as error:
                part = "unmapped" if (reason := _reason(error)) == "no_signal" else "unfit"
                tally.add(part, score.name if part == "unmapped" else f"{score.name}: {reason}")
                continue
            tally.add("signal", made.record.name)
            yield made
