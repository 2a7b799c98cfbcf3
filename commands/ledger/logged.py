"""The log's side of the ledger: the key and the place of every record of `generations` after the seals' marks.

In: the log. Out: 16 bytes for each record, by the hour of its key; no values. Waits for: reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.event_log import EventLog, LogRecord, is_damaged
from contracts.topics import GENERATIONS
from runtime.log.redrive import RecordPlace
from runtime.seals import ELSEWHEN, HOUR_MS, LAST_HOUR, hashes_of

Words = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Say = Callable[[str], None]
"""Called now and then with how far the work is."""

_WORD = np.dtype("<u8")
_PAGE = 1000
_OFFSET_BITS = 48
_HEAD = b"chatcmpl-tttttttt-tttt-"
"""The beginning of an id of ours: `t` stands for a digit of its time."""
_CHARACTERS = np.frombuffer(_HEAD, np.uint8)
_IS_TIME = np.array([at > _HEAD.index(b"-") and letter == ord("t") for at, letter in enumerate(_HEAD)])
_NO_DIGIT = 255
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_POWERS = 16 ** np.arange(np.count_nonzero(_IS_TIME) - 1, -1, -1, dtype=np.int64)


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
    """What the log has, or one partition of it."""

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


def hours_of(keys: Sequence[bytes]) -> NDArray[np.int64]:
    """[keys]: `hour_of` of each."""
    heads = np.array(keys, f"S{len(_HEAD)}").view(np.uint8).reshape(len(keys), len(_HEAD))
    digits = _VALUES[heads[:, _IS_TIME]]
    is_id = (heads[:, ~_IS_TIME] == _CHARACTERS[~_IS_TIME]).all(axis=1) & (digits != _NO_DIGIT).all(axis=1)
    hours = digits.astype(np.int64) @ _POWERS // HOUR_MS
    return np.where(is_id & (hours < LAST_HOUR), hours, ELSEWHEN)


def by_hour(keys: Sequence[bytes]) -> Iterator[tuple[int, Mask]]:
    """Each hour that some of the keys have, and which ones: [keys]."""
    hours = hours_of(keys)
    for hour in np.unique(hours).tolist():
        yield hour, hours == hour


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


def read_stretch(log: EventLog, stretch: Stretch, seen: Callable[[int], None]) -> LogSide:
    """Read one partition. `seen` is told the number of records of each page. Raises Unavailable, Damaged: the log cannot be read."""
    partition, end = stretch.partition, stretch.end
    found = LogSide({}, {}, {partition: end}, [], [])
    if not (oldest := log.read(GENERATIONS, partition, 0, 1)):
        return found
    found.firsts[partition] = FirstRecord(oldest[0].offset, oldest[0].appended_at)
    offset = max(stretch.mark, oldest[0].offset)
    while offset < end and (records := log.read(GENERATIONS, partition, offset, _PAGE)):
        _add(found, partition, offset, records)
        offset = records[-1].offset + 1
        seen(len(records))
    return found


def side_of(stretches: Iterable[Stretch], parts: Mapping[int, LogSide]) -> LogSide:
    """Put the partitions together, in their order, whoever read them first."""
    side = LogSide({}, {}, {}, [], [])
    for part in (parts[stretch.partition] for stretch in stretches):
        side.ends.update(part.ends)
        side.firsts.update(part.firsts)
        side.damaged.extend(part.damaged)
        side.gaps.extend(part.gaps)
        while part.hours:  # taken one by one, so that nothing is held twice
            hour, keys = part.hours.popitem()
            side.hours.setdefault(hour, HourOfKeys()).add(keys.hashes, keys.places)
    return side


def _add(found: LogSide, partition: int, wanted: int, records: Sequence[LogRecord]) -> None:
    if records[-1].offset - wanted >= len(records):
        for record in records:
            if record.offset > wanted:
                found.gaps.append((RecordPlace(GENERATIONS, partition, wanted), record.offset - wanted))
            wanted = record.offset + 1
    found.damaged.extend(RecordPlace(GENERATIONS, partition, r.offset) for r in records if is_damaged(r.value))
    names = [record.key.encode() for record in records]
    offsets = np.array([record.offset for record in records], _WORD)
    hashes, places = np.frombuffer(hashes_of(names), _WORD), offsets | _WORD.type(partition << _OFFSET_BITS)
    for hour, mine in by_hour(names):
        found.hours.setdefault(hour, HourOfKeys()).add(hashes[mine], places[mine])


def key_at(log: EventLog, place: RecordPlace) -> str:
    """The key of a record; empty if the log no longer has it."""
    return next((item.key for item in log.read(*place, 1) if item.offset == place.offset), "")
