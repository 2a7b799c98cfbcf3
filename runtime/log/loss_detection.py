"""Detects that the log is not the one that the database was written with, or has lost records, before the log is used.

In: the extent of the log now, and the table `log_topic`. Out: nothing, or an error that lists everything missing. Waits for: nothing.

Positions of workers are offsets in one particular log. In another log they would silently skip new records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, select

from contracts.errors import InvalidSettings, LogLost, MillraceError, PositionLost, Unavailable
from contracts.event_log import EventLog, TopicState
from contracts.tables import log_topic, position
from contracts.tables.statements import insert_or_update
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.database import Database
from runtime.metrics import LOG_LOST_RECORDS

PositionKey = tuple[str, str, int]
READERS = {GENERATIONS: "episodes", SIGNALS: "episodes", OUTCOMES: "episodes", EPISODES: "rewards"}
"""Topic to the group that reads it, if its positions are in the database. The trainer's positions are in its checkpoint."""
EVIDENCE, TELEMETRY = "release", "telemetry"
"""The groups that read what the release train compares, and what leaves as spans."""
FOLLOWERS = (EVIDENCE, TELEMETRY)
"""They may skip records, so nothing is lost with their positions."""
NOTE_SECONDS = 60.0
_EXPIRED = "expired"
_MEANING = {
    GENERATIONS: "answers that the join had not read are lost for training",
    SIGNALS: "they are sent again from the database",
    EPISODES: "episodes that rewards had not scored are emitted again, as later revisions",
    EXPERIENCES: "samples that training had not decided are emitted and scored again, as later revisions",
    OUTCOMES: "outcomes that the ledger had not read are decided again",
}

log = structlog.get_logger()


class KnownTopic(NamedTuple):
    """The extent of a topic as the database remembers it."""

    identity: str
    ends: dict[int, int]


class LostRange(NamedTuple):
    """Offsets [first, end) of a partition that the log no longer has, although the database relies on them."""

    topic: str
    partition: int
    first: int
    end: int
    why: str
    """`missing`, `another`, `shorter` or `expired`."""
    unread: dict[str, int]
    """Consumer group to how many of these records it had not read."""


def find_lost(
    known: Mapping[str, KnownTopic], positions: Mapping[PositionKey, int], found: Mapping[str, TopicState]
) -> list[LostRange]:
    """Compare what the database remembers with the log, as it is `found`. Pure. `positions`: the next offset of each worker."""
    read: dict[tuple[str, int], dict[str, int]] = {}
    for (group, topic, partition), offset in positions.items():
        read.setdefault((topic, partition), {})[group] = offset
    for topic, group in READERS.items():  # a group without a position is at the beginning
        for partition in known[topic].ends if topic in known else ():
            read.setdefault((topic, partition), {}).setdefault(group, 0)
    places = {*read, *((topic, partition) for topic, item in known.items() for partition in item.ends)}
    lost = []
    for topic, partition in sorted(places):
        groups = read.get((topic, partition), {})
        before, now = known.get(topic), found.get(topic)
        end = max([0, before.ends.get(partition, 0) if before else 0, *groups.values()])
        ranges = _missing(before, now, partition, end, min(groups.values(), default=None))
        for why, first, after in ranges:
            unread = {group: max(0, after - max(first, offset)) for group, offset in groups.items()}
            lost.append(LostRange(topic, partition, first, after, why, unread))
    return lost


def _missing(
    known: KnownTopic | None, now: TopicState | None, partition: int, end: int, unread_from: int | None
) -> list[tuple[str, int, int]]:
    if now is None or (known is not None and known.identity != now.identity):
        return [("missing" if now is None else "another", 0, end)] if end else []
    first, after = now.beginnings.get(partition, 0), now.ends.get(partition, 0)
    expired_from = first if unread_from is None else unread_from
    return [item for item in (("shorter", after, end), (_EXPIRED, expired_from, first)) if item[1] < item[2]]


def losses(database: Database, event_log: EventLog) -> list[LostRange]:
    """What is missing now. Raises Unavailable: log or database do not answer; Damaged: one of their files cannot be read."""
    with database.snapshot() as connection:
        known, positions = read_known(connection), read_positions(connection)
    return find_lost(known, positions, event_log.describe())


def require_same_log(database: Database, event_log: EventLog, home: object) -> None:
    """Refuse a log that does not belong to this database, or that lost records; otherwise note its extent.

    Raises LogLost: a topic is missing, is another one, or is shorter than it was; PositionLost: records were deleted that a worker had not
    read; InvalidSettings: the records were written under another number of partitions; Unavailable, Damaged: see `losses`.
    """
    _require_same_partitions(database, event_log.num_partitions)
    if lost := losses(database, event_log):
        raise refusal(lost, home)
    note(database, event_log.describe(), time.time())


def _require_same_partitions(database: Database, num_partitions: int) -> None:
    """Someone may have added partitions to the topics, and then to the settings: the topics alone would look right."""
    with database.snapshot() as connection:
        known = read_known(connection)
    for topic, item in known.items():
        if len(item.ends) != num_partitions and any(item.ends.values()):
            raise InvalidSettings(
                f"partitions is {num_partitions}, and the records of {topic} were written to {len(item.ends)}: this number can never "
                f"change, because records that belong together meet by it. Set partitions = {len(item.ends)}, or begin with a new "
                "database and a new log"
            )


def refusal(lost: Sequence[LostRange], home: object) -> LogLost | PositionLost:
    """The error: what is missing, what that means, and the command that accepts it."""
    kind = PositionLost if all(item.why == _EXPIRED for item in lost) else LogLost
    topics = dict.fromkeys(item.topic for item in lost)
    meaning = "; ".join(f"{topic}: {_MEANING.get(topic, 'they are gone')}" for topic in topics)
    return kind(
        f"the log is not the one that this database was written with. {'. '.join(in_words(lost))}. Nothing was skipped. "
        f"Restore the log; or accept the loss ({meaning}): `millrace log accept-loss --home {home}` shows the effects, and "
        "--yes accepts it",
        lost=[item._asdict() for item in lost],
    )


def in_words(lost: Sequence[LostRange]) -> list[str]:
    """One line for each topic and reason."""
    found: dict[tuple[str, str], list[LostRange]] = {}
    for item in lost:
        found.setdefault((item.topic, item.why), []).append(item)
    return [_line(topic, why, items) for (topic, why), items in found.items()]


def _line(topic: str, why: str, items: Sequence[LostRange]) -> str:
    unread: Counter[str] = Counter()
    for item in items:
        unread.update(item.unread)
    parts = [f"{number} not read by {group}" for group, number in sorted(unread.items()) if number] or [
        "all of them were read"
    ]
    where = ", ".join(f"{item.partition}: {item.first} to {item.end}" for item in items)
    number = sum(item.end - item.first for item in items)
    return f"{topic} is {why}: {number} records are gone, {', '.join(parts)} ({where})"


def note(database: Database, found: Mapping[str, TopicState], now: float) -> None:
    """Remember the extent of the log, unless it contradicts what is already remembered."""
    with database.transaction() as connection:
        remembered = read_known(connection)
        for topic, state in found.items():
            known = remembered.get(topic)
            is_same = known is None or known.identity == state.identity
            # Another topic is noted if the remembered one was empty.
            if known is None or (_is_further(known, state) if is_same else not any(known.ends.values())):
                write_known(connection, topic, state, now)


def _is_further(known: KnownTopic, state: TopicState) -> bool:
    return all(state.ends.get(partition, 0) >= end for partition, end in known.ends.items())


def write_known(connection: Connection, topic: str, state: TopicState, now: float) -> None:
    """Remember the extent of a topic."""
    ends = {str(partition): end for partition, end in state.ends.items()}
    row = {"topic": topic, "identity": state.identity, "ends": ends, "seen_at": now}
    insert_or_update(connection, log_topic, row, ("identity", "ends", "seen_at"))


def read_known(connection: Connection) -> dict[str, KnownTopic]:
    """What the database remembers, by topic."""
    rows = connection.execute(select(log_topic.c.topic, log_topic.c.identity, log_topic.c.ends))
    return {row.topic: KnownTopic(row.identity, {int(name): end for name, end in row.ends.items()}) for row in rows}


def read_positions(connection: Connection) -> dict[PositionKey, int]:
    """The next offset of each worker that must read every record, without the trainer, whose positions are in its checkpoint."""
    statement = select(position).where(position.c.consumer_group.not_in(FOLLOWERS))
    return {(row.consumer_group, row.topic, row.partition): row.next_offset for row in connection.execute(statement)}


def keep_noting(database: Database, event_log: EventLog, stop: threading.Event, home: object) -> None:
    """Note the extent of the log once a minute, until `stop` is set. If records are lost meanwhile, a metric and a log line say it."""
    while not stop.is_set():
        try:
            require_same_log(database, event_log, home)
            LOG_LOST_RECORDS.set(0)
        except (Unavailable, InvalidSettings) as error:
            log.warning("log not checked", reason=error.message)
        except MillraceError as error:
            LOG_LOST_RECORDS.set(sum(item["end"] - item["first"] for item in error.facts["lost"]))  # type: ignore[attr-defined]
            log.error("log lost", reason=error.message)  # noqa: TRY400 not an error of this process
        stop.wait(NOTE_SECONDS)
    database.close()
