"""Positions that the log does not hold any more: noticed, and given up by name when an operator says so.

In: the positions of a checkpoint, the ends of the log. Out: `PositionLost`; or other positions, and the fate of every sample
that was never read and now cannot be: `stale(position_lost)`. Waits for nothing.
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
    """Records of one partition that are not read: from one offset up to another."""

    partition: int
    start: int
    end: int

    @property
    def number(self) -> int:
        """How many; 0 if the log was made again and is shorter than it was."""
        return max(0, self.end - self.start)


def first_offsets(event_log: EventLog) -> dict[int, int]:
    """Partition to the oldest experience that the log holds, or to where the next one will lie.

    Raises:
        Unavailable: the log is away.
    """
    found = {}
    for partition, end in event_log.ends(EXPERIENCES).items():
        first = event_log.read(EXPERIENCES, partition, 0, 1)
        found[partition] = first[0].offset if first else end
    return found


def lost(state: TrainerState, event_log: EventLog) -> list[SkippedRange]:
    """Partitions whose position lies outside of what the log holds, and where it begins."""
    held, ends = first_offsets(event_log), event_log.ends(EXPERIENCES)
    positions = state.positions.get(EXPERIENCES, {})
    stored = {partition: positions.get(partition, 0) for partition in held}
    return [
        SkippedRange(partition, at, held[partition])
        for partition, at in sorted(stored.items())
        if not held[partition] <= at <= ends[partition]
    ]


def refuse_lost(state: TrainerState, event_log: EventLog, home: object) -> None:
    """Skip nothing in silence.

    Raises:
        PositionLost: the log does not hold what comes next; the message names the command that goes on.
        Unavailable: the log is away.
    """
    gone = lost(state, event_log)
    if gone:
        raise PositionLost(
            f"the trainer would read on from what the log does not hold: {'; '.join(map(described, gone))}. Restore the log; or "
            f"write off what is missing: millrace training --home {home} --from earliest (or now)",
            skipped=[item._asdict() for item in gone],
        )


def described(skipped: SkippedRange) -> str:
    """For people."""
    return f"{EXPERIENCES}/{skipped.partition} from {skipped.start} to {skipped.end} ({skipped.number} records)"


def skip(state: TrainerState, event_log: EventLog, where: SkipTo) -> list[SkippedRange]:
    """Move positions: lost ones to the oldest record there is, or all to the end of the log."""
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
) -> int:
    """Name what has a reward, is not decided, and whose experience lies before these positions; returns how many.

    Where an experience lay is not known any more, but a partition is about in the order of scoring: what was scored before
    all of the first records that are left is gone. One that comes after all is then known by its key, and not trained.
    """
    cuts = {partition: _first_scored(event_log, partition, offset, now) for partition, offset in positions.items()}
    num_lost = 0
    for page in _undecided(database, cuts):
        for row in page:
            if row.key not in state.fates and row.scored_at < cuts[row.partition]:
                state.fates[row.key] = Fate(row.revision, "stale", LOST)
                num_lost += 1
        step_done()
        log.info("looking for samples whose experience is lost", num_lost=num_lost)
    return num_lost


def _first_scored(event_log: EventLog, partition: int, offset: int, now: float) -> float:
    """UTC epoch seconds; `now` if nothing can be read there."""
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
