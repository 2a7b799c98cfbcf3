"""Positions that the log no longer holds: detected, and skipped only if an operator says so.

In: the positions of a checkpoint, the ends of the log. Out: `PositionLost`; or new positions, and a fate for every unread sample
that can no longer be read: `stale(position_lost)`. Waits for: nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import structlog

from contracts.errors import InvalidRecord, PositionLost
from contracts.records import Experience, decode
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.state import Fate
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from contracts.event_log import EventLog
    from pipelines.training.state import TrainerState
    from runtime.database import Database

LOST = "position_lost"
_LOOK = 500
SkipTo = Literal["earliest", "now"]

log = structlog.get_logger()


class SkippedRange(NamedTuple):
    """Skipped records of one partition: from offset `start` up to `end`."""

    partition: int
    start: int
    end: int

    @property
    def number(self) -> int:
        """The number of records; 0 if the log was recreated and is shorter now."""
        return max(0, self.end - self.start)


def first_offsets(event_log: EventLog) -> dict[int, int]:
    """Partition to the offset of the oldest experience in the log, or of the next one if there is none.

    Raises:
        Unavailable: the log is away.
    """
    found = {}
    for partition, end in event_log.ends(EXPERIENCES).items():
        first = event_log.read(EXPERIENCES, partition, 0, 1)
        found[partition] = first[0].offset if first else end
    return found


def lost(state: TrainerState, event_log: EventLog) -> list[SkippedRange]:
    """Partitions whose position is outside the log, with the range up to the oldest record."""
    held, ends = first_offsets(event_log), event_log.ends(EXPERIENCES)
    positions = state.positions.get(EXPERIENCES, {})
    stored = {partition: positions.get(partition, 0) for partition in held}
    return [
        SkippedRange(partition, at, held[partition])
        for partition, at in sorted(stored.items())
        if not held[partition] <= at <= ends[partition]
    ]


def refuse_lost(state: TrainerState, event_log: EventLog, home: object) -> None:
    """Check that the log holds the next record of each partition.

    Raises:
        PositionLost: it does not; the message says how to continue.
        Unavailable: the log is away.
    """
    gone = lost(state, event_log)
    if gone:
        raise PositionLost(
            f"the log no longer holds the records that the trainer reads next: {'; '.join(map(described, gone))}. Restore the log; or "
            f"give the missing samples up: millrace training --home {home} --from earliest (or now)",
            skipped=[item._asdict() for item in gone],
        )


def described(skipped: SkippedRange) -> str:
    """The range as text for operators."""
    return f"{EXPERIENCES}/{skipped.partition} from {skipped.start} to {skipped.end} ({skipped.number} records)"


def skip(state: TrainerState, event_log: EventLog, where: SkipTo) -> list[SkippedRange]:
    """Move positions: lost ones to the oldest record in the log (`earliest`), or all to its end (`now`)."""
    if where == "earliest":
        skipped = lost(state, event_log)
    else:
        positions = state.positions.get(EXPERIENCES, {})
        ends = event_log.ends(EXPERIENCES)
        skipped = [SkippedRange(partition, positions.get(partition, 0), end) for partition, end in sorted(ends.items())]
    positions = state.positions.setdefault(EXPERIENCES, {})
    positions.update({item.partition: item.end for item in skipped})
    return [item for item in skipped if item.start != item.end]


def write_off(
    state: TrainerState, database: Database, event_log: EventLog, positions: Mapping[int, int], now: float
) -> list[str]:
    """Decide the undecided samples with a reward whose experience lies before these positions; returns their keys.

    The offset of a lost experience is unknown, but a partition is roughly in the order of scoring: samples scored before all of
    the first remaining records count as lost. If one arrives after all, its key is known, and it is not trained.
    """
    cuts = {partition: _first_scored(event_log, partition, offset, now) for partition, offset in positions.items()}
    found: list[str] = []
    for page in _undecided(database, cuts):
        for row in page:
            if row.key not in state.fates and row.scored_at < cuts[row.partition]:
                state.fates[row.key] = Fate(row.revision, "stale", LOST)
                found.append(row.key)
        step_done()
        log.info("searching for samples whose experience is lost", num_lost=len(found))
    return found


def _first_scored(event_log: EventLog, partition: int, offset: int, now: float) -> float:
    """The earliest scoring time of the next records, in UTC epoch seconds; `now` if none can be read."""
    times = [now]
    for record in event_log.read(EXPERIENCES, partition, offset, _LOOK):
        with suppress(InvalidRecord):
            times.append(decode(Experience, record.value).scored_at)
    return min(times)


def _undecided(database: Database, cuts: Mapping[int, float]) -> Iterator[list[repository.Undecided]]:
    after: tuple[str, int] | None = ("", -1)
    while after is not None:
        with database.snapshot() as connection:
            page, after = repository.undecided(connection, sorted(cuts), after)
        yield page
