"""Records that cannot be processed: kept with reason and traceback, up to limits.

So a bad deploy stops instead of draining a topic. Beside them, messages that the log refuses for good.

The limits count rows of the table that nobody has dealt with, not what this process remembers: a worker that is started again
stops again, until somebody redrives or skips them (`millrace dead-letters`).
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, func, select

from contracts.errors import MillraceError, RecordTooLarge, TooManyDeadLetters
from contracts.event_log import LogRecord
from contracts.tables import dead_letter
from contracts.tables.statements import insert_new
from runtime.metrics import DEAD_LETTERS

MAX_IN_A_ROW = 20
"""Of one partition: not one record between them could be processed. A handler that fails always stops here."""
MAX_OF_NEAREST, NEAREST = 30, 100
"""So many of the latest so many offsets of one partition: of records that are bad at random, 60% stop within 100 offsets
except once in 10^9, 10% go past a window once in 10^8, and 1% never do."""
MAX_OF_LATEST, LATEST = 100, 1000
"""The same over a longer stretch, for what is bad more slowly: 15% stop, 5% do not."""
MAX_DEAD_LETTERS = 100_000
"""Of a consumer group, until somebody deals with them: five hours of 1% at 500 records a second. The alarm `DeadLetters` rings
from the first one."""
MAX_REASON, MAX_TRACEBACK = 2_000, 20_000
OPEN, SKIPPED, REDRIVEN = "open", "skipped", "redriven"

_Place = tuple[str, int]

log = structlog.get_logger()


class Culprit(NamedTuple):
    """A record and why it cannot be processed."""

    record: LogRecord
    reason: str
    traceback: str | None = None


def culprit_of(record: LogRecord, error: BaseException) -> Culprit:
    """With the first line of what was raised; an expected failure says enough without a traceback."""
    if isinstance(error, MillraceError):
        return Culprit(record, printable(error.message)[:MAX_REASON])
    first_line = (str(error).splitlines() or [""])[0]
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return Culprit(record, printable(reason)[:MAX_REASON], traceback_of(error))


def traceback_of(error: BaseException) -> str:
    """As text; of a long one the end, which is where it was raised."""
    return printable("".join(traceback.format_exception(error))[-MAX_TRACEBACK:])


def bury(connection: Connection, group: str, record: LogRecord, error: BaseException, now: float) -> None:
    """`bury_all` for one."""
    bury_all(connection, group, [culprit_of(record, error)], now)


def bury_all(connection: Connection, group: str, culprits: Sequence[Culprit], now: float) -> None:
    """Keep records that `group` cannot process; one that is read again is kept once.

    Args:
        connection: of the transaction that moves past them.
        group: the process.
        culprits: in the order of their offsets.
        now: UTC epoch seconds.

    Raises:
        TooManyDeadLetters: they passed one of the limits above; none of them was skipped.
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
    """Which limit of a partition the dead letters up to an offset passed; empty if none."""

    def num_of(length: int) -> int:
        return sum(offset - length < other <= offset for other in dead)

    if (num := num_of(MAX_IN_A_ROW + 1)) > MAX_IN_A_ROW:
        return f"{num} records in a row"
    for most, length in ((MAX_OF_NEAREST, NEAREST), (MAX_OF_LATEST, LATEST)):
        if (num := num_of(length)) > most:
            return f"{num} of the latest {length} records"
    return ""


def num_open(connection: Connection, group: str) -> int:
    """How many of a group nobody has dealt with."""
    statement = select(func.count()).where(dead_letter.c.consumer_group == group, dead_letter.c.state == OPEN)
    return connection.execute(statement.select_from(dead_letter)).scalar_one()


def keep_unsent(connection: Connection, process: str, record: LogRecord, error: RecordTooLarge, now: float) -> None:
    """Keep a message of `process` that the log will never take, instead of all that waits behind it.

    It has no offset: the record carries the number of its outbox row, negative.
    """
    _keep(connection, process, Culprit(record, printable(error.message)), now)
    log.error("the log refuses a message for good", process=process, key=record.key, reason=error.message)


def printable(text: str) -> str:
    """What every database keeps as text."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _keep(connection: Connection, group: str, culprit: Culprit, now: float) -> None:
    record, reason, told = culprit
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    row = {"consumer_group": group, "reason": reason, "traceback": told, "at": now, "key": printable(record.key)}
    if insert_new(connection, dead_letter, row | place):
        DEAD_LETTERS.labels(group).inc()


def _open_offsets(connection: Connection, group: str, place: _Place, after: int) -> Collection[int]:
    columns = dead_letter.c
    here = (columns.consumer_group == group, columns.topic == place[0], columns.partition == place[1])
    found: Iterable[int] = connection.execute(
        select(columns.offset).where(*here, columns.offset > after, columns.state == OPEN)
    ).scalars()
    return list(found)


def _too_many(group: str, last: Culprit, problem: str) -> TooManyDeadLetters:
    return TooManyDeadLetters(
        f"{group} could not process {problem}, the last because: {last.reason}. It was not skipped; mend the producer or this "
        f"process, deal with those of {group} (millrace dead-letters list --process {group}, then redrive or skip), and it goes "
        "on",
        process=group,
        topic=last.record.topic,
        partition=last.record.partition,
        offset=last.record.offset,
    )
