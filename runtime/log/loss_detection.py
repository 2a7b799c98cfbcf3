"""The log that the database was written with: remembered, so that another one, or less of it, is noticed before it is used.

In: what the log holds now, and the table `log_topic`. Out: nothing, or a refusal with everything that is missing. Waits for:
nothing.

Positions of workers are offsets in one certain log. Beside another one they would skip what comes, in silence.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, select

from contracts.errors import Damaged, LogLost, MillraceError, PositionLost, Unavailable
from contracts.event_log import EventLog, TopicState
from contracts.tables import log_topic, position
from contracts.tables.statements import insert_or_update
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.database import Database
from runtime.metrics import LOG_LOST_RECORDS

PositionKey = tuple[str, str, int]
"""Consumer group, topic, partition."""
READERS = {GENERATIONS: "episodes", SIGNALS: "episodes", OUTCOMES: "episodes", EPISODES: "rewards"}
"""Topic to the group whose positions are in the database; the trainer's are in its checkpoint."""
NOTE_SECONDS = 60.0
_EXPIRED = "expired"
_MEANING = {
    GENERATIONS: "answers that the join had not read can never be learned from",
    SIGNALS: "they are sent again from the database",
    EPISODES: "what rewards had not scored is emitted again, as a later revision",
    EXPERIENCES: "what training had not decided is emitted and scored again, as a later revision",
    OUTCOMES: "fates that the ledger had not heard are decided again",
}

log = structlog.get_logger()


class KnownTopic(NamedTuple):
    """What the database remembers of a topic."""

    identity: str
    ends: dict[int, int]


class LostRange(NamedTuple):
    """A stretch of a partition, [first, end), that the log does not hold although somebody relied on it."""

    topic: str
    partition: int
    first: int
    end: int
    why: str
    """`missing`, `another`, `shorter` or `expired`."""
    unread: dict[str, int]
    """Consumer group to how many of these records it had not read."""


def find_lost(
    seen: Mapping[str, KnownTopic], positions: Mapping[PositionKey, int], found: Mapping[str, TopicState]
) -> list[LostRange]:
    """Compare. Pure.

    Args:
        seen: what the database remembers, by topic; nothing of a database that no start has noted a log in.
        positions: the next offset of each worker.
        found: what the log holds now.
    """
    read: dict[tuple[str, int], dict[str, int]] = {}
    for (group, topic, partition), offset in positions.items():
        read.setdefault((topic, partition), {})[group] = offset
    for topic, group in READERS.items():  # one that has not begun is at the beginning
        for partition in seen[topic].ends if topic in seen else ():
            read.setdefault((topic, partition), {}).setdefault(group, 0)
    places = {*read, *((topic, partition) for topic, known in seen.items() for partition in known.ends)}
    lost = []
    for topic, partition in sorted(places):
        groups = read.get((topic, partition), {})
        known, now = seen.get(topic), found.get(topic)
        end = max([0, known.ends.get(partition, 0) if known else 0, *groups.values()])
        stretches = _missing(known, now, partition, end, min(groups.values(), default=None))
        for why, first, after in stretches:
            unread = {group: max(0, after - max(first, offset)) for group, offset in groups.items()}
            lost.append(LostRange(topic, partition, first, after, why, unread))
    return lost


def _missing(
    known: KnownTopic | None, now: TopicState | None, partition: int, end: int, unread_from: int | None
) -> list[tuple[str, int, int]]:
    if now is None or (known is not None and known.identity != now.identity):
        return [("missing" if now is None else "another", 0, end)] if end else []
    first, after = now.beginnings.get(partition, 0), now.ends.get(partition, 0)
    stretches = []
    if after < end:
        stretches.append(("shorter", after, end))
    if unread_from is not None and unread_from < first:
        stretches.append((_EXPIRED, unread_from, first))
    return [stretch for stretch in stretches if stretch[1] < stretch[2]]


def losses(database: Database, event_log: EventLog) -> list[LostRange]:
    """What is missing now.

    Raises:
        Unavailable: log or database cannot be asked.
        Damaged: a file of them cannot be read.
    """
    with database.snapshot() as connection:
        seen, positions = read_known(connection), read_positions(connection)
    return find_lost(seen, positions, event_log.describe())


def require_same_log(database: Database, event_log: EventLog, home: object) -> None:
    """Refuse a log that is not the one of this database, or less of it; else note how far it goes.

    Raises:
        LogLost: a topic is missing, another one, or shorter than it was.
        PositionLost: records are gone that a worker had not read.
        Unavailable, Damaged: see `losses`.
    """
    if lost := losses(database, event_log):
        raise refusal(lost, home)
    note(database, event_log.describe(), time.time())


def refusal(lost: Sequence[LostRange], home: object) -> LogLost | PositionLost:
    """What is missing, what it means, and the command that goes on."""
    kind = PositionLost if all(item.why == _EXPIRED for item in lost) else LogLost
    topics = dict.fromkeys(item.topic for item in lost)
    meaning = "; ".join(f"{topic}: {_MEANING.get(topic, 'they are gone')}" for topic in topics)
    return kind(
        f"the log is not the one that this database was written with. {'. '.join(in_words(lost))}. Nothing was skipped. "
        f"Restore the log; or go on without it ({meaning}): `millrace log accept-loss --home {home}` shows what that does, "
        "and with --yes does it",
        lost=[item._asdict() for item in lost],
    )


def in_words(lost: Sequence[LostRange]) -> list[str]:
    """A line for each topic and way of being lost."""
    found: dict[tuple[str, str], list[LostRange]] = {}
    for item in lost:
        found.setdefault((item.topic, item.why), []).append(item)
    return [_line(topic, why, items) for (topic, why), items in found.items()]


def _line(topic: str, why: str, items: Sequence[LostRange]) -> str:
    unread: Counter[str] = Counter()
    for item in items:
        unread.update(item.unread)
    parts = [f"{number} not read by {group}" for group, number in sorted(unread.items()) if number] or [
        "all of them read"
    ]
    where = ", ".join(f"{item.partition}: {item.first} to {item.end}" for item in items)
    number = sum(item.end - item.first for item in items)
    return f"{topic} is {why}: {number} records are gone, {', '.join(parts)} ({where})"


def note(database: Database, found: Mapping[str, TopicState], now: float) -> None:
    """Remember what the log holds, as far as it does not contradict what is remembered."""
    with database.transaction() as connection:
        seen = read_known(connection)
        for topic, state in found.items():
            known = seen.get(topic)
            if known is None or (known.identity == state.identity and _is_further(known, state)):
                write_known(connection, topic, state, now)
            elif known.identity != state.identity and not any(known.ends.values()):
                write_known(connection, topic, state, now)  # nothing had ever been in it


def _is_further(known: KnownTopic, state: TopicState) -> bool:
    return all(state.ends.get(partition, 0) >= end for partition, end in known.ends.items())


def write_known(connection: Connection, topic: str, state: TopicState, now: float) -> None:
    """Remember a topic as it is now."""
    ends = {str(partition): end for partition, end in state.ends.items()}
    row = {"topic": topic, "identity": state.identity, "ends": ends, "seen_at": now}
    insert_or_update(connection, log_topic, row, ("identity", "ends", "seen_at"))


def read_known(connection: Connection) -> dict[str, KnownTopic]:
    """What is remembered, by topic."""
    rows = connection.execute(select(log_topic.c.topic, log_topic.c.identity, log_topic.c.ends))
    return {row.topic: KnownTopic(row.identity, {int(name): end for name, end in row.ends.items()}) for row in rows}


def read_positions(connection: Connection) -> dict[PositionKey, int]:
    """The next offset of each worker; the trainer's are in its checkpoint."""
    return {
        (row.consumer_group, row.topic, row.partition): row.next_offset for row in connection.execute(select(position))
    }


def keep_noting(database: Database, event_log: EventLog, stop: threading.Event, home: object) -> None:
    """Note once a minute how far the log goes, until `stop` is set; one that is lost while this runs rings."""
    while not stop.is_set():
        try:
            require_same_log(database, event_log, home)
            LOG_LOST_RECORDS.set(0)
        except (Unavailable, Damaged) as error:
            log.warning("log not looked at", reason=error.message)
        except MillraceError as error:
            LOG_LOST_RECORDS.set(sum(item["end"] - item["first"] for item in error.facts["lost"]))  # type: ignore[attr-defined]
            log.error("log lost", reason=error.message)  # noqa: TRY400 no fault of this process
        stop.wait(NOTE_SECONDS)
    database.close()
