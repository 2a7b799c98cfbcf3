"""What every `EventLog` promises. The suite runs on each implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.event_log import EventLog, Message
from contracts.local_log import LocalLog


@pytest.fixture(params=[LocalLog])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    make: Callable[[Path], EventLog] = request.param
    opened = make(tmp_path / "log")
    yield opened
    opened.close()


def at_zero(topic: str, partition: int) -> int:
    del topic, partition
    return 0


def test_order_holds_within_a_route(log: EventLog) -> None:
    log.append([Message("signals", number % 8, "k", str(number).encode()) for number in range(100)])
    consumer = log.consumer("g", ["signals"], at_zero)
    records = consumer.poll(1.0, 1000)
    assert len(records) == 100
    for partition in range(log.num_partitions):
        mine = [int(record.value) for record in records if record.partition == partition]
        assert mine == sorted(mine)
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_consumer_starts_at_the_stored_position_and_can_go_back(log: EventLog) -> None:
    log.append([Message("signals", 0, "k", bytes([number])) for number in range(5)])
    consumer = log.consumer("g", ["signals"], lambda _topic, partition: 3 if partition == 0 else 0)
    assert [record.value for record in consumer.poll(1.0, 10)] == [b"\x03", b"\x04"]
    assert consumer.poll(0.0, 10) == []
    consumer.seek_to_stored()
    assert len(consumer.poll(1.0, 10)) == 2


def test_a_limit_is_kept_and_nothing_is_skipped(log: EventLog) -> None:
    log.append([Message("signals", number, "k", bytes([number])) for number in range(50)])
    consumer = log.consumer("g", ["signals"], at_zero)
    read: list[bytes] = []
    while batch := consumer.poll(0.0, 7):
        assert len(batch) <= 7
        read += [record.value for record in batch]
    assert sorted(read) == [bytes([number]) for number in range(50)]


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
    assert len({record.value for record in log.consumer("g", ["signals"], at_zero).poll(1.0, 1000)}) == 80


def test_an_empty_topic_has_ends_and_nothing_to_read(log: EventLog) -> None:
    assert log.ends("episodes") == dict.fromkeys(range(log.num_partitions), 0)
    assert log.read("episodes", 0, 0, 10) == []


def test_a_log_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    (folder / "signals.db").mkdir(parents=True)
    log = LocalLog(folder)
    for use in (
        lambda: log.append([Message("signals", 0, "k", b"v")]),
        lambda: log.read("signals", 0, 0, 1),
        lambda: log.ends("signals"),
    ):
        with pytest.raises(Unavailable, match="free disk space"):
            use()
    log.close()
