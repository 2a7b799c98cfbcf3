"""What every `EventLog` promises. The suite runs on each implementation."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from contracts.event_log import EventLog, LogPlace, LogRecord, Message
from runtime.log.kafka import KafkaLog
from runtime.log.local import LocalLog
from tests.worlds.servers.services import kafka_log, new_prefix


@contextmanager
def local_log(folder: Path, num_partitions: int) -> Iterator[LocalLog]:
    log = LocalLog(folder, num_partitions)
    yield log
    log.close()


@contextmanager
def own_kafka_log(_folder: Path, num_partitions: int) -> Iterator[KafkaLog]:
    with kafka_log(new_prefix(), num_partitions=num_partitions) as log:
        yield log


@pytest.fixture(
    params=[
        pytest.param((local_log, 4), id="LocalLog"),
        pytest.param((local_log, 64), id="LocalLog-64"),
        pytest.param((own_kafka_log, 7), marks=pytest.mark.services, id="KafkaLog-7"),
    ]
)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    make: Callable[[Path, int], AbstractContextManager[EventLog]] = request.param[0]
    with make(tmp_path / "log", request.param[1]) as opened:
        yield opened


class GroupMember:
    """Reads as a worker does: whenever it joins its group again, it goes on behind what it took.

    Attributes:
        stored: topic and partition to the next offset.
    """

    def __init__(self, log: EventLog, group: str, topics: Sequence[str]) -> None:
        self.stored: dict[tuple[str, int], int] = {}
        self.consumer = log.consumer(group, topics, lambda topic, partition: self.stored.get((topic, partition), 0))

    def take(self, count: int, limit: int = 1000, seconds: float = 60.0) -> list[LogRecord]:
        """Poll until `count` records came: joining a group and fetching a partition take a log as long as they take."""
        deadline = time.monotonic() + seconds
        records: list[LogRecord] = []
        while len(records) < count and time.monotonic() < deadline:
            batch = self.consumer.poll(1.0, limit)
            assert len(batch) <= limit
            records += batch
            self.stored |= {(record.topic, record.partition): record.offset + 1 for record in batch}
        return records


def test_order_holds_within_a_route(log: EventLog) -> None:
    log.append([Message("signals", number % 8, "k", str(number).encode()) for number in range(100)])
    records = GroupMember(log, "g", ["signals"]).take(100)
    assert len(records) == 100
    for partition in range(log.num_partitions):
        mine = [int(record.value) for record in records if record.partition == partition]
        assert mine == sorted(mine)
        assert {number % 8 % log.num_partitions for number in mine} <= {partition}
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_record_comes_back_as_it_was_sent(log: EventLog) -> None:
    before = time.time()
    log.append([Message("signals", 5, "kéy/0", bytes(range(256))), Message("episodes", 5, "", b"")])
    (signal,) = GroupMember(log, "g", ["signals"]).take(1)
    (episode,) = GroupMember(log, "h", ["episodes"]).take(1)
    assert (signal.topic, signal.key, signal.value) == ("signals", "kéy/0", bytes(range(256)))
    assert (episode.topic, episode.key, episode.value) == ("episodes", "", b"")
    assert before - 1 <= signal.appended_at <= time.time() + 1


def test_a_consumer_starts_at_the_stored_position_and_can_go_back(log: EventLog) -> None:
    log.append([Message("signals", 0, "k", bytes([number])) for number in range(5)])
    member = GroupMember(log, "g", ["signals"])
    for _ in range(2):
        member.stored["signals", 0] = 3
        member.consumer.seek_to_stored()
        assert [record.value for record in member.take(2)] == [b"\x03", b"\x04"]
        assert member.consumer.poll(0.0, 10) == []


def test_a_limit_is_kept_and_nothing_is_skipped(log: EventLog) -> None:
    log.append([Message("signals", number, "k", bytes([number])) for number in range(50)])
    member = GroupMember(log, "g", ["signals"])
    read = [record.value for record in member.take(50, limit=7)]
    assert sorted(read) == [bytes([number]) for number in range(50)]
    assert member.consumer.poll(0.3, 7) == []


def test_groups_do_not_take_records_from_each_other(log: EventLog) -> None:
    log.append([Message("signals", number, "k", bytes([number])) for number in range(10)])
    for group in ("g", "h"):
        assert len(GroupMember(log, group, ["signals"]).take(10)) == 10


def test_a_consumer_reads_several_topics(log: EventLog) -> None:
    log.append([Message("signals", 1, "k", b"s"), Message("episodes", 1, "k", b"e")])
    records = GroupMember(log, "g", ["signals", "episodes"]).take(2)
    assert sorted((record.topic, record.value) for record in records) == [("episodes", b"e"), ("signals", b"s")]


def test_appends_of_many_threads_all_arrive(log: EventLog) -> None:
    def send(sender: int) -> None:
        for number in range(20):
            log.append([Message("signals", sender, f"{sender}", f"{sender}:{number}".encode())])

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(log.ends("signals").values()) == 80
    assert len({record.value for record in GroupMember(log, "g", ["signals"]).take(80)}) == 80


def test_a_stretch_can_be_looked_at(log: EventLog) -> None:
    log.append([Message("signals", 2, "k", bytes([number])) for number in range(10)])
    partition = 2 % log.num_partitions
    assert log.ends("signals")[partition] == 10
    assert [record.offset for record in log.read("signals", partition, 4, 3)] == [4, 5, 6]
    assert [record.offset for record in log.read("signals", partition, 8, 100)] == [8, 9]
    assert log.read("signals", partition, 10, 100) == []


def test_records_are_read_at_their_places(log: EventLog) -> None:
    log.create_topics()
    log.append([Message("generations", number % 2, str(number), b"%d" % number) for number in range(1400)])
    wanted = {LogPlace(0, 3), LogPlace(0, 690), LogPlace(1, 0), LogPlace(1, 699), LogPlace(1, 5), LogPlace(0, 4)}
    gone = {LogPlace(0, 700), LogPlace(3, 0), LogPlace(1, 2**40)}
    for _ in range(2):
        found = log.read_each("generations", wanted | gone)
        assert found.keys() == wanted
    assert {place: record.value for place, record in found.items()} == {
        place: b"%d" % (place.offset * 2 + place.partition) for place in wanted
    }
    assert all((record.partition, record.offset) == place for place, record in found.items())
    assert log.read_each("generations", gone) == log.read_each("generations", ()) == {}
    assert list(log.read_each("generations", {LogPlace(1, 7)})) == [LogPlace(1, 7)]


def test_an_empty_topic_has_ends_and_nothing_to_read(log: EventLog) -> None:
    assert log.ends("episodes") == dict.fromkeys(range(log.num_partitions), 0)
    assert log.read("episodes", 0, 0, 10) == []


def test_another_number_of_partitions_is_refused_and_changes_nothing(log: EventLog, tmp_path: Path) -> None:
    log.create_topics()
    log.append([Message("signals", number, "k", b"v") for number in range(100)])
    log.check_topics()
    before = log.describe()
    assert {len(state.ends) for state in before.values()} == {log.num_partitions}
    other: EventLog
    if isinstance(log, LocalLog):
        other = LocalLog(tmp_path / "log", log.num_partitions + 1)
    else:
        assert isinstance(log, KafkaLog)
        other = KafkaLog(log._cluster.servers, prefix=log._prefix, num_partitions=log.num_partitions + 1)
    says = f"has {log.num_partitions} partitions, not {log.num_partitions + 1}, .*set partitions = {log.num_partitions}"
    for act in (other.check_topics, other.create_topics):
        with pytest.raises(InvalidSettings, match=says):
            act()
    other.close()
    assert log.describe() == before


def test_an_empty_append_does_nothing(log: EventLog) -> None:
    log.append([])
    assert sum(log.ends("signals").values()) == 0


def test_a_topic_is_opened_while_another_connection_writes_to_the_new_file(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    other = sqlite3.connect(folder / "signals.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE other (x)")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO other VALUES (1)")
    done = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    done.start()

    log = LocalLog(folder)
    log.append([Message("signals", 0, "k", b"v")])

    done.join()
    assert sum(log.ends("signals").values()) == 1
    log.close()
    other.close()
