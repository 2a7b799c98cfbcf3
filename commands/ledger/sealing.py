"""Seals days after an audit: the next one reads neither their records nor their rows.

In: an audit in which everything was explained. Out: seals, and the marks up to which the log need not be read again. Waits for: nothing.

A day is closed once it is over for an hour, nothing up to it is pending, and every record of it is sealed. What comes later
for it is read as any other record, and its rows are compared again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from commands.ledger.differences import LedgerDifference
from commands.ledger.logged import LogSide, offsets_of, partitions_of
from commands.ledger.queries import KnownRecords, first_pending, ids_between
from contracts.errors import Conflict
from contracts.ids import first_id_at
from runtime.log.redrive import RecordPlace
from runtime.seals import (
    ELSEWHEN,
    KeySum,
    Seal,
    SealKey,
    day_of,
    hour_of,
    read_marks,
    read_seals,
    states_of_rows,
    sum_of,
    take_turn,
    write_mark,
    write_seal,
)

_REST_SECONDS = 3600.0
_DAY_MS = 86_400_000


class NewSeals(NamedTuple):
    """What to write, and what was there when the audit began."""

    seals: dict[SealKey, Seal]
    marks: dict[int, int]
    closed: list[str]
    marks_before: dict[int, int]
    seals_before: dict[SealKey, Seal]


def range_of(day: str) -> tuple[str, str]:
    """The first completion id of a day, and the first one after it."""
    start = (date.fromisoformat(day) - date(1970, 1, 1)).days * _DAY_MS
    return first_id_at(start), first_id_at(start + _DAY_MS)


def counted(seal: Seal) -> KeySum | None:
    """The keys of a day that its states must add up to; None while it is not closed."""
    if seal.dropped_at is not None:
        return seal.dropped
    return seal.sealed if seal.closed_at is not None else None


def plan_seals(
    connection: Connection,
    side: LogSide,
    difference: LedgerDifference,
    *,
    passed: Mapping[SealKey, Mapping[int, RecordPlace]],
    known: KnownRecords,
    now: float,
) -> NewSeals:
    """What can be sealed now. All sums are of the snapshot that was compared."""
    before, seals = read_marks(connection), known.seals
    last = _last_day(connection, now)
    marks = {partition: max(before.get(partition, 0), _mark(side, partition, last, known)) for partition in side.ends}
    bounds = np.zeros(max(marks, default=0) + 1, np.uint64)
    for partition, offset in marks.items():
        bounds[partition] = offset
    found: dict[SealKey, list[int]] = {}
    late: set[str] = set()
    explained = {value for hashes in passed.values() for value in hashes}
    for hour, keys in side.hours.items():
        hashes, places = keys.hashes, keys.places
        lacking = np.unique(difference.unknown[hour][0]) if hour in difference.unknown else ()
        unknown = [value for value in lacking if int(value) not in explained]
        is_inside = offsets_of(places) < bounds[partitions_of(places)]
        has_row = ~np.isin(hashes, np.array(unknown, np.uint64))
        outside = hashes[~is_inside & has_row]
        taken = is_inside & has_row & ~np.isin(hashes, outside)
        if len(outside):
            late.add(day_of(hour))
        for partition in np.unique(partitions_of(places[taken])).tolist():
            mine = np.unique(hashes[taken & (partitions_of(places) == partition)])
            found.setdefault(SealKey(day_of(hour), partition), []).extend(mine.tolist())
    closed = [
        day
        for day in sorted({key.day for key in (*seals, *found)})
        if day and day <= last and day not in late and _changes(day, seals, found)
    ]
    new = dict(seals)
    for key, values in found.items():
        if (more := sum_of(values)).num:
            seal = seals.get(key, Seal())
            new[key] = seal._replace(sealed=seal.sealed.plus(more), sealed_at=now)
    for day in closed:
        states = states_of_rows(connection, ids_between(*range_of(day)))
        for key in [key for key in new if key.day == day]:
            new[key] = new[key]._replace(closed_at=now, states=states.get(key.partition, {}))
    return NewSeals(new, marks, closed, before, read_seals(connection))


def write_seals(connection: Connection, new: NewSeals, now: float) -> None:
    """Write them. Raises Conflict: somebody sealed or dropped a day meanwhile; nothing was changed."""
    take_turn(connection)
    if (read_marks(connection), read_seals(connection)) != (new.marks_before, new.seals_before):
        raise Conflict("seals changed while this audit ran, so it wrote none: run it again")
    for key, seal in new.seals.items():
        write_seal(connection, key, seal)
    for partition, offset in new.marks.items():
        write_mark(connection, partition, offset, now)


def _changes(day: str, seals: Mapping[SealKey, Seal], found: Mapping[SealKey, list[int]]) -> bool:
    """Whether a day has something that its closed seal lacks. What was dropped is not closed: it has no rows to be read."""
    mine = [seals[key] for key in seals if key.day == day]
    if any(seal.dropped.num for seal in mine):
        return False
    return any(key.day == day for key in found) or any(seal.closed_at is None for seal in mine)


def _last_day(connection: Connection, now: float) -> str:
    """The last day that is over, and up to which nothing is pending."""
    over = (datetime.fromtimestamp(now - _REST_SECONDS, UTC).date() - timedelta(days=1)).isoformat()
    if (pending := first_pending(connection)) is None:
        return over
    if (hour := hour_of(pending)) == ELSEWHEN:
        return ""
    return min(over, (date.fromisoformat(day_of(hour)) - timedelta(days=1)).isoformat())


def _mark(side: LogSide, partition: int, last: str, known: KnownRecords) -> int:
    """After the last record of the days that may be sealed, and not past a record about which nothing is decided yet."""
    mark = 0
    for hour, keys in side.hours.items():
        if hour != ELSEWHEN and day_of(hour) <= last:
            mine = keys.places[partitions_of(keys.places) == partition]
            mark = max(mark, int(offsets_of(mine).max()) + 1) if len(mine) else mark
    open_offsets = [place.offset for place in known.letters.open if place.partition == partition]
    return min([mark, known.positions.get(partition, 0), *open_offsets])
