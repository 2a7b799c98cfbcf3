"""Records that cannot be read: kept with their reason, up to limits, so that a bad deploy stops instead of draining a topic.

Beside them, messages that the log refuses for good.

The limits count rows of the table, not what this process remembers: a worker that is started again stops again.
"""

from __future__ import annotations

import structlog
from sqlalchemy import Connection, func, select

from contracts.database import insert_new
from contracts.errors import InvalidRecord, RecordTooLarge, TooManyDeadLetters
from contracts.event_log import LogRecord
from contracts.metrics import DEAD_LETTERS
from contracts.tables import dead_letter

MAX_IN_A_ROW = 20
"""Of one partition: not one record between them could be read."""
MAX_OF_LATEST, LATEST = 100, 1000
"""So many of the latest so many offsets of one partition."""
MAX_DEAD_LETTERS = 10_000
"""Of a consumer group, until somebody clears them: the table is for looking, not for storing a topic."""

log = structlog.get_logger()


def bury(connection: Connection, group: str, record: LogRecord, error: InvalidRecord, now: float) -> None:
    """Keep a record that `group` cannot read; one that is read again is kept once.

    Raises:
        TooManyDeadLetters: they passed one of the limits above; this one was not skipped.
    """
    row = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    insert_new(connection, dead_letter, {"consumer_group": group, "reason": error.message, "at": now, **row})
    DEAD_LETTERS.labels(group).inc()
    log.error("dead letter", consumer_group=group, topic=record.topic, offset=record.offset, reason=error.message)
    if (problem := _problem(connection, group, record)) is not None:
        raise TooManyDeadLetters(
            f"{group} could not read {problem}, the last because: {error.message}. It was not skipped; mend the producer or "
            f"this process, clear the rows of {group} from the table dead_letter, and start again",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )


def keep_unsent(connection: Connection, process: str, record: LogRecord, error: RecordTooLarge, now: float) -> None:
    """Keep a message of `process` that the log will never take, instead of all that waits behind it.

    It has no offset: the record carries the number of its outbox row, negative.
    """
    row = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    insert_new(connection, dead_letter, {"consumer_group": process, "reason": error.message, "at": now, **row})
    DEAD_LETTERS.labels(process).inc()
    log.error("the log refuses a message for good", process=process, key=record.key, reason=error.message)


def _problem(connection: Connection, group: str, record: LogRecord) -> str | None:
    of_group = dead_letter.c.consumer_group == group
    here = of_group & (dead_letter.c.topic == record.topic) & (dead_letter.c.partition == record.partition)
    before = here & (dead_letter.c.offset <= record.offset)
    counts = [
        select(func.count()).where(condition).select_from(dead_letter).scalar_subquery()
        for condition in (
            before & (dead_letter.c.offset >= record.offset - MAX_IN_A_ROW),
            before & (dead_letter.c.offset > record.offset - LATEST),
            of_group,
        )
    ]
    in_a_row, of_latest, in_all = connection.execute(select(*counts)).one()
    where = f"of {record.topic}/{record.partition}"
    if in_a_row > MAX_IN_A_ROW:
        return f"{in_a_row} records in a row {where}"
    if of_latest > MAX_OF_LATEST:
        return f"{of_latest} of the latest {LATEST} records {where}"
    return f"{in_all} records in all" if in_all > MAX_DEAD_LETTERS else None
