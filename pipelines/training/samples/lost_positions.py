"""Positions that the log no longer holds: detected, and skipped only if an operator says so.

Then every unread sample that can no longer be read is `stale(position_lost)`.
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
    from collections.abc import Mapping

    from contracts.event_log import EventLog
    from pipelines.training.state import TrainerState
    from pipelines.training.surroundings import Surroundings

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


def first_offsets(event_log: EventLog, wanted: Mapping[int, int] = {}) -> dict[int, int]:
    """Partition to the offset of the oldest experience in the log from `wanted` on, or of the next one if there is none."""
    found = {}
    for partition, end in event_log.ends(EXPERIENCES).items():
        first = event_log.read(EXPERIENCES, partition, wanted.get(partition, 0), 1)
        found[partition] = first[0].offset if first else end
    return found


def lost(state: TrainerState, event_log: EventLog) -> list[SkippedRange]:
    """Partitions whose position is outside the log, with the range up to the oldest record."""
    held, ends = first_offsets(event_log), event_log.ends(EXPERIENCES)
    positions = state.positions.get(EXPERIENCES, {})
    ranges = (SkippedRange(partition, positions.get(partition, 0), end) for partition, end in sorted(held.items()))
    return [item for item in ranges if not item.end <= item.start <= ends[item.partition]]


def refuse_lost(state: TrainerState, event_log: EventLog, home: object) -> None:
    """Check that the log holds the next record of each partition. Raises PositionLost: it does not; Unavailable."""
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
    positions = state.positions.setdefault(EXPERIENCES, {})
    if where == "earliest":
        skipped = lost(state, event_log)
    else:
        ends = event_log.ends(EXPERIENCES)
        skipped = [SkippedRange(partition, positions.get(partition, 0), end) for partition, end in sorted(ends.items())]
    positions.update({item.partition: item.end for item in skipped})
    return [item for item in skipped if item.start != item.end]


def write_off(around: Surroundings, state: TrainerState, positions: Mapping[int, int]) -> list[str]:
    """Decide the undecided samples with a reward whose experience lies before these positions; returns their keys.

    The offset of a lost experience is unknown, but a partition is roughly in the order of scoring: samples scored before all of
    the first remaining records count as lost. If one arrives after all, its key is known, and it is not trained.
    """
    now = around.clock()
    cuts = {partition: _first_scored(around.event_log, partition, at, now) for partition, at in positions.items()}
    found: list[str] = []
    after: tuple[str, int] | None = ("", -1)
    while after is not None:
        with around.database.snapshot() as connection:
            page, after = repository.undecided(connection, sorted(cuts), after)
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
