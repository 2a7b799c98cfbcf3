"""The log's side of the ledger: the key and the place of every record of `generations` after the seals' marks.

In: the log. Out: 16 bytes for each record, by the hour of its key; no values. Waits for: reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.event_log import EventLog, is_damaged
from contracts.topics import GENERATIONS
from runtime.log.redrive import RecordPlace
from runtime.seals import hash_of, hour_of

Words = NDArray[np.uint64]
Say = Callable[[str], None]
"""Called now and then with how far the work is."""

_PAGE = 1000
_OFFSET_BITS = 48
_SAY_EVERY = 20_000


class FirstRecord(NamedTuple):
    """The first record that a partition still has. `appended_at`: UTC epoch seconds."""

    offset: int
    appended_at: float


class HourOfKeys:
    """The records of one hour: hashes and places, side by side."""

    def __init__(self) -> None:
        self._hashes, self._places = array("Q"), array("Q")

    def add(self, key: str, partition: int, offset: int) -> None:
        """Add a record."""
        self._hashes.append(hash_of(key))
        self._places.append(partition << _OFFSET_BITS | offset)

    @property
    def hashes(self) -> Words:
        """[records] in the order of the log, partition by partition."""
        return np.frombuffer(self._hashes, np.uint64)

    @property
    def places(self) -> Words:
        """[records] see `place_of`."""
        return np.frombuffer(self._places, np.uint64)


class LogSide(NamedTuple):
    """What the log has."""

    hours: dict[int, HourOfKeys]
    firsts: dict[int, FirstRecord]
    """Without partitions that are empty."""
    ends: dict[int, int]
    damaged: list[RecordPlace]
    gaps: list[tuple[RecordPlace, int]]
    """Places where records are missing between others, and how many."""


def place_of(packed: int) -> RecordPlace:
    """The place of a record, as `HourOfKeys` holds it."""
    return RecordPlace(GENERATIONS, packed >> _OFFSET_BITS, packed & ((1 << _OFFSET_BITS) - 1))


def partitions_of(places: Words) -> Words:
    """[records] -> [records]."""
    return places >> np.uint64(_OFFSET_BITS)


def offsets_of(places: Words) -> Words:
    """[records] -> [records]."""
    return places & np.uint64((1 << _OFFSET_BITS) - 1)


def read_log(log: EventLog, marks: Mapping[int, int], say: Say) -> LogSide:
    """Read every record after the marks, up to the end that the log has now.

    Raises:
        Unavailable, Damaged: the log cannot be read.
    """
    ends = log.ends(GENERATIONS)
    side = LogSide({}, {}, ends, [], [])
    num_left = sum(max(0, end - marks.get(partition, 0)) for partition, end in ends.items())
    num_read = 0
    for partition, end in ends.items():
        if not (first := log.read(GENERATIONS, partition, 0, 1)):
            continue
        side.firsts[partition] = FirstRecord(first[0].offset, first[0].appended_at)
        offset = max(marks.get(partition, 0), first[0].offset)
        while offset < end and (records := log.read(GENERATIONS, partition, offset, _PAGE)):
            for record in records:
                if record.offset > offset:
                    side.gaps.append((RecordPlace(GENERATIONS, partition, offset), record.offset - offset))
                offset = record.offset + 1
                if is_damaged(record.value):
                    side.damaged.append(RecordPlace(GENERATIONS, partition, record.offset))
                if (keys := side.hours.get(hour := hour_of(record.key))) is None:
                    keys = side.hours[hour] = HourOfKeys()
                keys.add(record.key, partition, record.offset)
            if num_read // _SAY_EVERY != (num_read + len(records)) // _SAY_EVERY:
                say(f"log: {num_read + len(records):,} of about {num_left:,} records")
            num_read += len(records)
    return side


def key_at(log: EventLog, place: RecordPlace) -> str:
    """The key of a record; empty if the log no longer has it."""
    return next((item.key for item in log.read(*place, 1) if item.offset == place.offset), "")
