"""Compares both sides of the ledger, an hour at a time: records that have no row, and rows that have no record. Pure.

In: the log's keys, and the database's in the order of their ids. Out: the differences. At no time more of the database's keys than
those of a page and of one hour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from commands.ledger.hours import by_hour
from commands.ledger.logged import LogSide, Words, offsets_of, partitions_of, place_of
from commands.ledger.queries import DeadPlaces
from runtime.log.redrive import RecordPlace
from runtime.seals import ELSEWHEN, SealKey, day_of, hash_of, hashes_of


class LedgerDifference(NamedTuple):
    """Keys that only one side has."""

    unknown: dict[int, tuple[Words, Words]]
    """Hour to the records without a row: hashes and places, side by side. A key that was logged twice is there twice."""
    orphans: dict[int, Words]
    """Hour to the hashes of rows without a record."""


class UnknownRecords(NamedTuple):
    """What the records without a row are."""

    num_unread: int
    """Keys at or after the join's position, or on their way to the log again: pending."""
    num_dead: int
    """Keys that the join could not process."""
    passed: dict[SealKey, dict[int, RecordPlace]]
    """Hash to place of the others: the join passed them. A dropped day explains them, or nothing does."""


def compare(side: LogSide, rows: Iterable[Sequence[str]]) -> LedgerDifference:
    """Find what only one side has.

    Args:
        side: what the log has.
        rows: pages of the keys of all rows, in the order of their ids.
    """
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
    difference: LedgerDifference,
    positions: Mapping[int, int],
    letters: DeadPlaces,
    sent_again: Collection[str],
    damaged: Collection[RecordPlace],
) -> UnknownRecords:
    """Tell what each record without a row is.

    Args:
        difference: of both sides.
        positions: partition to the next offset of the join.
        letters: its dead letters.
        sent_again: keys of redriven records that are not in the log yet.
        damaged: records whose key cannot be trusted. They are named anyway.
    """
    under_way = {hash_of(key) for key in sent_again}
    num_unread, num_dead = 0, 0
    passed: dict[SealKey, dict[int, RecordPlace]] = {}
    for hour, (hashes, places) in difference.unknown.items():
        ahead = _are_ahead(places, positions)
        unread = np.unique(hashes[ahead])
        num_unread += len(unread)
        rest = ~np.isin(hashes, unread)
        where: dict[int, list[RecordPlace]] = {}
        for key, packed in zip(hashes[rest].tolist(), places[rest].tolist(), strict=True):
            where.setdefault(key, []).append(place_of(packed))
        for key, found in where.items():
            if any(place in letters.open or place in letters.skipped for place in found):
                num_dead += 1
            elif key in under_way:
                num_unread += 1
            elif whole := [place for place in found if place not in damaged]:
                passed.setdefault(SealKey(day_of(hour), whole[0].partition), {})[key] = whole[0]
    return UnknownRecords(num_unread, num_dead, passed)


def _differ(side: LogSide, hour: int, rows: bytes | bytearray) -> tuple[tuple[Words, Words], Words]:
    held = np.frombuffer(rows, "<u8")
    if (keys := side.hours.get(hour)) is None:
        return (held[:0], held[:0]), held
    lacks = ~np.isin(keys.hashes, held)
    return (keys.hashes[lacks], keys.places[lacks]), held[~np.isin(held, keys.hashes)]


def _are_ahead(places: Words, positions: Mapping[int, int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    partitions, offsets = partitions_of(places), offsets_of(places)
    ahead = np.ones(len(places), np.bool_)
    for partition, position in positions.items():
        ahead &= (partitions != np.uint64(partition)) | (offsets >= np.uint64(position))
    return ahead
