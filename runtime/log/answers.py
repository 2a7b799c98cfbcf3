"""The answers that episodes and experiences point to: the topic `generations` has each body once, and everything else its place.

    record with a place ──▶ generations, all places of a batch at once ──▶ the record, with `answer`
                                 └─ not there (any more) ──▶ the row of the answer

In: records of a batch. Out: the same records, in their order. Waits for: the log.

The key is compared, since a log that was lost and made again has other answers at the same places. What neither log nor
database has stays without an answer: its reader names it `body_lost`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import select

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, LogPlace, LogRecord, is_damaged
from contracts.ids import parse_sample_key
from contracts.record_checks import is_place, is_sample_key
from contracts.tables import generation
from contracts.tables.statements import among
from contracts.topics import GENERATIONS
from contracts.wire import unpacked
from runtime.database import Database

BODY_LOST = "body_lost"
"""Reason of a sample whose body nobody has any more."""

_Target = tuple[str, LogPlace]


class _Pointer(msgspec.Struct):
    key: str
    source: LogPlace | None = None


def with_answers(log: EventLog, database: Database, records: Sequence[LogRecord]) -> list[LogRecord]:
    """See the module. Raises Unavailable: the log does not answer."""
    pointers = {number: found for number, record in enumerate(records) if (found := _pointer(record)) is not None}
    if not pointers:
        return list(records)
    answers = _from_log(log, set(pointers.values()))
    rows = _from_rows(database, {key for key, place in pointers.values() if (key, place) not in answers})
    whole = list(records)
    for number, (key, place) in pointers.items():
        whole[number] = records[number]._replace(answer=answers.get((key, place)) or rows.get(key))
    return whole


def _pointer(record: LogRecord) -> _Target | None:
    try:
        found = msgspec.msgpack.decode(unpacked("pointer", record.value), type=_Pointer)
    except (InvalidRecord, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # its reader says what is wrong with it
    return None if found.source is None or not is_place(found.source) else (found.key, found.source)


def _from_log(log: EventLog, wanted: set[_Target]) -> dict[_Target, bytes]:
    found = log.read_each(GENERATIONS, {place for _, place in wanted})
    return {
        (key, place): record.value
        for key, place in wanted
        if (record := found.get(place)) is not None and record.key == key and not is_damaged(record.value)
    }


def _from_rows(database: Database, keys: set[str]) -> dict[str, bytes]:
    samples = {key: parse_sample_key(key) for key in keys if is_sample_key(key)}
    if not samples:
        return {}
    columns, ids = generation.c, {completion_id for completion_id, _ in samples.values()}
    with database.snapshot() as connection:
        wanted = among(connection, columns.completion_id, ids)
        found = connection.execute(select(columns.completion_id, columns.choice, columns.record).where(wanted))
        rows = {(row.completion_id, row.choice): row.record for row in found}
    return {key: rows[sample] for key, sample in samples.items() if sample in rows}
