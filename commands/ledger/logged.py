"""The log's side of the ledger: the key and the place of every record of `generations` after the seals' marks.

In: the log. Out: 16 bytes for each record, by the hour of its key; no values. Waits for: reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.event_log import EventLog, LogRecord, is_damaged
from contracts.topics import GENERATIONS
from runtime.log.redrive import RecordPlace
from runtime.seals import hashes_of, hour_of

Words = NDArray[np.uint64]
Say = Callable[[str], None]
"""Called now and then with how far the work is."""

_WORD = np.dtype("<u8")
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
        self._hashes, self._places = bytearray(), bytearray()

    def add(self, records: Sequence[LogRecord]) -> None:
        """Add records of one partition."""
        self._hashes += hashes_of([record.key for record in records])
        offsets = np.array([record.offset for record in records], _WORD)
        self._places += (offsets | _WORD.type(records[0].partition << _OFFSET_BITS)).tobytes()

    @property
    def hashes(self) -> Words:
        """[records] in the order of the log, partition by partition."""
        return np.frombuffer(self._hashes, _WORD)

    @property
    def places(self) -> Words:
        """[records] see `place_of`."""
        return np.frombuffer(self._places, _WORD)


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
            _add(side, partition, offset, records)
            offset = records[-1].offset + 1
            if num_read // _SAY_EVERY != (num_read + len(records)) // _SAY_EVERY:
                say(f"log: {num_read + len(records):,} of about {num_left:,} records")
            num_read += len(records)
    return side


def _add(side: LogSide, partition: int, wanted: int, records: Sequence[LogRecord]) -> None:
    if records[-1].offset - wanted >= len(records):
        for record in records:
            if record.offset > wanted:
                side.gaps.append((RecordPlace(GENERATIONS, partition, wanted), record.offset - wanted))
            wanted = record.offset + 1
    side.damaged.extend(
        RecordPlace(GENERATIONS, partition, record.offset) for record in records if is_damaged(record.value)
    )
    for hour, some in groupby(records, lambda record: hour_of(record.key)):
        if (keys := side.hours.get(hour)) is None:
            keys = side.hours[hour] = HourOfKeys()
        keys.add(list(some))


def key_at(log: EventLog, place: RecordPlace) -> str:
    """The key of a record; empty if the log no longer has it."""
    return next((item.key for item in log.read(*place, 1) if item.offset == place.offset), "")
