"""Fill the intake from the log, and say how far the trainer is behind: only it knows its positions.

In: records of experiences, and the tokens that they point to. Out: samples that wait, fates that a later revision changed, dead letters,
gauges. Waits for: the log.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from contracts.records import Experience, decode
from contracts.segments import whole
from contracts.topics import EXPERIENCES
from pipelines.training.known.experiences import is_learnable, newest_version
from pipelines.training.repository import CONSUMER_GROUP
from runtime.bisection import is_of_a_record
from runtime.log.answers import with_answers
from runtime.log.dead_letters import bury
from runtime.metrics import BEHIND_SECONDS, LAG_RECORDS, RECORDS, TRAINING_CORRECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contracts.event_log import Consumer, EventLog, LogRecord
    from pipelines.training.samples.intake import Intake
    from pipelines.training.state import TrainerState
    from runtime.database import Database
    from runtime.lease import Lease

_MOST_POLLS = 256
"""Per turn. A log full of unrewarded records must not keep the trainer from its other duties."""
LOOK_SECONDS = 5.0


class ExperienceReader:
    """One per trainer, in its thread."""

    def __init__(
        self,
        state: TrainerState,
        intake: Intake,
        lease: Lease,
        lag: TrainingLag,
        *,
        num_missing: Callable[[], int],
        was_read: Callable[[Experience], None],
        event_log: EventLog,
        database: Database,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`num_missing`: samples that a full batch still needs. `clock` gives UTC epoch seconds, `monotonic` seconds for timers."""
        self._state, self._intake = state, intake
        self._num_missing, self._was_read = num_missing, was_read
        self._lease, self._lag = lease, lag
        self._log, self._database = event_log, database
        self._clock, self._monotonic = clock, monotonic

    def fill(self, consumer: Consumer, timeout: float) -> int:
        """Fill the intake up to one batch; returns the number of records. Those left in the log can still be revised, and cost nothing.

        It polls again after records without a reward, so they do not make batches smaller.
        """
        num_records = 0
        for number in range(_MOST_POLLS):
            records = consumer.poll(0.0 if number else timeout, max(self._num_missing(), 1))
            for record in with_answers(self._log, self._database, records):
                self.take(record)
            self._lag.note(records)
            num_records += len(records)
            if not records or self._num_missing() == 0:
                break
        self._lag.look()
        return num_records

    def take(self, record: LogRecord) -> None:
        """Take in one record. One that cannot be read becomes a dead letter with its traceback."""
        try:
            experience = whole(decode(Experience, record.value), record.answer)
            self._was_read(experience)
            changed, key = self._intake.offer(record, experience, self._monotonic()), experience.key
        except Exception as error:
            if not is_of_a_record(error):  # for example a newer schema: the record waits in the log for an upgrade
                raise
            with self._lease.transaction() as connection:
                bury(connection, CONSUMER_GROUP, record, error, self._clock())
            changed, key = None, ""
        self._intake.passed(record)
        if changed is not None:
            self._state.note(key)
            if changed.late_reason:
                TRAINING_CORRECTIONS.labels(changed.late_reason).inc()


class TrainingLag:
    """One per trainer. `position`: the next offset of a partition; `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    def __init__(
        self,
        event_log: EventLog,
        position: Callable[[str, int], int],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._event_log, self._position = event_log, position
        self._clock, self._monotonic = clock, monotonic
        self._look_at = float("-inf")

    def note(self, records: Sequence[LogRecord]) -> None:
        """Note what one poll returned."""
        behind = self._clock() - min(record.appended_at for record in records) if records else 0.0
        BEHIND_SECONDS.labels(CONSUMER_GROUP).set(max(0.0, behind))
        for topic, num in Counter(record.topic for record in records).items():
            RECORDS.labels(CONSUMER_GROUP, topic).inc(num)

    def look(self) -> None:
        """Count the records that wait, at most every `LOOK_SECONDS`. Raises Unavailable."""
        if (now := self._monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        for partition, end in self._event_log.ends(EXPERIENCES).items():
            waiting = max(0, end - self._position(EXPERIENCES, partition))
            LAG_RECORDS.labels(CONSUMER_GROUP, EXPERIENCES, str(partition)).set(waiting)


class NullMass:
    """Shares of records without a reward, per version that generated them: a policy may learn to avoid scoring."""

    def __init__(self) -> None:
        self._read: Counter[int] = Counter()
        self._null: Counter[int] = Counter()

    def add(self, experience: Experience) -> None:
        """Count the experience if it is from a user's generation."""
        if experience.purpose == "user":
            version = newest_version(experience)
            self._read[version] += 1
            self._null[version] += not is_learnable(experience)

    def take(self) -> dict[str, float | dict[str, float]]:
        """The shares since the last call, in total and by version."""
        figures: dict[str, float | dict[str, float]] = {
            "null_mass": self._null.total() / max(self._read.total(), 1),
            "null_mass_of_version": {str(item): self._null[item] / num for item, num in sorted(self._read.items())},
        }
        self._read.clear()
        self._null.clear()
        return figures
