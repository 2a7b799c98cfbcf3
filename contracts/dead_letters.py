"""Records that cannot be read: kept with their reason, up to a limit, so that a bad deploy stops instead of draining a topic."""

from __future__ import annotations

import structlog
from sqlalchemy import Connection, func, select

from contracts.database import insert_new
from contracts.errors import InvalidRecord, TooManyDeadLetters
from contracts.event_log import LogRecord
from contracts.tables import dead_letter

MAX_DEAD_LETTERS = 100

log = structlog.get_logger()


def bury(connection: Connection, group: str, record: LogRecord, error: InvalidRecord, now: float) -> None:
    """Keep a record that `group` cannot read; one that is read again is kept once.

    Raises:
        TooManyDeadLetters: the group has buried more than MAX_DEAD_LETTERS.
    """
    row = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    insert_new(connection, dead_letter, {"consumer_group": group, "reason": error.message, "at": now, **row})
    log.error("dead letter", consumer_group=group, topic=record.topic, offset=record.offset, reason=error.message)
    statement = select(func.count()).select_from(dead_letter).where(dead_letter.c.consumer_group == group)
    if (count := connection.execute(statement).scalar_one()) > MAX_DEAD_LETTERS:
        raise TooManyDeadLetters(
            f"{group} could not read {count} records, the last because: {error.message}. Nothing was skipped beyond "
            f"those; mend the producer or this process, clear the table dead_letter, and start again",
        )
