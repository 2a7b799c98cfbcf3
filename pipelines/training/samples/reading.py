"""Fill the intake from the log, and say how far the trainer is behind: only it knows its positions. Waits for: the log."""

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

    from contracts.event_log import Consumer, LogRecord
    from pipelines.training.samples.intake import Intake
    from pipelines.training.surroundings import Surroundings

_MOST_POLLS = 256
"""Per turn. A log full of unrewarded records must not keep the trainer from its other duties."""
LOOK_SECONDS = 5.0


class ExperienceReader:
    """One per trainer, in its thread."""

    def __init__(
        self,
        around: Surroundings,
        intake: Intake,
        num_missing: Callable[[], int],
        read: Callable[[Experience, bytes | None], Experience],
    ) -> None:
        """`num_missing`: samples that a full batch still needs. `read`: what a step makes of one that was read, and of its answer in the log."""
        self._around, self._intake, self._num_missing, self._read = around, intake, num_missing, read
        self._look_at = float("-inf")

    def fill(self, consumer: Consumer, timeout: float) -> int:
        """Fill the intake up to one batch; returns the number of records. Those left in the log can still be revised, and cost nothing.

        It polls again after records without a reward, so they do not make batches smaller.
        """
        num_records = 0
        for number in range(_MOST_POLLS):
            records = consumer.poll(0.0 if number else timeout, max(self._num_missing(), 1))
            for record in with_answers(self._around.event_log, self._around.database, records):
                self.take(record)
            self.note(records)
            num_records += len(records)
            if not records or self._num_missing() == 0:
                break
        self._look()
        return num_records

    def take(self, record: LogRecord) -> None:
        """Take in one record. One that cannot be read becomes a dead letter with its traceback."""
        try:
            experience = self._read(whole(decode(Experience, record.value), record.answer), record.answer)
            changed, key = self._intake.offer(record, experience, self._around.monotonic()), experience.key
        except Exception as error:
            if not is_of_a_record(error):  # for example a newer schema: the record waits in the log for an upgrade
                raise
            with self._around.lease.transaction() as connection:
                bury(connection, CONSUMER_GROUP, record, error, self._around.clock())
            changed, key = None, ""
        self._intake.passed(record)
        if changed is not None:
            self._intake.state.note(key)
            if changed.late_reason:
                TRAINING_CORRECTIONS.labels(changed.late_reason).inc()

    def note(self, records: Sequence[LogRecord]) -> None:
        """Note in the gauges what one poll returned."""
        behind = self._around.clock() - min(record.appended_at for record in records) if records else 0.0
        BEHIND_SECONDS.labels(CONSUMER_GROUP).set(max(0.0, behind))
        for topic, num in Counter(record.topic for record in records).items():
            RECORDS.labels(CONSUMER_GROUP, topic).inc(num)

    def _look(self) -> None:
        """Count the records that wait, at most every `LOOK_SECONDS`. Raises Unavailable."""
        if (now := self._around.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        for partition, end in self._around.event_log.ends(EXPERIENCES).items():
            waiting = max(0, end - self._intake.position(partition))
            LAG_RECORDS.labels(CONSUMER_GROUP, EXPERIENCES, str(partition)).set(waiting)


class NullMass:
    """Shares of records without a reward, per version that generated them: a policy may learn to avoid scoring."""

    def __init__(self) -> None:
        self._read, self._null = Counter[int](), Counter[int]()

    def add(self, experience: Experience) -> None:
        """Count the experience if it is from a user's generation."""
        if experience.purpose == "user":
            version = newest_version(experience)
            self._read[version] += 1
            self._null[version] += not is_learnable(experience)

    def take(self) -> dict[str, float | dict[str, float]]:
        """The shares since the last call, in total and by version."""
        read, null = self._read, self._null
        self._read, self._null = Counter[int](), Counter[int]()
        return {
            "null_mass": null.total() / max(read.total(), 1),
            "null_mass_of_version": {str(version): null[version] / num for version, num in sorted(read.items())},
        }
