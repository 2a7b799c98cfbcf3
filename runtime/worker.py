"""A worker: poll, handle, commit, one batch at a time.

    log ──poll──▶ batch ──read, prepare──▶ ┌───────── one transaction ─────────┐
     ▲                                     │ handle: state, and messages       │
     │                                     │ tick: effects of the passing time │
    stored positions ◀─────────────────────│ positions, by compare-and-set     │
                                           │ dead letters                      │
                                           │ outbox: the messages              │──relay──▶ log
                                           └───────────────────────────────────┘

In: records of its topics, from the positions stored in the database. Out: rows and messages. Waits for: records, at most one tick.
No other process waits for a worker.

- It lost a partition: the compare-and-set fails, nothing changes, it reads the stored positions again.
- Log or database are away: it waits and tries again.
- A record cannot be processed: it finds that record (`bisection.py`), buries it (`log/dead_letters.py`) and goes on.
- Too many such records: it halts, reports it, and tries again from time to time, in case somebody dealt with them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

import structlog
from sqlalchemy import ColumnElement, Connection, delete, select, update

from contracts.errors import PositionLost, StaleWrite, TooManyDeadLetters, Unavailable
from contracts.event_log import EventLog, LogRecord, Message
from contracts.faults import FaultPoint, no_fault
from contracts.tables import position
from contracts.tables.statements import insert_new
from contracts.topics import EPISODES
from runtime.batch import BatchRecord, Handler, Item, items_of, prepare_batch
from runtime.bisection import Blamed, bisect, blaming_records, in_hand_of
from runtime.database import Database
from runtime.log.answers import with_answers
from runtime.log.dead_letters import Culprit, bury_all, culprit_of, traceback_of
from runtime.log.outbox import Relay, put
from runtime.metrics import (
    BEHIND_SECONDS,
    HALTED,
    LOST_PARTITIONS,
    RECORDS,
    STEP_SECONDS,
    TICK_FAILURES,
    TRANSACTION_SECONDS,
    WAITS,
)
from runtime.operations import step_done

BATCH = 500
TICK_SECONDS = 0.25
RETRY_SECONDS = 1.0
HALT_SECONDS = 10.0
"""Between two attempts of a worker that halted."""
CAUTIOUS_BATCH = 64
"""Size after a batch with a bad record. At 1% bad records, about half of such small batches have none."""
LEAST_BATCH = 64
"""However slow the disk is: a smaller batch would not make its commit shorter."""
LONGEST_TRANSACTION_SECONDS = 0.05
"""A batch whose transaction took longer halves the next one. A full batch that took less than 40% of it doubles the next one, one that
took less than 80% makes it a quarter larger."""
_QUICK, _SHORT = 0.4, 0.8

log = structlog.get_logger()


Handled = tuple[list[Culprit], list[Message]]
"""The records that could not be handled, and the messages to send."""
Handling = Callable[[Connection, Sequence[BatchRecord[Item]]], Handled]


class Worker(Generic[Item]):
    """Drives a handler. One process runs one worker."""

    def __init__(
        self,
        handler: Handler[Item],
        database: Database,
        event_log: EventLog,
        *,
        clock: Callable[[], float] = time.time,
        fault: FaultPoint = no_fault,
        follows: bool = False,
        done: Callable[[], None] = step_done,
    ) -> None:
        """Join the consumer group of the handler. `clock`: UTC epoch seconds; `done`: called after each step of `run`.

        `follows`: it may skip records. It begins at the end of the log, and goes there when the log lost its position.
        """
        self._handler, self._database, self._clock, self._fault = handler, database, clock, fault
        self._log, self._follows, self._done = event_log, follows, done
        self._positions: dict[tuple[str, int], int] = {}
        self._limit = handler.batch_size
        self._has_more = False
        """The last tick sent something, and may have left something."""
        self._consumer = event_log.consumer(handler.name, handler.topics, self._load_position)
        self._relay = Relay(handler.name, database, event_log, fault, self._consumer.partitions)

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        while not stop.is_set():
            try:
                self.step(0.0 if self._has_more else TICK_SECONDS)
                HALTED.labels(self._handler.name).set(0)
                self._done()
            except StaleWrite as error:
                LOST_PARTITIONS.labels(self._handler.name).inc()
                log.warning("partition lost", process=self._handler.name, reason=error.message)
                self._start_over()
            except PositionLost as error:
                if not self._follows:
                    raise
                log.warning("records skipped", process=self._handler.name, reason=error.message)
                self._forget_position(str(error.facts["topic"]), int(str(error.facts["partition"])))
                self._start_over()
            except Unavailable as error:
                # The loop works. Restarting this process would not bring back the log or the database.
                self._done()
                WAITS.labels(self._handler.name).inc()
                log.warning("waiting", process=self._handler.name, reason=error.message)
                self._start_over()
                stop.wait(RETRY_SECONDS)
            except TooManyDeadLetters as error:
                self._done()
                HALTED.labels(self._handler.name).set(1)
                log.error("halted", process=self._handler.name, reason=error.message)  # noqa: TRY400 the records are at fault, not this code
                self._start_over()
                stop.wait(HALT_SECONDS)
        self._consumer.close()

    def step(self, timeout: float = 0.0) -> int:
        """One poll, one transaction, one relay; how many records were handled. Raises TooManyDeadLetters: nothing was committed."""
        limit = min(self._limit, self._handler.batch_size)
        records = self._consumer.poll(timeout, limit)
        started = time.perf_counter()
        self._fault("worker: polled")
        # Episodes point to their answers.
        whole = with_answers(self._log, self._database, records) if EPISODES in self._handler.topics else records
        parts = prepare_batch(self._handler, whole)
        is_at_end = len(records) < limit
        try:
            self._limit = _next_limit(limit, len(records), self._apply(parts, self._handle, is_at_end=is_at_end))
        except Blamed as blamed:
            if not parts:
                raise  # there is no record to blame
            apart = partial(self._handle_apart, reason=blamed.__cause__ or blamed)
            log.warning("a batch failed, looking for the culprit", process=self._handler.name, num=len(parts))
            self._limit = CAUTIOUS_BATCH
            self._apply(parts, apart, is_at_end=is_at_end)
        self._fault("worker: committed")
        self._relay.flush()
        self._note(records, time.perf_counter() - started)
        return len(records)

    def _apply(self, parts: Sequence[BatchRecord[Item]], handle: Handling[Item], *, is_at_end: bool) -> float:
        """Commit a batch: state, messages, dead letters and positions, in one transaction; returns the seconds that grow with the batch."""
        records = [part.record for part in parts]
        with self._database.transaction(gives_way=True) as connection:
            self._hold(connection, {record.partition for record in records})
            begun_at = time.perf_counter()
            failed, messages = handle(connection, [part for part in parts if part.culprit is None])
            culprits = [part.culprit for part in parts if part.culprit is not None]
            bury_all(connection, self._handler.name, culprits + failed, self._clock())
            handled_at = time.perf_counter()
            due = self._tick(connection, is_at_end=is_at_end)
            messages += due
            put(connection, self._handler.name, messages, self._log.num_partitions)
            moved = self._advance(connection, records)
            self._fault("worker: before commit")
        self._positions |= moved
        self._has_more = bool(due)
        TRANSACTION_SECONDS.labels(self._handler.name).observe(time.perf_counter() - begun_at)
        return handled_at - begun_at

    def _handle(self, connection: Connection, parts: Sequence[BatchRecord[Item]]) -> Handled:
        with blaming_records():
            return [], self._handler.handle(connection, items_of(parts))

    def _handle_apart(
        self, connection: Connection, parts: Sequence[BatchRecord[Item]], reason: BaseException
    ) -> Handled:
        """Handle the good records of a batch that failed. Each piece has a savepoint, so the batch still costs one commit."""
        culprits: list[Culprit] = []
        messages: list[Message] = []

        def handle(some: Sequence[BatchRecord[Item]]) -> None:
            with blaming_records(), connection.begin_nested():
                _, found = self._handle(connection, some)
            messages.extend(found)

        def give_up(part: BatchRecord[Item], error: BaseException) -> None:
            culprits.append(culprit_of(part.record, error))

        def in_hand(error: BaseException, some: Sequence[BatchRecord[Item]]) -> int | None:
            return in_hand_of(error, [part.item for part in some])

        bisect(parts, handle, give_up, reason, in_hand)
        return culprits, messages

    def _tick(self, connection: Connection, *, is_at_end: bool) -> list[Message]:
        """No record causes a failure here, so records go on: an alarm rings, and each step tries again."""
        try:
            with blaming_records(), connection.begin_nested():
                partitions = self._consumer.partitions()
                return self._handler.tick(connection, self._clock(), partitions, is_at_end=is_at_end)
        except Blamed as blamed:
            TICK_FAILURES.labels(self._handler.name).inc()
            reason = traceback_of(blamed.__cause__ or blamed)
            log.error("tick failed", process=self._handler.name, traceback=reason)  # noqa: TRY400 the traceback is in the field
            return []

    def _note(self, records: Sequence[LogRecord], seconds: float) -> None:
        group = self._handler.name
        behind = self._clock() - min(record.appended_at for record in records) if records else 0.0
        BEHIND_SECONDS.labels(group).set(max(0.0, behind))
        if records:
            STEP_SECONDS.labels(group).observe(seconds)
        for topic, num in Counter(record.topic for record in records).items():
            RECORDS.labels(group, topic).inc(num)

    def _start_over(self) -> None:
        """Assume that the last step did not happen: read the stored positions again."""
        self._positions.clear()
        self._consumer.seek_to_stored()

    def _load_position(self, topic: str, partition: int) -> int:
        statement = select(position.c.next_offset).where(*self._is(topic, partition))
        with self._database.snapshot() as connection:
            stored = connection.execute(statement).scalar_one_or_none()
        if stored is None:
            first = self._log.ends(topic)[partition] if self._follows else 0
            row = {"consumer_group": self._handler.name, "topic": topic, "partition": partition, "next_offset": first}
            with self._database.transaction() as connection:
                insert_new(connection, position, row)
                stored = int(connection.execute(statement).scalar_one())
        self._positions[topic, partition] = stored
        return stored

    def _forget_position(self, topic: str, partition: int) -> None:
        with self._database.transaction() as connection:
            connection.execute(delete(position).where(*self._is(topic, partition)))

    def _hold(self, connection: Connection, partitions: set[int]) -> None:
        """Lock these partitions of every topic until the transaction ends.

        Positions move one by one. Without this lock, a worker that was frozen could store a signal while its successor, which is
        further on in another topic, stores the generation, and neither would see what the other wrote.
        """
        if not partitions:
            return
        held = position.c["topic", "partition", "next_offset"]
        mine = (position.c.consumer_group == self._handler.name, position.c.partition.in_(partitions))
        statement = select(*held).where(*mine).order_by(held.topic, held.partition).with_for_update()
        for topic, partition, next_offset in connection.execute(statement):
            if self._positions.get((topic, partition), next_offset) != next_offset:
                raise StaleWrite(f"another worker moved {topic}/{partition}", topic=topic, partition=partition)

    def _advance(self, connection: Connection, records: Sequence[LogRecord]) -> dict[tuple[str, int], int]:
        moved = {(record.topic, record.partition): record.offset + 1 for record in records}
        for place, next_offset in sorted(moved.items()):
            stored = (*self._is(*place), position.c.next_offset == self._positions[place])
            statement = update(position).where(*stored).values(next_offset=next_offset)
            if connection.execute(statement).rowcount != 1:
                raise StaleWrite(f"another worker moved {place[0]}/{place[1]}", topic=place[0], partition=place[1])
        return moved

    def _is(self, topic: str, partition: int) -> tuple[ColumnElement[bool], ...]:
        columns = position.c
        return columns.consumer_group == self._handler.name, columns.topic == topic, columns.partition == partition


def _next_limit(limit: int, num: int, seconds: float) -> int:
    """The size of the next batch, after `num` records took so long; `limit`: the size of this one."""
    if seconds > LONGEST_TRANSACTION_SECONDS:
        return max(LEAST_BATCH, min(limit, num) // 2)
    if num < limit or seconds > _SHORT * LONGEST_TRANSACTION_SECONDS:
        return limit  # a batch that was not full does not tell how long a larger one would take
    return limit * 2 if seconds < _QUICK * LONGEST_TRANSACTION_SECONDS else limit + limit // 4
