"""The log's side of the ledger: the key and the place of every record of `generations` after the seals' marks.

In: the log. Out: 16 bytes for each record, by the hour of its key; no values. Waits for: reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commands.ledger.hours import by_hour
from contracts.event_log import EventLog, LogRecord, is_damaged
from contracts.topics import GENERATIONS
from runtime.log.redrive import RecordPlace
from runtime.seals import hashes_of

Words = NDArray[np.uint64]
Say = Callable[[str], None]
"""Called now and then with how far the work is."""

_WORD = np.dtype("<u8")
_PAGE = 1000
_OFFSET_BITS = 48


class FirstRecord(NamedTuple):
    """The first record that a partition still has. `appended_at`: UTC epoch seconds."""

    offset: int
    appended_at: float


class HourOfKeys:
    """The records of one hour: hashes and places, side by side."""

    def __init__(self) -> None:
        self._hashes, self._places = bytearray(), bytearray()

    def add(self, hashes: Words, places: Words) -> None:
        """Add records of one partition, [records] each."""
        self._hashes += hashes.tobytes()
        self._places += places.tobytes()

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


class Stretch(NamedTuple):
    """What to read of a partition: from the mark up to `end`."""

    partition: int
    mark: int
    end: int

    @property
    def num_records(self) -> int:
        """At most."""
        return max(0, self.end - self.mark)


class StretchRead(NamedTuple):
    """What was read of a partition; see `LogSide`. `first`: None if the partition is empty."""

    first: FirstRecord | None
    hours: dict[int, HourOfKeys]
    damaged: list[RecordPlace]
    gaps: list[tuple[RecordPlace, int]]


def place_of(packed: int) -> RecordPlace:
    """The place of a record, as `HourOfKeys` holds it."""
    return RecordPlace(GENERATIONS, packed >> _OFFSET_BITS, packed & ((1 << _OFFSET_BITS) - 1))


def partitions_of(places: Words) -> Words:
    """[records] -> [records]."""
    return places >> np.uint64(_OFFSET_BITS)


def offsets_of(places: Words) -> Words:
    """[records] -> [records]."""
    return places & np.uint64((1 << _OFFSET_BITS) - 1)


def stretches_of(log: EventLog, marks: Mapping[int, int]) -> list[Stretch]:
    """What there is to read after the marks, up to the end that the log has now."""
    return [Stretch(partition, marks.get(partition, 0), end) for partition, end in log.ends(GENERATIONS).items()]


def read_stretch(log: EventLog, stretch: Stretch, seen: Callable[[int], None]) -> StretchRead:
    """Read one partition. `seen` is told the number of records of each page.

    Raises:
        Unavailable, Damaged: the log cannot be read.
    """
    partition, end = stretch.partition, stretch.end
    if not (oldest := log.read(GENERATIONS, partition, 0, 1)):
        return StretchRead(None, {}, [], [])
    found = StretchRead(FirstRecord(oldest[0].offset, oldest[0].appended_at), {}, [], [])
    offset = max(stretch.mark, oldest[0].offset)
    while offset < end and (records := log.read(GENERATIONS, partition, offset, _PAGE)):
        _add(found, partition, offset, records)
        offset = records[-1].offset + 1
        seen(len(records))
    return found


def side_of(stretches: Iterable[Stretch], parts: Mapping[int, StretchRead]) -> LogSide:
    """Put the partitions together, in their order, whoever read them first."""
    side = LogSide({}, {}, {}, [], [])
    for partition, _, end in stretches:
        part = parts[partition]
        side.ends[partition] = end
        if part.first is not None:
            side.firsts[partition] = part.first
        side.damaged.extend(part.damaged)
        side.gaps.extend(part.gaps)
        while part.hours:  # taken one by one, so that nothing is held twice
            hour = next(iter(part.hours))
            keys = part.hours.pop(hour)
            side.hours.setdefault(hour, HourOfKeys()).add(keys.hashes, keys.places)
    return side


def _add(found: StretchRead, partition: int, wanted: int, records: Sequence[LogRecord]) -> None:
    if records[-1].offset - wanted >= len(records):
        for record in records:
            if record.offset > wanted:
                found.gaps.append((RecordPlace(GENERATIONS, partition, wanted), record.offset - wanted))
            wanted = record.offset + 1
    found.damaged.extend(
        [RecordPlace(GENERATIONS, partition, record.offset) for record in records if is_damaged(record.value)]
    )
    names = [record.key.encode() for record in records]
    offsets = np.array([record.offset for record in records], _WORD)
    hashes, places = np.frombuffer(hashes_of(names), _WORD), offsets | _WORD.type(partition << _OFFSET_BITS)
    for hour, mine in by_hour(names):
        if (keys := found.hours.get(hour)) is None:
            keys = found.hours[hour] = HourOfKeys()
        keys.add(hashes[mine], places[mine])


def key_at(log: EventLog, place: RecordPlace) -> str:
    """The key of a record; empty if the log no longer has it."""
    return next((item.key for item in log.read(*place, 1) if item.offset == place.offset), "")
