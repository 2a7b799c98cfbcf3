from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection, Engine, Table, delete, event, func, select, text

from contracts.errors import (
    InvalidRecord,
    NewerSchema,
    PositionLost,
    RecordTooLarge,
    StaleWrite,
    TooManyDeadLetters,
    Unavailable,
)
from contracts.event_log import LoadPosition, LogRecord, Message
from contracts.tables import dead_letter, outbox, position
from runtime.database import Database
from runtime.log.dead_letters import LATEST, MAX_DEAD_LETTERS, MAX_IN_A_ROW, MAX_OF_LATEST, OPEN, SKIPPED, bury
from runtime.log.local import LocalConsumer, LocalLog
from runtime.log.outbox import Relay, put, waiting
from runtime.metrics import LAST_STEP, LAST_STEP_NAME
from runtime.worker import LEAST_BATCH, Worker, _next_limit
from tests.fakes import FullLog, everything
from tests.worlds.passing import Echo

MANY_DEAD_LETTERS = text(
    'INSERT INTO dead_letter (consumer_group, topic, partition, "offset", reason, value, at, state) '
    "WITH RECURSIVE number(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n < :num) "
    "SELECT 'echo', 'signals', 0, :apart * n, '', x'', 0, iif(n = 0, :first, :others) FROM number"
)


class ChoosyEcho(Echo):
    """Refuses records called bad."""

    def read(self, record: LogRecord) -> LogRecord:
        if record.value == b"bad":
            raise InvalidRecord("this one is bad")
        if record.value == b"newer":
            raise NewerSchema("schema 2, this process reads up to 1: upgrade it")
        return record


def messages(*values: bytes) -> list[Message]:
    return [Message("signals", number, str(number), value) for number, value in enumerate(values)]


def test_records_pass_once_and_positions_are_kept(database: Database, event_log: LocalLog) -> None:
    event_log.append(messages(b"a", b"b", b"c"))
    assert Worker(ChoosyEcho(), database, event_log).step() == 3
    assert Worker(ChoosyEcho(), database, event_log).step() == 0
    assert sorted(record.value for record in everything(event_log, "outcomes")) == [b"a", b"b", b"c"]


def test_a_bad_record_is_buried_with_its_reason_and_the_rest_goes_on(database: Database, event_log: LocalLog) -> None:
    event_log.append(messages(b"a", b"bad", b"c"))
    Worker(ChoosyEcho(), database, event_log).step()
    assert len(everything(event_log, "outcomes")) == 2
    with database.snapshot() as connection:
        row = connection.execute(select(dead_letter)).one()
    assert (row.reason, row.value, row.topic) == ("this one is bad", b"bad", "signals")


def of_one_partition(*values: bytes) -> list[Message]:
    return [Message("signals", 0, str(number), value) for number, value in enumerate(values)]


def all_steps(worker: Worker[Any]) -> int:
    """Step until nothing is left; returns how many records there were."""
    num = 0
    while found := worker.step():
        num += found
    return num


def stored_position(database: Database) -> int:
    with database.snapshot() as connection:
        return int(connection.execute(select(func.sum(position.c.next_offset))).scalar_one())


def num_rows(database: Database, table: Table) -> int:
    with database.snapshot() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def test_too_many_dead_letters_in_a_row_stop_the_worker_and_nothing_moves(
    database: Database, event_log: LocalLog
) -> None:
    event_log.append(of_one_partition(b"good", *[b"bad"] * (MAX_IN_A_ROW + 1)))
    says = r"21 records in a row of signals/0.*this one is bad.*redrive or skip"
    for _ in range(2):  # a supervisor that starts it again changes nothing
        with pytest.raises(TooManyDeadLetters, match=says):
            Worker(ChoosyEcho(), database, event_log).step()
        assert stored_position(database) == 0


def test_in_a_row_is_counted_over_steps_and_restarts(database: Database, event_log: LocalLog) -> None:
    event_log.append(of_one_partition(*[b"bad"] * MAX_IN_A_ROW))
    assert Worker(ChoosyEcho(), database, event_log).step() == MAX_IN_A_ROW
    event_log.append(of_one_partition(b"bad"))
    with pytest.raises(TooManyDeadLetters):
        Worker(ChoosyEcho(), database, event_log).step()
    with database.transaction() as connection:
        connection.execute(delete(dead_letter))
    assert Worker(ChoosyEcho(), database, event_log).step() == 1


def test_bad_records_with_a_good_one_between_are_not_in_a_row(database: Database, event_log: LocalLog) -> None:
    event_log.append(of_one_partition(*[b"bad"] * MAX_IN_A_ROW, b"good", b"bad"))
    assert Worker(ChoosyEcho(), database, event_log).step() == MAX_IN_A_ROW + 2


def test_too_large_a_share_of_dead_letters_stops_the_worker(database: Database, event_log: LocalLog) -> None:
    event_log.append(of_one_partition(*[b"bad", *[b"good"] * 4] * MAX_OF_LATEST))
    worker = Worker(ChoosyEcho(), database, event_log)
    assert all_steps(worker) == 5 * MAX_OF_LATEST
    event_log.append(of_one_partition(b"bad"))
    with pytest.raises(TooManyDeadLetters, match="101 of the latest 1000 records of signals/0"):
        worker.step()
    assert stored_position(database) == 5 * MAX_OF_LATEST


def test_a_bad_record_now_and_then_is_no_reason_to_stop(database: Database, event_log: LocalLog) -> None:
    every = 2 * LATEST // MAX_OF_LATEST
    values = [b"bad" if number % every == 0 else b"good" for number in range(2 * LATEST)]
    event_log.append(of_one_partition(*values))
    assert all_steps(Worker(ChoosyEcho(), database, event_log)) == len(values)


def test_the_dead_letters_of_a_group_are_bounded_in_all(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(
            MANY_DEAD_LETTERS, {"num": MAX_DEAD_LETTERS, "apart": LATEST, "first": SKIPPED, "others": OPEN}
        )
        other = LogRecord("signals", 1, 5, "", b"bad", 0.0)
        bury(connection, "another", other, InvalidRecord("no"), 0.0)
        with pytest.raises(TooManyDeadLetters, match="100001 records in all"):
            bury(connection, "echo", other, InvalidRecord("no"), 0.0)


def loser(database: Database, event_log: LocalLog) -> Worker[Any]:
    """A worker whose partition another one took, which has handled `a`."""
    first, second = Worker(ChoosyEcho(), database, event_log), Worker(ChoosyEcho(), database, event_log)
    first.step()
    second.step()
    event_log.append(messages(b"a"))
    first.step()
    return second


def test_a_worker_that_lost_its_partition_changes_nothing(database: Database, event_log: LocalLog) -> None:
    with pytest.raises(StaleWrite, match="another worker"):
        loser(database, event_log).step()
    assert [record.value for record in everything(event_log, "outcomes")] == [b"a"]


class TwoTopics(ChoosyEcho):
    """Reads what must be seen together."""

    topics = ("generations", "signals")
    batch_size = 500


def test_a_worker_whose_heir_is_further_in_another_topic_of_the_partition_changes_nothing(
    database: Database, event_log: LocalLog
) -> None:
    heir = Worker(TwoTopics(), database, event_log)

    def heir_goes_on(point: str) -> None:
        if point == "worker: polled" and event_log.ends("generations")[0] == 0:
            # Only the generation: the signal that the first one has in its hands is still to be read by both.
            event_log.append([Message("generations", 0, "g", b"generation")])
            with database.transaction() as connection:
                moved = position.update().where(position.c.topic == "generations", position.c.partition == 0)
                connection.execute(moved.values(next_offset=1))

    heir.step()
    event_log.append([Message("signals", 0, "s", b"signal")])
    with pytest.raises(StaleWrite, match="moved generations/0"):
        Worker(TwoTopics(), database, event_log, fault=heir_goes_on).step()
    assert everything(event_log, "outcomes") == []
    assert stored_position(database) == 1


def test_after_losing_it_reads_the_stored_positions_again(database: Database, event_log: LocalLog) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=loser(database, event_log).run, args=(stop,))
    thread.start()
    event_log.append(messages(b"b"))
    while len(everything(event_log, "outcomes")) < 2 and thread.is_alive():
        stop.wait(0.01)
    stop.set()
    thread.join()
    assert sorted(record.value for record in everything(event_log, "outcomes")) == [b"a", b"b"]


def test_what_the_log_cannot_take_stays_in_the_outbox(database: Database) -> None:
    with database.transaction() as connection:
        put(connection, "echo", messages(b"a"))
    with pytest.raises(Unavailable, match="full"):
        Relay("echo", database, FullLog()).flush()
    assert num_rows(database, outbox) == 1


def test_a_relay_keeps_the_order(database: Database, event_log: LocalLog) -> None:
    sent = [Message("signals", 0, "k", bytes([number])) for number in range(20)]
    for item in sent:
        with database.transaction() as connection:
            put(connection, "echo", [item])
    assert Relay("echo", database, event_log).flush() == 20
    assert [record.value for record in everything(event_log, "signals")] == [item.value for item in sent]


def test_a_relay_sends_only_its_own(database: Database, event_log: LocalLog) -> None:
    with database.transaction() as connection:
        put(connection, "echo", messages(b"a"))
        put(connection, "other", messages(b"b"))
    assert Relay("echo", database, event_log).flush() == 1
    assert [record.value for record in everything(event_log, "signals")] == [b"a"]


def test_a_relay_leaves_what_lies_in_the_partitions_of_others(database: Database, event_log: LocalLog) -> None:
    sent = [Message("signals", route, str(route), b"") for route in range(12)]
    with database.transaction() as connection:
        put(connection, "echo", sent, event_log.num_partitions)
    mine = Relay("echo", database, event_log, partitions=lambda: frozenset((1, 2)))
    assert mine.flush() == 6
    assert {record.partition for record in everything(event_log, "signals")} == {1, 2}
    nobodys = Relay("echo", database, event_log, partitions=frozenset)
    assert nobodys.flush() == 0
    everyones = Relay("echo", database, event_log)
    assert everyones.flush() == 6


@contextmanager
def count_statements() -> Iterator[list[str]]:
    """The statements that are sent meanwhile; a statement for many rows counts once."""
    statements: list[str] = []

    def note(*told: Any) -> None:
        statements.append(told[2])

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)


def test_a_batch_costs_one_insert_and_one_delete(database: Database, event_log: LocalLog) -> None:
    sent = [Message("signals" if number % 3 else "episodes", number, str(number), b"x") for number in range(300)]
    with count_statements() as statements, database.transaction() as connection:
        put(connection, "echo", sent, event_log.num_partitions)
    assert [words.split()[0] for words in statements if "outbox" in words] == ["INSERT"]
    with count_statements() as statements:
        assert Relay("echo", database, event_log).flush() == len(sent)
    assert [words.split()[0] for words in statements if "outbox" in words] == ["SELECT", "DELETE"]
    for topic in ("signals", "episodes"):
        for partition in range(event_log.num_partitions):
            keys = [int(record.key) for record in event_log.read(topic, partition, 0, 1000)]
            assert keys == sorted(keys)
            assert {key % event_log.num_partitions for key in keys} == {partition}


def test_a_row_of_an_earlier_release_is_sent_in_its_turn(database: Database, event_log: LocalLog) -> None:
    old = {"process": "echo", "topic": "signals", "route": 1, "key": "old", "value": b"old"}
    with database.transaction() as connection:
        connection.execute(outbox.insert().values(**old))
        put(connection, "echo", [Message("signals", 1, "new", b"new")])
        assert [item.key for item in waiting(connection, "signals", "echo")] == ["old", "new"]
        assert list(waiting(connection, "signals", "other")) == list(waiting(connection, "episodes")) == []
    assert Relay("echo", database, event_log).flush() == 2
    assert [record.value for record in everything(event_log, "signals")] == [b"old", b"new"]


def test_large_messages_are_not_put_into_one_row(database: Database, event_log: LocalLog) -> None:
    sent = [Message("signals", 1, str(number), bytes(400_000)) for number in range(5)]
    with database.transaction() as connection:
        put(connection, "echo", sent)
        assert connection.execute(select(outbox.c.num_messages).order_by(outbox.c.id)).scalars().all() == [2, 2, 1]
    assert Relay("echo", database, event_log).flush() == 5
    assert [record.key for record in everything(event_log, "signals")] == list("01234")


class Narrow(LocalLog):
    """A log that takes up to ten bytes."""

    def append(self, messages: Sequence[Message]) -> None:
        if any(len(item.value) > 10 for item in messages):
            raise RecordTooLarge("larger than 10 bytes; make it smaller")
        super().append(messages)


def test_what_the_log_refuses_for_good_is_kept_aside_and_the_rest_goes_on_in_order(
    database: Database, tmp_path: Path
) -> None:
    sent = [Message("signals", 3, "k", bytes([number]) * (11 if number in {4, 9} else 1)) for number in range(12)]
    with database.transaction() as connection:
        put(connection, "echo", sent)
    log = Narrow(tmp_path / "log")
    assert Relay("echo", database, log).flush() == 12
    kept = [item.value for item in sent if len(item.value) == 1]
    assert [record.value for record in everything(log, "signals")] == kept
    log.close()
    assert num_rows(database, outbox) == 0
    with database.snapshot() as connection:
        rows = connection.execute(select(dead_letter).order_by(dead_letter.c.value)).all()
    assert [(row.consumer_group, row.topic, row.partition, row.value[0]) for row in rows] == [
        ("echo", "signals", 3, 4),
        ("echo", "signals", 3, 9),
    ]
    assert all(row.offset < 0 and "make it smaller" in row.reason for row in rows)


class OneSidedConsumer(LocalConsumer):
    """Was given partition 1 alone."""

    def partitions(self) -> frozenset[int]:
        return frozenset((1,))


class OneSided(LocalLog):
    """A log whose other partitions are another replica's."""

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> LocalConsumer:
        del group
        return OneSidedConsumer(self, topics, load_position)


def test_a_worker_sends_only_what_lies_in_its_partitions(database: Database, tmp_path: Path) -> None:
    log = OneSided(tmp_path / "log")
    with database.transaction() as connection:
        put(connection, "echo", [Message("episodes", route, str(route), b"") for route in range(8)], log.num_partitions)
    Worker(ChoosyEcho(), database, log).step()
    assert {record.partition for record in everything(log, "episodes")} == {1}
    log.close()


class Interrupted(ChoosyEcho):
    """Finds the database gone, once; then it is told to stop."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def handle(self, connection: Connection, items: Sequence[LogRecord]) -> list[Message]:
        if not self._stop.is_set():
            self._stop.set()
            raise Unavailable("no database")
        return super().handle(connection, items)


def test_what_was_in_its_hands_when_the_database_went_is_read_again_and_waiting_is_healthy(
    database: Database, event_log: LocalLog
) -> None:
    event_log.append(messages(b"a", b"b"))
    stop = threading.Event()
    worker = Worker(Interrupted(stop), database, event_log)
    LAST_STEP.set(0)
    worker.run(stop)
    assert (REGISTRY.get_sample_value(LAST_STEP_NAME) or 0) > 0
    assert worker.step() == 2
    assert sorted(record.value for record in everything(event_log, "outcomes")) == [b"a", b"b"]


def test_how_far_it_is_behind_is_the_age_of_the_oldest_record_and_nothing_once_it_has_all(
    database: Database, event_log: LocalLog
) -> None:
    event_log.append(messages(b"a"))
    [record] = everything(event_log, "signals")
    worker = Worker(ChoosyEcho(), database, event_log, clock=lambda: record.appended_at + 7)
    worker.step()
    assert REGISTRY.get_sample_value("millrace_behind_seconds", {"group": "echo"}) == pytest.approx(7, abs=1e-3)
    worker.step()
    assert REGISTRY.get_sample_value("millrace_behind_seconds", {"group": "echo"}) == 0


def test_a_full_disk_refuses_the_append_and_keeps_what_was(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    log.append(messages(b"kept"))
    # SQLite reports a full disk in the same way when a file may not grow.
    connection: sqlite3.Connection = log._connection("signals")
    connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(Unavailable, match="free disk space"):
        log.append(messages(b"x" * 100_000))
    connection.execute("PRAGMA max_page_count = 1000000")
    log.append(messages(b"after"))
    assert [record.value for record in everything(log, "signals")] == [b"kept", b"after"]
    log.close()


def test_a_record_of_a_newer_schema_stops_the_worker_and_waits_in_the_log(
    database: Database, event_log: LocalLog
) -> None:
    event_log.append(messages(b"newer"))
    for _ in range(2):
        with pytest.raises(NewerSchema, match="upgrade"):
            Worker(ChoosyEcho(), database, event_log).step()
    assert num_rows(database, dead_letter) == 0


class Flaky(LocalLog):
    """A log that is away for the first append."""

    away = 1

    def append(self, messages: Sequence[Message]) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("no broker")
        super().append(messages)


@pytest.mark.slow
def test_a_worker_waits_while_the_log_is_away_and_repeats_nothing(
    database: Database, event_log: LocalLog, tmp_path: Path
) -> None:
    event_log.append(messages(b"a", b"b"))
    flaky, stop = Flaky(tmp_path / "log"), threading.Event()
    thread = threading.Thread(target=Worker(ChoosyEcho(), database, flaky).run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 60
    while len(everything(event_log, "outcomes")) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join()
    flaky.close()
    assert flaky.away == 0
    assert sorted(record.value for record in everything(event_log, "outcomes")) == [b"a", b"b"]


def test_a_worker_that_follows_begins_at_the_end_and_goes_on_where_it_stood(
    database: Database, event_log: LocalLog
) -> None:
    event_log.append(messages(b"old", b"older"))
    assert Worker(ChoosyEcho(), database, event_log, follows=True).step() == 0
    event_log.append(messages(b"new"))
    assert Worker(ChoosyEcho(), database, event_log, follows=True).step() == 1
    assert [record.value for record in everything(event_log, "outcomes")] == [b"new"]


@pytest.mark.parametrize("follows", [True, False])
def test_only_a_worker_that_follows_gives_up_a_lost_position(
    database: Database, event_log: LocalLog, *, follows: bool
) -> None:
    event_log.create_topics()
    Worker(ChoosyEcho(), database, event_log).step()
    with database.transaction() as connection:
        connection.execute(position.update().values(next_offset=9))
    stop, steps = threading.Event(), list[int]()

    def done() -> None:
        steps.append(1)
        stop.set()

    worker = Worker(ChoosyEcho(), database, event_log, follows=follows, done=done)
    if follows:
        worker.run(stop)
    else:
        with pytest.raises(PositionLost):
            worker.run(stop)
    assert len(steps) == follows


@pytest.mark.parametrize(
    ("limit", "num", "seconds", "wanted"),
    [
        (200, 200, 0.06, 100),
        (200, 30, 0.06, LEAST_BATCH),
        (LEAST_BATCH, LEAST_BATCH, 9.0, LEAST_BATCH),
        (200, 200, 0.045, 200),
        (200, 200, 0.03, 250),
        (200, 200, 0.01, 400),
        (200, 199, 0.01, 200),
    ],
)
def test_the_next_batch_follows_the_time_that_the_last_one_took(
    limit: int, num: int, seconds: float, wanted: int
) -> None:
    assert _next_limit(limit, num, seconds) == wanted
