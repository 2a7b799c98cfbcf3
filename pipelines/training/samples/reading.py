"""Fill the intake from the log.

In: records of experiences, and the tokens that they point to. Out: samples that wait, fates that a later revision changed, dead letters. Waits for: the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.records import Experience, decode
from contracts.segments import whole
from pipelines.training import repository
from runtime.bisection import is_of_a_record
from runtime.log.answers import with_answers
from runtime.log.dead_letters import bury
from runtime.metrics import TRAINING_CORRECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from contracts.event_log import Consumer, EventLog, LogRecord
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.lag import TrainingLag
    from pipelines.training.state import TrainerState
    from pipelines.training.steps import Steps
    from runtime.database import Database
    from runtime.lease import Lease

_MOST_POLLS = 256
"""Per turn. A log full of unrewarded records must not keep the trainer from its other duties."""


class ExperienceReader:
    """One per trainer, in its thread."""

    def __init__(
        self,
        state: TrainerState,
        intake: Intake,
        steps: Steps,
        lease: Lease,
        lag: TrainingLag,
        *,
        event_log: EventLog,
        database: Database,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` gives UTC epoch seconds, `monotonic` seconds for timers."""
        self._state, self._intake, self._steps = state, intake, steps
        self._lease, self._lag = lease, lag
        self._log, self._database = event_log, database
        self._clock, self._monotonic = clock, monotonic

    def fill(self, consumer: Consumer, timeout: float) -> int:
        """Fill the intake up to one batch; returns the number of records. Those left in the log can still be revised, and cost nothing.

        It polls again after records without a reward, so they do not make batches smaller.
        """
        num_records = 0
        for number in range(_MOST_POLLS):
            records = consumer.poll(0.0 if number else timeout, max(self._steps.num_missing, 1))
            for record in with_answers(self._log, self._database, records):
                self._take(record)
            self._lag.note(records)
            num_records += len(records)
            if not records or self._steps.num_missing == 0:
                break
        self._lag.look()
        return num_records

    def _take(self, record: LogRecord) -> None:
        """Take in one record. One that cannot be read becomes a dead letter with its traceback."""
        try:
            experience = whole(decode(Experience, record.value), record.answer)
            self._steps.was_read(experience)
            changed, key = self._intake.offer(record, experience, self._monotonic()), experience.key
        except Exception as error:
            if not is_of_a_record(error):  # for example a newer schema: the record waits in the log for an upgrade
                raise
            with self._lease.transaction() as connection:
                bury(connection, repository.CONSUMER_GROUP, record, error, self._clock())
            changed, key = None, ""
        self._intake.passed(record)
        if changed is not None:
            self._state.note(key)
            if changed.late_reason:
                TRAINING_CORRECTIONS.labels(changed.late_reason).inc()
