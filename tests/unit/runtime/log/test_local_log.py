"""What only the log in files can suffer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import Damaged, InvalidRecord, InvalidSettings, PositionLost, Unavailable
from contracts.event_log import LogRecord, Message, is_damaged
from contracts.records import Signal, decode
from runtime.log.local import LocalLog


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.append([Message("signals", 0, "k", b"v")]),
        lambda log: log.read("signals", 0, 0, 1),
        lambda log: log.ends("signals"),
    ],
)
def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path, use: Callable[[LocalLog], object]) -> None:
    (tmp_path / "signals.db").mkdir()
    log = LocalLog(tmp_path)
    with pytest.raises(Unavailable, match="free disk space"):
        use(log)
    log.close()


def test_a_position_beyond_the_end_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    log.append([Message("signals", 2, "k", b"v")])
    consumer = log.consumer("g", ["signals"], lambda _topic, partition: 70 if partition == 2 else 0)
    with pytest.raises(PositionLost, match=r"70 of signals/2 is outside of the log, which has 0 to 1"):
        consumer.poll(0.0, 10)
    log.close()


def test_a_log_that_gets_shorter_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    log.append([Message("signals", 0, "k", b"v")] * 5)
    consumer = log.consumer("g", ["signals"], lambda _topic, _partition: 0)
    assert len(consumer.poll(0.0, 10)) == 5
    log._connection("signals").execute("DELETE FROM record WHERE offset >= 2")
    consumer._look_at = 0.0  # a second later
    with pytest.raises(PositionLost, match=r"has 0 to 2"):
        consumer.poll(0.0, 10)
    log.close()


def test_a_file_of_before_there_were_checksums_is_read_and_gets_an_identity(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "signals.db")
    connection.execute(
        "CREATE TABLE record (partition INTEGER NOT NULL, offset INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,"
        " appended_at REAL NOT NULL, PRIMARY KEY (partition, offset)) WITHOUT ROWID"
    )
    connection.execute("INSERT INTO record VALUES (0, 0, 'old', x'01', 5.0)")
    connection.commit()
    connection.close()
    log = LocalLog(tmp_path)
    log.append([Message("signals", 0, "new", b"v")])
    assert [(item.key, is_damaged(item.value)) for item in log.read("signals", 0, 0, 10)] == [
        ("old", False),
        ("new", False),
    ]
    identity = log.describe()["signals"].identity
    assert identity
    assert log.describe()["signals"].identity == identity
    log.close()


@pytest.mark.parametrize(
    "harm",
    ["value = x'00'", "key = 'other'", "appended_at = 1.0", "crc = 1", "value = 'text'", "key = CAST(x'ff' AS TEXT)"],
)
def test_a_record_that_is_not_what_was_appended_says_so_and_the_next_is_whole(tmp_path: Path, harm: str) -> None:
    log = LocalLog(tmp_path)
    log.append([Message("signals", 0, "k", b"v"), Message("signals", 0, "k", b"w")])
    log._connection("signals").execute(f"UPDATE record SET {harm} WHERE offset = 0")  # noqa: S608 of this test
    bad, good = log.read("signals", 0, 0, 10)
    assert (is_damaged(bad.value), is_damaged(good.value), good.value) == (True, False, b"w")
    with pytest.raises(InvalidRecord, match="not the Signal that was appended"):
        decode(Signal, bad.value)
    log.close()


def test_a_file_that_is_no_database_any_more_is_damaged_by_name(tmp_path: Path) -> None:
    (tmp_path / "signals.db").write_bytes(b"x" * 8192)
    log = LocalLog(tmp_path)
    for use in (
        lambda: log.append([Message("signals", 0, "k", b"v")]),
        lambda: log.read("signals", 0, 0, 1),
        log.describe,
    ):
        with pytest.raises(Damaged, match=r"signals\.db is damaged \(file is not a database\).*accept-loss"):
            use()
    log.close()


def test_an_identity_with_a_flipped_bit_is_damage_and_not_another_log(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    log.create_topics()
    log._connection("signals").execute("UPDATE meta SET value = 'f' || substr(value, 2) || 'x' WHERE name = 'id'")
    with pytest.raises(Damaged, match="its identity is corrupt"):
        log.describe()
    log.close()


class CountingLog(LocalLog):
    """Counts what is read."""

    num_reads = 0

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        self.num_reads += 1
        return super().read(topic, partition, offset, limit)


def test_many_partitions_cost_nothing_while_nothing_comes(tmp_path: Path) -> None:
    log, other = CountingLog(tmp_path, 256), LocalLog(tmp_path, 256)
    consumer = log.consumer("g", ["signals"], lambda _topic, _partition: 0)
    assert consumer.poll(0.0, 10) == []
    assert log.num_reads == 256
    for _ in range(5):
        assert consumer.poll(0.0, 10) == []
    assert log.num_reads == 256
    for number, sender in enumerate((log, other)):  # this process, and another one
        sender.append([Message("signals", 255, "k", bytes([number]))])
        assert [record.value for record in consumer.poll(0.0, 10)] == [bytes([number])]
    consumer.seek_to_stored()
    assert [record.value for record in consumer.poll(0.0, 1)] == [b"\x00"]
    assert [record.value for record in consumer.poll(0.0, 1)] == [b"\x01"]
    assert consumer.poll(0.0, 1) == []
    log.close()
    other.close()


def test_a_log_of_an_earlier_release_has_four_partitions(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    log.create_topics()
    log._connection("generations").execute("DELETE FROM meta WHERE name = 'partitions'")
    log.check_topics()
    log.close()
    with pytest.raises(InvalidSettings, match=r"generations\.db has 4 partitions, not 8, .*set partitions = 4"):
        LocalLog(tmp_path, 8).check_topics()
