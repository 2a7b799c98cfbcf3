"""What only the log or only the database has, and what explains it: a seal, dropped rows, the log's own retention; or nothing does.

In: the log's keys, and the database's in the order of their ids. Out: problems and notes, by name. At no time more of the database's keys
than those of a page and of one hour.

    rows without a record + dropped = sealed + records without a row        for each day and partition

Where the log no longer has the beginning, the left side may be larger: these rows are older than the log. They are counted by day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from commands.ledger.logged import LogSide, Mask, Words, by_hour, key_at, offsets_of, partitions_of, place_of
from commands.ledger.queries import KnownRecords, ids_between, rows_of
from contracts.event_log import EventLog
from contracts.ids import first_id_at, sample_key, time_of
from contracts.topics import GENERATIONS
from runtime.learning_ledger import MOST_NAMED
from runtime.log.redrive import RecordPlace
from runtime.seals import ELSEWHEN, HOUR_MS, KeySum, Seal, SealKey, day_of, hash_of, hashes_of, sum_of

_CLOCKS_SECONDS = 60.0
"""Clocks of the gateway, the log and the join differ by less."""


class LedgerDifference(NamedTuple):
    """Keys that only one side has."""

    unknown: dict[int, tuple[Words, Words]]
    """Hour to the records without a row: hashes and places, side by side. A key that was logged twice is there twice."""
    orphans: dict[int, Words]
    """Hour to the hashes of rows without a record."""


class UnknownRecords(NamedTuple):
    """What the records without a row are."""

    num_unread: int
    """Pending: at or after the join's position, or on their way to the log again."""
    num_dead: int
    """The join could not process them."""
    passed: dict[SealKey, dict[int, RecordPlace]]
    """Hash to place of the others: the join passed them. A dropped day explains them, or nothing does."""


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


def compare(side: LogSide, rows: Iterable[Sequence[str]]) -> LedgerDifference:
    """Find what only one side has. `rows`: pages of the keys of all rows, in the order of their ids."""
    unknown, orphans = {}, {}
    held: dict[int, bytearray] = {}
    """What was not compared yet: the hour at which the last page ended, and keys without a time."""
    left = set(side.hours)
    for page in rows:
        names = [key.encode() for key in page]
        hashes = np.frombuffer(hashes_of(names), "<u8")
        for hour, mine in by_hour(names):
            held.setdefault(hour, bytearray()).extend(hashes[mine].tobytes())
        for hour in sorted(held.keys() - {ELSEWHEN})[:-1]:
            unknown[hour], orphans[hour] = _differ(side, hour, held.pop(hour))
            left.discard(hour)
    for hour in sorted(left | held.keys()):
        unknown[hour], orphans[hour] = _differ(side, hour, held.get(hour, b""))
    return LedgerDifference(
        {hour: found for hour, found in unknown.items() if len(found[0])},
        {hour: found for hour, found in orphans.items() if len(found)},
    )


def sort_out(
    difference: LedgerDifference, known: KnownRecords, sent_again: Collection[str], damaged: Collection[RecordPlace]
) -> UnknownRecords:
    """Tell what each record without a row is.

    `sent_again`: keys of redriven records that are not in the log yet. `damaged`: records whose key cannot be trusted; they are named anyway.
    """
    under_way, settled = {hash_of(key) for key in sent_again}, known.letters.open | known.letters.skipped
    num_unread, num_dead = 0, 0
    passed: dict[SealKey, dict[int, RecordPlace]] = {}
    for hour, (hashes, places) in difference.unknown.items():
        unread = np.unique(hashes[_are_ahead(places, known.positions)])
        num_unread += len(unread)
        rest = ~np.isin(hashes, unread)
        where: dict[int, list[RecordPlace]] = {}
        for key, packed in zip(hashes[rest].tolist(), places[rest].tolist(), strict=True):
            where.setdefault(key, []).append(place_of(packed))
        for key, found in where.items():
            if not settled.isdisjoint(found):
                num_dead += 1
            elif key in under_way:
                num_unread += 1
            elif whole := [place for place in found if place not in damaged]:
                passed.setdefault(SealKey(day_of(hour), whole[0].partition), {})[key] = whole[0]
    return UnknownRecords(num_unread, num_dead, passed)


def find_orphans(
    connection: Connection, orphans: Mapping[int, Words], side: LogSide, lost_at: float | None
) -> OrphanRows:
    """Read the rows without a record again, an hour at a time."""
    found = OrphanRows({}, {}, set())
    for hour, hashes in orphans.items():
        wanted = set(hashes.tolist())
        start, end = first_id_at(hour * HOUR_MS), first_id_at((hour + 1) * HOUR_MS)
        which = [] if hour == ELSEWHEN else [ids_between(start, end)]
        for completion_id, choice, partition, joined_at in rows_of(connection, which, "partition", "joined_at"):
            key = sample_key(completion_id, choice)
            if (value := hash_of(key)) not in wanted:
                continue
            place = SealKey(day_of(hour), partition)
            found.sums[place] = found.sums.get(place, KeySum()).plus(KeySum(1, value))
            if lost_at is not None and joined_at <= lost_at:
                found.lost.add(place)
            elif not _is_before_log(side, partition, completion_id):
                found.fresh.setdefault(place, []).append(key)
    return found


def explain(
    log: EventLog,
    side: LogSide,
    known: KnownRecords,
    passed: Mapping[SealKey, Mapping[int, RecordPlace]],
    orphans: OrphanRows,
) -> Explained:
    """See the module. The seals of `known` are those of the days whose rows were read."""
    result = Explained([], [], 0, [])
    for key in sorted({*known.seals, *passed, *orphans.sums}):
        seal = known.seals.get(key, Seal())
        rows = orphans.sums.get(key, KeySum()).plus(seal.dropped)
        records = seal.sealed.plus(sum_of(passed.get(key, ())))
        if rows == records:
            continue
        unknown, fresh = passed.get(key, {}), orphans.fresh.get(key, [])
        where = f"{key.day or 'keys without a time'}, {GENERATIONS}/{key.partition}"
        begun = _is_cut(side, known.marks, key.partition) or key in orphans.lost or _was_lost(key.day, known.lost_at)
        if begun and rows.num >= records.num and not fresh and (seal.dropped.num or not unknown):
            gone = f"{where}: the log no longer has {rows.num - records.num} of its records"
            result.notes.append(f"{gone}, and they were never sealed")
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
                sealed = f"{where}: {seal.sealed.num} generations were sealed"
                result.broken_seals.append(f"{sealed}, and {rows.num} are left")
            else:
                result.problems.extend(_named_rows(fresh))
        difference = len(unknown) - len(fresh) if begun else records.num - rows.num
        result = result._replace(num_unexplained=result.num_unexplained + difference)
    return result


def _differ(side: LogSide, hour: int, rows: bytes | bytearray) -> tuple[tuple[Words, Words], Words]:
    held = np.frombuffer(rows, "<u8")
    if (keys := side.hours.get(hour)) is None:
        return (held[:0], held[:0]), held
    lacks = ~np.isin(keys.hashes, held)
    return (keys.hashes[lacks], keys.places[lacks]), held[~np.isin(held, keys.hashes)]


def _are_ahead(places: Words, positions: Mapping[int, int]) -> Mask:
    partitions, offsets = partitions_of(places), offsets_of(places)
    ahead = np.ones(len(places), np.bool_)
    for partition, position in positions.items():
        ahead &= (partitions != np.uint64(partition)) | (offsets >= np.uint64(position))
    return ahead


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


def _is_before_log(side: LogSide, partition: int, completion_id: str) -> bool:
    """True if the record of an answer with this id may be older than what the partition still has."""
    if (first := side.firsts.get(partition)) is None:
        return side.ends.get(partition, 0) > 0
    return first.offset > 0 and time_of(completion_id) < first.appended_at + _CLOCKS_SECONDS


def _is_cut(side: LogSide, marks: Mapping[int, int], partition: int) -> bool:
    first = side.firsts.get(partition)
    return (first.offset if first is not None else side.ends.get(partition, 0)) > marks.get(partition, 0)


def _was_lost(day: str, lost_at: float | None) -> bool:
    """True if the log of this day may be the one that was lost."""
    return lost_at is not None and day <= datetime.fromtimestamp(lost_at, UTC).date().isoformat()
