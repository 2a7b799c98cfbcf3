"""One record that cannot be processed costs one record, whatever the handler raises for it."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, Row, select, text
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError, StatementError

from contracts.errors import (
    InvalidRecord,
    InvalidTask,
    NewerSchema,
    PositionLost,
    StaleWrite,
    TooManyDeadLetters,
    Unavailable,
)
from contracts.event_log import LogRecord, Message
from contracts.tables import dead_letter, position, signal_count
from runtime.bisection import is_of_a_record
from runtime.database import Database
from runtime.log.dead_letters import MAX_IN_A_ROW, NEAREST, problem_at
from runtime.log.local import LocalLog
from runtime.worker import Worker
from tests.each_case import each_case
from tests.fakes import everything


class Picky:
    """Counts what it handles in the database and sends it on; cannot process what begins with `bad`."""

    name = "picky"
    topics = ("signals",)
    batch_size = 500

    def __init__(
        self,
        fail: Callable[[bytes], None] | None = None,
        fail_in: str = "handle",
        fail_to_tick: Exception | None = None,
    ) -> None:
        self.fail, self.fail_in, self.fail_to_tick = fail or _raise, fail_in, fail_to_tick
        self.num_ticks = 0

    def read(self, record: LogRecord) -> LogRecord:
        self._check("read", [record])
        return record

    def prepare(self, items: Sequence[LogRecord]) -> Sequence[LogRecord]:
        self._check("prepare", items)
        return items

    def handle(self, connection: Connection, items: Sequence[LogRecord]) -> list[Message]:
        for item in items:
            row = {"state": item.value.decode(), "count": 1}
            connection.execute(signal_count.insert().values(**row))  # a second time it would not be taken
            self._check("handle", [item])
        return [Message("outcomes", item.partition, item.key, item.value) for item in items]

    def tick(
        self, connection: Connection, now: float, partitions: frozenset[int], *, is_at_end: bool = True
    ) -> list[Message]:
        del connection, now, partitions, is_at_end
        if self.fail_to_tick:
            raise self.fail_to_tick
        self.num_ticks += 1
        return []

    def _check(self, place: str, items: Sequence[LogRecord]) -> None:
        for item in items:
            if place == self.fail_in and item.value.startswith(b"bad"):
                self.fail(item.value)


def _raise(value: bytes) -> None:
    raise ZeroDivisionError(f"cannot divide {value.decode()}\nfor good")


def append(event_log: LocalLog, num: int, bad: Sequence[int], num_partitions: int = 4) -> None:
    values = [f"{'bad' if number in bad else 'good'}{number}".encode() for number in range(num)]
    event_log.append([Message("signals", n % num_partitions, str(n), value) for n, value in enumerate(values)])


def dead_letters(database: Database) -> Sequence[Row[Any]]:
    with database.snapshot() as connection:
        return connection.execute(select(dead_letter)).all()


def buried(database: Database) -> list[str]:
    return sorted(row.value.decode() for row in dead_letters(database))


def handled(database: Database) -> set[str]:
    with database.snapshot() as connection:
        return set(connection.execute(select(signal_count.c.state)).scalars())


def check_all_but(database: Database, event_log: LocalLog, num: int, bad: Sequence[int]) -> None:
    good = {f"good{number}" for number in range(num) if number not in bad}
    sent = everything(event_log, "outcomes")
    assert handled(database) == good
    assert sorted(record.value.decode() for record in sent) == sorted(good)
    for partition in range(4):  # in the order in which they were read
        numbers = [int(record.key) for record in sent if record.partition == partition]
        assert numbers == sorted(numbers)
    assert buried(database) == sorted(f"bad{number}" for number in bad)
    with database.snapshot() as connection:
        assert sum(connection.execute(select(position.c.next_offset)).scalars()) == num


@pytest.mark.parametrize("place", ["read", "prepare", "handle"])
@pytest.mark.parametrize("bad", [(0,), (99,), (3, 4), (5, 31, 77), ()])
def test_only_the_culprits_are_buried_and_the_rest_is_done_once_and_in_order(
    database: Database, event_log: LocalLog, place: str, bad: Sequence[int]
) -> None:
    append(event_log, 100, bad)
    handler = Picky(fail_in=place)
    worker = Worker(handler, database, event_log)
    assert worker.step() == 100
    check_all_but(database, event_log, 100, bad)
    assert worker.step() == 0
    assert handler.num_ticks == 2


def test_a_culprit_is_kept_with_first_line_traceback_and_key(database: Database, event_log: LocalLog) -> None:
    append(event_log, 3, (1,))
    Worker(Picky(), database, event_log).step()
    (row,) = dead_letters(database)
    assert (row.reason, row.key, row.state) == ("ZeroDivisionError: cannot divide bad1", "1", "open")
    assert "in _raise" in row.traceback
    assert row.traceback.rstrip().endswith("for good")


def test_what_a_database_keeps_in_no_text_is_told_all_the_same(database: Database, event_log: LocalLog) -> None:
    def fail(value: bytes) -> None:
        raise ValueError(f"a\0b \ud800 {value.decode()}")

    event_log.append([Message("signals", 0, "a\0key", b"bad")])
    Worker(Picky(fail), database, event_log).step()
    (row,) = dead_letters(database)
    assert (row.reason, row.key) == ("ValueError: a\\0b \\ud800 bad", "a\\0key")


def test_what_fails_once_and_then_works_is_not_buried(database: Database, event_log: LocalLog) -> None:
    fails = iter((True,))

    def fail(_value: bytes) -> None:
        if next(fails, False):
            raise ZeroDivisionError

    append(event_log, 1, (0,))
    worker = Worker(Picky(fail), database, event_log)
    assert worker.step() == 1
    assert handled(database) == {"bad0"}
    assert buried(database) == []


@pytest.mark.parametrize("error", [Unavailable("away"), StaleWrite("moved"), NewerSchema("early"), MemoryError()])
def test_what_is_no_records_fault_buries_nothing_and_moves_nothing(
    database: Database, event_log: LocalLog, error: Exception
) -> None:
    def fail(_value: bytes) -> None:
        raise error

    append(event_log, 10, (4,))
    with pytest.raises(type(error)):
        Worker(Picky(fail), database, event_log).step()
    assert (handled(database), buried(database)) == (set(), [])


def test_a_tick_that_fails_buries_nothing_and_holds_up_no_record(database: Database, event_log: LocalLog) -> None:
    append(event_log, 100, ())
    handler = Picky(fail_to_tick=KeyError("a row of ours"))
    before = REGISTRY.get_sample_value("millrace_tick_failures_total", {"group": "picky"}) or 0
    worker = Worker(handler, database, event_log)
    assert worker.step() == 100
    check_all_but(database, event_log, 100, ())
    assert REGISTRY.get_sample_value("millrace_tick_failures_total", {"group": "picky"}) == before + 1
    handler.fail_to_tick = None
    worker.step()
    assert handler.num_ticks == 1


def test_a_tick_meets_servers_that_are_away_like_everything_else(database: Database, event_log: LocalLog) -> None:
    append(event_log, 2, ())
    with pytest.raises(Unavailable):
        Worker(Picky(fail_to_tick=Unavailable("away")), database, event_log).step()
    assert handled(database) == set()


@pytest.mark.slow
def test_a_handler_that_always_fails_halts_early_whatever_the_batch(database: Database, event_log: LocalLog) -> None:
    append(event_log, 400, range(400), num_partitions=1)
    says = "21 records in a row of signals/0, the last because: ZeroDivisionError"
    for _ in range(2):
        with pytest.raises(TooManyDeadLetters, match=says):
            Worker(Picky(), database, event_log).step()
        assert buried(database) == []


@pytest.mark.parametrize("place", ["read", pytest.param("handle", marks=pytest.mark.slow)])
def test_sixty_percent_halt_within_a_hundred_records_and_name_the_last(
    database: Database, event_log: LocalLog, place: str
) -> None:
    draw = random.Random(9)
    append(event_log, 500, [number for number in range(500) if draw.random() < 0.6], num_partitions=1)
    says = "picky could not process 31 of the latest 100 records of signals/0"
    with pytest.raises(TooManyDeadLetters, match=says) as told:
        Worker(Picky(fail_in=place), database, event_log).step()
    offset = told.value.facts["offset"]
    assert isinstance(offset, int)
    assert offset < NEAREST
    assert told.value.facts | {"offset": 0} == {"process": "picky", "topic": "signals", "partition": 0, "offset": 0}


def test_one_percent_never_halts() -> None:
    draw = random.Random(9)
    dead = [number for number in range(200_000) if draw.random() < 0.01]
    problems = [problem_at(offset, dead[max(0, place - 200) : place + 1]) for place, offset in enumerate(dead)]
    assert set(problems) == {""}


def test_a_worker_that_halted_says_so_lives_on_and_goes_on_once_somebody_dealt_with_it(
    database: Database, event_log: LocalLog
) -> None:
    append(event_log, MAX_IN_A_ROW + 1, range(MAX_IN_A_ROW + 1), num_partitions=1)
    stop = Stop()
    handler = Picky(fail_in="read")
    worker = Worker(handler, database, event_log)
    labels = {"group": "picky"}
    seen: list[float | None] = []

    def meanwhile() -> None:
        seen.append(REGISTRY.get_sample_value("millrace_halted", labels))
        with database.transaction() as connection:
            connection.execute(dead_letter.update().values(state="skipped"))
        handler.fail_in = "nowhere"
        stop.in_wait = stop.set_at_the_next_look

    stop.in_wait = meanwhile
    worker.run(stop)
    assert seen == [1.0]
    assert REGISTRY.get_sample_value("millrace_halted", labels) == 0
    assert len(handled(database)) == MAX_IN_A_ROW + 1


class Stop(threading.Event):
    """Is set after one more turn; who waits for it does something else instead."""

    def __init__(self) -> None:
        super().__init__()
        self.in_wait: Callable[[], None] = self.set
        self._looks_left: int | None = None

    def set_at_the_next_look(self) -> None:
        self._looks_left = 1

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.in_wait()
        self.set_at_the_next_look()
        return False

    def is_set(self) -> bool:
        if self._looks_left is None:
            return False
        self._looks_left -= 1
        return self._looks_left < 0


class _Server(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def of_server(kind: type[Exception], sqlstate: str = "") -> Exception:
    return kind("INSERT", {}, _Server(sqlstate))


@each_case(
    ("error", "expected"),
    [
        (of_server(DataError, "22021"), True),
        (of_server(OperationalError, "54000"), True),
        (of_server(OperationalError, "57P01"), False),
        (of_server(ProgrammingError, "42P01"), False),
        (StatementError("no such parameter", "INSERT", {}, ValueError()), True),
        (OverflowError("Python int too large to convert to SQLite INTEGER"), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), True),
        (RecursionError(), True),
        (InvalidRecord("damaged"), True),
        (OSError(errno.ENAMETOOLONG, "File name too long"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (PositionLost("gone"), False),
        (InvalidTask("task.toml:3"), False),
    ],
)
def test_whose_fault_it_is(error: Exception, expected: bool) -> None:
    assert is_of_a_record(error) is expected


@pytest.mark.parametrize("value", [2**63, "\ud800"])
def test_what_a_driver_refuses_is_the_fault_of_who_sent_it(database: Database, value: object) -> None:
    with pytest.raises(Exception, match=r"too large|surrogates") as raised, database.transaction() as connection:
        connection.execute(text("SELECT :value"), {"value": value})
    assert is_of_a_record(raised.value)
