"""Faults of a real broker and of the members of its groups: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from sqlalchemy import Connection, func, select

from contracts.errors import InvalidSettings, PositionLost, RecordTooLarge, StaleWrite, Unavailable
from contracts.event_log import MAX_RECORD_BYTES, Consumer, LogPlace, LogRecord, Message
from contracts.tables import outbox
from runtime.database import Database
from runtime.log.kafka import KafkaLog
from runtime.worker import Worker
from tests.worlds.passing import Echo
from tests.worlds.servers.services import kafka_log, kafka_servers, new_prefix

pytestmark = [
    pytest.mark.services,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SERVICES = Path(__file__).parent.parent.parent.parent / "deploy" / "services"
PATIENCE_SECONDS = 120.0
REFUSED_SECONDS = 3.0
"""How long the log of tests with a broker that is away waits for it."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The client forgets the sockets of refused connections; they are collected here, where the warning is expected."""
    yield
    gc.collect()


@pytest.fixture
def servers(own_broker: Path) -> str:
    del own_broker  # it is in the environment
    return kafka_servers()


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@pytest.fixture
def log(servers: str, prefix: str) -> Iterator[KafkaLog]:
    """As patient as a busy machine needs it."""
    del servers
    with kafka_log(prefix, timeout=PATIENCE_SECONDS, session=6.0) as log:
        yield log


@pytest.fixture
def brief_log(log: KafkaLog, servers: str, prefix: str) -> Iterator[KafkaLog]:
    """One with the same topics that soon gives a broker up."""
    del log  # it made them
    brief_log = KafkaLog(servers, prefix=prefix, timeout=REFUSED_SECONDS, session=6.0)
    yield brief_log
    brief_log.close()


@pytest.fixture
def broker(own_broker: Path) -> Iterator[psutil.Process]:
    """To be frozen and stopped. Left running."""
    process = psutil.Process(int((own_broker / "kafka" / "pid").read_text()))
    yield process
    if process.is_running():
        process.resume()
    start_services()


def start_services() -> None:
    subprocess.run([SERVICES, "start", "kafka"], check=True, capture_output=True)  # noqa: S603 our own script


def signals(count: int, start: int = 0) -> list[Message]:
    return [Message("signals", number, str(number), str(number).encode()) for number in range(start, start + count)]


def outcomes(log: KafkaLog) -> Counter[int]:
    return Counter(int(record.value) for record in log.read("outcomes", 0, 0, 1_000_000))


def freeze(broker: psutil.Process) -> None:
    broker.suspend()
    until(lambda: broker.status() == psutil.STATUS_STOPPED)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker[LogRecord]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=worker.run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def die_in_mid_batch(servers: str, prefix: str, url: str) -> None:
    """A process of its own: handles one batch, then is killed before its commit."""

    def fault(point: str) -> None:
        if point == "worker: before commit" and handled:
            os.kill(os.getpid(), signal.SIGKILL)

    handled: list[LogRecord] = []

    class Watched(Echo):
        def handle(self, connection: Connection, items: Sequence[LogRecord]) -> list[Message]:
            handled.extend(items)
            return super().handle(connection, items)

    log = KafkaLog(servers, prefix=prefix, timeout=PATIENCE_SECONDS, session=6.0)
    Worker(Watched(), Database(url), log, fault=fault).run(threading.Event())


def test_a_member_killed_in_mid_batch_loses_nothing(
    log: KafkaLog, servers: str, prefix: str, database: Database
) -> None:
    log.append(signals(500))
    spawn = multiprocessing.get_context("spawn")
    killed = spawn.Process(target=die_in_mid_batch, args=(servers, prefix, database.url))
    killed.start()
    killed.join(PATIENCE_SECONDS)
    assert killed.exitcode == -signal.SIGKILL
    running = Running(Worker(Echo(), database, log))
    log.append(signals(100, start=500))
    until(lambda: log.ends("outcomes")[0] >= 600)
    running.stop()
    assert outcomes(log) == Counter(range(600))


def test_partitions_move_while_records_flow(log: KafkaLog, database: Database) -> None:
    first = Running(Worker(Echo(), database, log))
    log.append(signals(200))
    until(lambda: log.ends("outcomes")[0] >= 100)
    second = Running(Worker(Echo(), database, log))
    for start in range(200, 1000, 100):
        log.append(signals(100, start))
    first.stop()
    log.append(signals(100, 1000))
    until(lambda: log.ends("outcomes")[0] >= 1100)
    second.stop()
    assert outcomes(log) == Counter(range(1100))


class Stalling:
    """A consumer whose owner sleeps with its first records in hand."""

    def __init__(self, consumer: Consumer, wake: threading.Event) -> None:
        self._consumer = consumer
        self._wake = wake
        self.stalled = threading.Event()

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        records = self._consumer.poll(timeout, limit)
        if records and not self.stalled.is_set():
            self.stalled.set()
            self._wake.wait(PATIENCE_SECONDS)
        return records

    def partitions(self) -> frozenset[int]:
        return self._consumer.partitions()

    def seek_to_stored(self) -> None:
        self._consumer.seek_to_stored()

    def close(self) -> None:
        self._consumer.close()


def test_a_member_that_stalled_changes_nothing_and_goes_on(
    servers: str, prefix: str, log: KafkaLog, database: Database
) -> None:
    log.append(signals(100))
    impatient = KafkaLog(servers, prefix=prefix, timeout=PATIENCE_SECONDS, session=6.0, max_poll=2.0)
    slow = Worker(Echo(), database, impatient)
    wake = threading.Event()
    slow._consumer = stalling = Stalling(slow._consumer, wake)
    lost: list[StaleWrite] = []

    def step_until_lost() -> None:
        while not lost:
            try:
                slow.step(0.2)
            except StaleWrite as error:
                lost.append(error)

    thread = threading.Thread(target=step_until_lost)
    thread.start()
    assert stalling.stalled.wait(PATIENCE_SECONDS)
    quick = Running(Worker(Echo(), database, log))
    until(lambda: log.ends("outcomes")[0] >= 100)
    wake.set()
    thread.join()
    assert lost[0].message.startswith("another worker moved signals/")
    quick.stop()
    slow._positions.clear()
    slow._consumer.seek_to_stored()
    again = Running(slow)
    log.append(signals(100, 100))
    until(lambda: log.ends("outcomes")[0] >= 200)
    again.stop()
    impatient.close()
    assert outcomes(log) == Counter(range(200))


def test_a_frozen_broker_refuses_appends_in_time_and_memory_stays_bounded(
    brief_log: KafkaLog, broker: psutil.Process
) -> None:
    until(lambda: accepts(brief_log))  # another topic: some threads still ask for this one's leader when others give up
    resident = psutil.Process().memory_info().rss
    refused: list[float] = []

    def send(count: int) -> None:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="Kafka at"):
            brief_log.append([Message("signals", 0, "k", b"x" * 1000)] * count)
        refused.append(time.monotonic() - began)

    freeze(broker)
    threads = [threading.Thread(target=send, args=(30_000,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(3):
        send(100)
    grown = psutil.Process().memory_info().rss - resident
    assert grown < 64 * 1024 * 1024
    assert len(refused) == 13
    assert max(refused) < 10 * REFUSED_SECONDS
    broker.resume()
    until(lambda: accepts(brief_log))


def test_appends_go_on_when_the_broker_was_restarted(
    log: KafkaLog, brief_log: KafkaLog, broker: psutil.Process, database: Database
) -> None:
    running = Running(Worker(Echo(), database, log))
    log.append(signals(100))
    until(lambda: log.ends("outcomes")[0] >= 100 and is_relayed(database))  # what is on its way may come twice
    broker.kill()
    broker.wait()
    with pytest.raises(Unavailable, match="Check that it runs"):
        brief_log.append(signals(1, 1000))
    start_services()
    until(lambda: accepts(brief_log))
    log.append(signals(100, 100))
    until(lambda: set(range(200)) <= set(outcomes(log)))
    running.stop()
    assert {number: count for number, count in outcomes(log).items() if number < 200} == Counter(range(200))


def is_relayed(database: Database) -> bool:
    """Whether the worker knows that all that it sent is in the log."""
    with database.snapshot() as connection:
        return connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 0


def accepts(log: KafkaLog) -> bool:
    try:
        log.append([Message("episodes", 0, "k", b"again")])
    except Unavailable:
        return False
    return True


def test_closing_on_a_frozen_broker_takes_a_bounded_time(brief_log: KafkaLog, broker: psutil.Process) -> None:
    until(lambda: accepts(brief_log))
    consumer = brief_log.consumer("g", ["signals"], lambda _topic, _partition: 0)
    consumer.poll(1.0, 10)
    freeze(broker)
    with pytest.raises(Unavailable):
        brief_log.append(signals(10))
    began = time.monotonic()
    brief_log.close()
    assert time.monotonic() - began < PATIENCE_SECONDS
    broker.resume()
    with pytest.raises(Unavailable, match="closed"):
        brief_log.append(signals(1))


def test_no_broker_at_all_is_unavailable_and_leaves_nothing_behind(prefix: str) -> None:
    threads = threading.active_count()
    log = KafkaLog("127.0.0.1:1", prefix=prefix, timeout=0.5)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        log.append(signals(1))
    with pytest.raises(Unavailable):
        log.consumer("g", ["signals"], lambda _topic, _partition: 0)
    with pytest.raises(Unavailable):
        log.ends("signals")
    log.close()
    assert threading.active_count() == threads


def test_a_position_outside_of_the_log_is_named_and_never_moved(log: KafkaLog) -> None:
    log.append(signals(4))
    consumer = log.consumer("g", ["signals"], lambda _topic, partition: 70 if partition == 2 else 0)
    for _ in range(2):
        with pytest.raises(PositionLost, match=r"70 of .*signals/2 is outside of the log, which has 0 to 1"):
            until(lambda: not consumer.poll(0.5, 1) and False)


def test_a_record_beyond_the_limit_is_refused_and_the_largest_passes(log: KafkaLog) -> None:
    with pytest.raises(RecordTooLarge, match="1000001 bytes"):
        log.append([*signals(1), Message("signals", 0, "k", b"x" * MAX_RECORD_BYTES)])
    assert sum(log.ends("signals").values()) == 0
    log.append([Message("signals", 0, "k", b"x" * (MAX_RECORD_BYTES - 1))])
    assert len(log.read("signals", 0, 0, 10)[0].value) == MAX_RECORD_BYTES - 1


def test_what_an_earlier_release_wrote_is_read_beside_compressed_batches(
    log: KafkaLog, servers: str, prefix: str
) -> None:
    plain = KafkaProducer(bootstrap_servers=servers)
    plain.send(f"{prefix}signals", b"not compressed", key=b"k", partition=0).get(PATIENCE_SECONDS)
    plain.close()
    words = [f"the words of record {number}: ".encode() + b"the same in each" * 20 for number in range(300)]
    log.append([Message("signals", 0, "k", value) for value in words])
    assert [record.value for record in log.read("signals", 0, 0, 1000)] == [b"not compressed", *words]
    assert log.read_each("signals", [LogPlace(0, 0), LogPlace(0, 300)]).keys() == {LogPlace(0, 0), LogPlace(0, 300)}
    admin = KafkaAdminClient(bootstrap_servers=servers)
    stored = sum(
        part["partition_size"]
        for broker in admin.describe_log_dirs()
        for folder in broker["log_dirs"]
        for topic in folder["topics"]
        if topic["name"] == f"{prefix}signals"
        for part in topic["partitions"]
    )
    admin.close()
    assert 0 < stored < sum(map(len, words)) / 4


def test_another_number_of_partitions_is_refused(log: KafkaLog, servers: str, prefix: str) -> None:
    log.create_topics()
    other = KafkaLog(servers, prefix=prefix, num_partitions=8)
    with pytest.raises(InvalidSettings, match="has 4 partitions, not 8"):
        other.create_topics()


def test_no_topics_is_unavailable(servers: str, prefix: str) -> None:
    log = KafkaLog(servers, prefix=prefix, timeout=1.0)
    with pytest.raises(Unavailable, match="topics"):
        log.append(signals(1))
    log.close()
