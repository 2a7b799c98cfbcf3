"""What explains the differences of a day: its seal, the rows that were dropped, or the log's own retention; or nothing does.

In: the differences. Out: problems and notes, by name. Waits for: nothing.

    rows without a record + dropped = sealed + records without a row        for each day and partition

Where the log no longer has the beginning, the left side may be larger: these rows are older than the log. They are counted by day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection

from commands.ledger.logged import LogSide, Words, key_at
from commands.ledger.queries import ids_between, rows_of
from contracts.event_log import EventLog
from contracts.ids import first_id_at, sample_key, time_of
from contracts.topics import GENERATIONS
from runtime.learning_ledger import MOST_NAMED
from runtime.log.redrive import RecordPlace
from runtime.seals import ELSEWHEN, KeySum, Seal, SealKey, day_of, hash_of, sum_of

_HOUR_MS = 3_600_000
_CLOCKS_SECONDS = 60.0
"""Clocks of the gateway, the log and the join differ by less."""


class OrphanRows(NamedTuple):
    """Rows without a record after the marks, by day and partition."""

    sums: dict[SealKey, KeySum]
    fresh: dict[SealKey, list[str]]
    """Keys of those whose record the log should still have."""
    lost: set[SealKey]
    """Where some were joined before a loss of the log was accepted."""


class Explained(NamedTuple):
    """The result for all days."""

    problems: list[str]
    notes: list[str]
    num_unexplained: int
    """Records that nothing explains, minus rows that nothing explains."""
    broken_seals: list[str]
    """Days whose seal no longer fits their rows."""


def find_orphans(
    connection: Connection, orphans: Mapping[int, Words], side: LogSide, lost_at: float | None
) -> OrphanRows:
    """Read the rows without a record again, an hour at a time."""
    sums: dict[SealKey, KeySum] = {}
    fresh: dict[SealKey, list[str]] = {}
    lost: set[SealKey] = set()
    for hour, hashes in orphans.items():
        wanted = set(hashes.tolist())
        for completion_id, choice, partition, joined_at in _rows(connection, hour):
            key = sample_key(completion_id, choice)
            if (value := hash_of(key)) not in wanted:
                continue
            place = SealKey(day_of(hour), partition)
            sums[place] = sums.get(place, KeySum()).plus(KeySum(1, value))
            if lost_at is not None and joined_at <= lost_at:
                lost.add(place)
            elif not _is_before_log(side, partition, completion_id):
                fresh.setdefault(place, []).append(key)
    return OrphanRows(sums, fresh, lost)


def explain(
    log: EventLog,
    side: LogSide,
    *,
    marks: Mapping[int, int],
    seals: Mapping[SealKey, Seal],
    passed: Mapping[SealKey, Mapping[int, RecordPlace]],
    orphans: OrphanRows,
    lost_at: float | None,
) -> Explained:
    """See the module. `seals`: of the days whose rows were read."""
    result = Explained([], [], 0, [])
    for key in sorted({*seals, *passed, *orphans.sums}):
        seal = seals.get(key, Seal())
        rows = orphans.sums.get(key, KeySum()).plus(seal.dropped)
        records = seal.sealed.plus(sum_of(passed.get(key, ())))
        if rows == records:
            continue
        unknown, fresh = passed.get(key, {}), orphans.fresh.get(key, [])
        where = f"{key.day or 'keys without a time'}, {GENERATIONS}/{key.partition}"
        begun = _is_cut(side, marks, key.partition) or key in orphans.lost or _was_lost(key.day, lost_at)
        if begun and rows.num >= records.num and not fresh and (seal.dropped.num or not unknown):
            result.notes.append(
                f"{where}: the log no longer has {rows.num - records.num} of its records, and they were never sealed"
            )
            continue
        if seal.dropped.num:
            result.problems.append(
                f"{where}: {seal.dropped.num} rows were dropped and {rows.num - seal.dropped.num} have no record, but the log and "
                f"the seals have {records.num} without a row"
                + (", and they are others" if rows.num == records.num else "")
            )
        else:
            result.problems.extend(_named_records(log, unknown))
            if seal.sealed.num:
                result.broken_seals.append(
                    f"{where}: {seal.sealed.num} generations were sealed, and {rows.num} are left"
                )
            else:
                result.problems.extend(_named_rows(fresh))
        difference = len(unknown) - len(fresh) if begun else records.num - rows.num
        result = result._replace(num_unexplained=result.num_unexplained + difference)
    return result


def _named_records(log: EventLog, unknown: Mapping[int, RecordPlace]) -> Iterator[str]:
    places = sorted(unknown.values())
    for place in places[:MOST_NAMED]:
        yield f"generation {key_at(log, place)} ({place}): the join has passed it, and nobody knows it"
    if len(places) > MOST_NAMED:
        yield f"and {len(places) - MOST_NAMED} more up to {places[-1]} that the join has passed, and nobody knows"


def _named_rows(fresh: list[str]) -> Iterator[str]:
    for key in fresh[:MOST_NAMED]:
        yield f"generation {key} has a state, and the log does not have it"
    if len(fresh) > MOST_NAMED:
        yield f"and {len(fresh) - MOST_NAMED} more up to {fresh[-1]} that the log does not have"


def _rows(connection: Connection, hour: int) -> Iterator[tuple[str, int, int, float]]:
    which = [] if hour == ELSEWHEN else [ids_between(first_id_at(hour * _HOUR_MS), first_id_at((hour + 1) * _HOUR_MS))]
    yield from rows_of(connection, which, lambda: None, "partition", "joined_at")


def _is_before_log(side: LogSide, partition: int, completion_id: str) -> bool:
    """True if the record of an answer with this id may be older than what the partition still has."""
    if (first := side.firsts.get(partition)) is None:
        return side.ends.get(partition, 0) > 0
    return first.offset > 0 and time_of(completion_id) < first.appended_at + _CLOCKS_SECONDS


def _is_cut(side: LogSide, marks: Mapping[int, int], partition: int) -> bool:
    """True if the log no longer has all records after the mark."""
    first = side.firsts.get(partition)
    begins = first.offset if first is not None else side.ends.get(partition, 0)
    return begins > marks.get(partition, 0)


def _was_lost(day: str, lost_at: float | None) -> bool:
    """True if the log of this day may be the one that was lost."""
    return lost_at is not None and day <= datetime.fromtimestamp(lost_at, UTC).date().isoformat()
