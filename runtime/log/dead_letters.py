"""Records that cannot be processed: kept with reason and traceback, up to limits. Also messages that the log will never take.

The limits make a bad deploy halt instead of draining a topic. They count rows of the table with which nobody has dealt, not what this
process remembers: a worker that restarts halts again, until an operator redrives or skips the rows (`millrace dead-letters`).
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, func, select

from contracts.errors import MillraceError, RecordTooLarge, TooManyDeadLetters
from contracts.event_log import LogRecord
from contracts.tables import dead_letter
from contracts.tables.statements import insert_new
from runtime.metrics import DEAD_LETTERS

MAX_IN_A_ROW = 20
"""Consecutive dead letters of one partition. A handler that always fails halts here."""
MAX_OF_NEAREST, NEAREST = 30, 100
"""At most this many among the latest 100 offsets of a partition. If 60% of the records are bad at random, the worker halts within 100
offsets, except once in 10^9; at 10% it halts in one of 10^8 windows; at 1% never."""
MAX_OF_LATEST, LATEST = 100, 1000
"""The same over more records, for a lower rate: it halts at 15%, not at 5%."""
MAX_DEAD_LETTERS = 100_000
"""Of a consumer group, until an operator deals with them: five hours at 1% of 500 records a second. The alarm `DeadLetters` fires at
the first one."""
MAX_REASON, MAX_TRACEBACK = 2_000, 20_000
OPEN, SKIPPED, REDRIVEN = "open", "skipped", "redriven"

_Partition = tuple[str, int]

log = structlog.get_logger()


class Culprit(NamedTuple):
    """A record and why it cannot be processed."""

    record: LogRecord
    reason: str
    traceback: str | None = None


def culprit_of(record: LogRecord, error: BaseException) -> Culprit:
    """Describe a failure by the first line of its exception; an expected failure needs no traceback."""
    if isinstance(error, MillraceError):
        return Culprit(record, printable(error.message)[:MAX_REASON])
    first_line = (str(error).splitlines() or [""])[0]
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return Culprit(record, printable(reason)[:MAX_REASON], traceback_of(error))


def traceback_of(error: BaseException) -> str:
    """The traceback as text; of a long one the end, where the exception was raised."""
    return printable("".join(traceback.format_exception(error))[-MAX_TRACEBACK:])


def bury(connection: Connection, group: str, record: LogRecord, error: BaseException, now: float) -> None:
    """`bury_all` for one record."""
    bury_all(connection, group, [culprit_of(record, error)], now)


def bury_all(connection: Connection, group: str, culprits: Sequence[Culprit], now: float) -> None:
    """Keep records that `group` cannot process. A record that is read twice is kept once.

    `connection`: the transaction that moves the position past them; `culprits`: ordered by offset.

    Raises TooManyDeadLetters: a limit was passed; roll back, so that no record is skipped.
    """
    for culprit in culprits:
        _keep(connection, group, culprit, now)
        record, reason = culprit.record, culprit.reason
        log.error("dead letter", consumer_group=group, topic=record.topic, offset=record.offset, reason=reason)
    for place in dict.fromkeys((item.record.topic, item.record.partition) for item in culprits):
        here = [item for item in culprits if (item.record.topic, item.record.partition) == place]
        offsets = _open_offsets(connection, group, place, here[0].record.offset - LATEST)
        for item in here:
            if problem := problem_at(item.record.offset, offsets):
                raise _too_many(group, item, f"{problem} of {place[0]}/{place[1]}")
    if culprits and (in_all := num_open(connection, group)) > MAX_DEAD_LETTERS:
        raise _too_many(group, culprits[-1], f"{in_all} records in all")


def problem_at(offset: int, dead: Collection[int]) -> str:
    """The limit of a partition that dead letters up to an offset passed; empty if they passed no limit."""

    def num_of(length: int) -> int:
        return sum(offset - length < other <= offset for other in dead)

    if (num := num_of(MAX_IN_A_ROW + 1)) > MAX_IN_A_ROW:
        return f"{num} records in a row"
    for most, length in ((MAX_OF_NEAREST, NEAREST), (MAX_OF_LATEST, LATEST)):
        if (num := num_of(length)) > most:
            return f"{num} of the latest {length} records"
    return ""


def num_open(connection: Connection, group: str) -> int:
    """How many dead letters of a group are open."""
    statement = select(func.count()).where(dead_letter.c.consumer_group == group, dead_letter.c.state == OPEN)
    return connection.execute(statement.select_from(dead_letter)).scalar_one()


def keep_unsent(connection: Connection, process: str, record: LogRecord, error: RecordTooLarge, now: float) -> None:
    """Keep a message of `process` that the log will never take, so that it does not block later messages.

    It has no offset: the record carries a negative number, made of its outbox row.
    """
    _keep(connection, process, Culprit(record, printable(error.message)), now)
    log.error("the log will never take this message", process=process, key=record.key, reason=error.message)


def printable(text: str) -> str:
    """Escape characters that not every database can store as text."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _keep(connection: Connection, group: str, culprit: Culprit, now: float) -> None:
    record, reason, trace = culprit
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    row = {"consumer_group": group, "reason": reason, "traceback": trace, "at": now, "key": printable(record.key)}
    if insert_new(connection, dead_letter, row | place):
        DEAD_LETTERS.labels(group).inc()


def _open_offsets(connection: Connection, group: str, place: _Partition, after: int) -> Collection[int]:
    columns = dead_letter.c
    here = (columns.consumer_group == group, columns.topic == place[0], columns.partition == place[1])
    statement = select(columns.offset).where(*here, columns.offset > after, columns.state == OPEN)
    return connection.execute(statement).scalars().all()


def _too_many(group: str, last: Culprit, problem: str) -> TooManyDeadLetters:
    return TooManyDeadLetters(
        f"{group} could not process {problem}, the last because: {last.reason}. No record was skipped. Fix the producer or this "
        f"process, then redrive or skip the dead letters (millrace dead-letters list --process {group}); it continues by itself",
        process=group,
        topic=last.record.topic,
        partition=last.record.partition,
        offset=last.record.offset,
    )
