"""A spool whose rows cannot be deleted, or whose disk is full: the log gets everything, once, and is used again."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.event_log import Message
from runtime.log.local import LocalLog
from runtime.log.spool import Spool
from runtime.log.spool_slot import SpoolSlot, abandoned_slots
from tests.unit.runtime.log.test_spool import Away, keeps, messages, spooling
from tests.unit.services.serving import wait_until

DISK_BYTES = 400_000


class InMemory(LocalLog):
    """A log that needs no disk, and can refuse."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.refuses = True
        self.taken: list[str] = []

    def append(self, messages: Sequence[Message]) -> None:
        if self.refuses:
            raise Unavailable("no broker")
        self.taken += [message.key for message in messages]


def forbid_deleting(file: Path) -> None:
    """What a full disk does: a DELETE fails."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE DELETE ON waiting BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )


def num_rows(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        [num] = connection.execute("SELECT COUNT(*) FROM waiting").fetchone()
    return int(num)


@contextmanager
def slot_of(folder: Path) -> Iterator[SpoolSlot]:
    slot = SpoolSlot.take_first(folder, 2**20)
    yield slot
    slot.close()


@contextmanager
def unusable(file: Path) -> Iterator[None]:
    """A folder where the file should be."""
    aside = file.with_suffix(".aside")
    file.rename(aside)
    file.mkdir()
    yield
    file.rmdir()
    aside.rename(file)


def test_what_cannot_be_deleted_is_gone_all_the_same_and_a_crash_only_repeats_it(tmp_path: Path) -> None:
    with slot_of(tmp_path) as slot:
        slot.append(messages("a", "b", "c"))
        forbid_deleting(tmp_path / "0.db")
        slot.remove(slot.oldest(2, 2**20))
        assert num_rows(tmp_path / "0.db") == 3
        assert [message.key for message in slot.oldest(10, 2**20).messages] == ["c"]
        assert (slot.num_records, slot.num_bytes, slot.is_clean) == (1, 11, False)
    with slot_of(tmp_path) as slot:
        assert [message.key for message in slot.oldest(10, 2**20).messages] == ["a", "b", "c"]


def test_rows_go_once_they_can(tmp_path: Path) -> None:
    with slot_of(tmp_path) as slot:
        slot.append(messages("a", "b", "c"))
        forbid_deleting(tmp_path / "0.db")
        slot.remove(slot.oldest(2, 2**20))
        with closing(sqlite3.connect(tmp_path / "0.db")) as connection:
            connection.execute("DROP TRIGGER full")
        slot.tidy()
        assert num_rows(tmp_path / "0.db") == slot.num_records == 1


def test_an_emptied_slot_gives_its_room_back_without_a_delete(tmp_path: Path) -> None:
    with slot_of(tmp_path) as slot:
        slot.append(messages("a", "b", size=200_000))
        forbid_deleting(tmp_path / "0.db")
        for _ in range(2):
            slot.remove(slot.oldest(1, 2**20))
        assert slot.is_clean
        assert sum(path.stat().st_size for path in tmp_path.glob("0.db*")) < 100_000
        slot.append(messages("c"))
        assert [message.key for message in slot.oldest(10, 2**20).messages] == ["c"]


def test_a_crash_while_it_starts_over_leaves_an_empty_slot(tmp_path: Path) -> None:
    with slot_of(tmp_path) as slot:
        slot.append(messages("a"))
        shutil.copy(tmp_path / "0.db-wal", tmp_path / "kept")
    (tmp_path / "0.db").write_bytes(b"")
    (tmp_path / "kept").rename(tmp_path / "0.db-wal")
    with slot_of(tmp_path) as slot:
        assert slot.num_records == 0
        slot.append(messages("b"))
        assert [message.key for message in slot.oldest(10, 2**20).messages] == ["b"]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["same file", "new file"])
def test_a_file_that_cannot_start_over_is_used_again_when_it_can(tmp_path: Path, is_deleted: bool) -> None:
    with slot_of(tmp_path) as slot:
        slot.append(messages("a", "b"))
        with unusable(tmp_path / "0.db"):
            slot.remove(slot.oldest(10, 2**20))
            assert (slot.num_records, slot.oldest_at, slot.is_clean) == (0, None, False)
            assert slot.oldest(10, 2**20).messages == []
            with pytest.raises(Unavailable, match="free disk space"):
                slot.append(messages("c"))
        if is_deleted:
            (tmp_path / "0.db").unlink()
        slot.append(messages("d"))
        assert [message.key for message in slot.oldest(10, 2**20).messages] == ["d"]
        slot.remove(slot.oldest(10, 2**20))
        assert slot.is_clean
        assert num_rows(tmp_path / "0.db") == 0


def test_the_log_is_used_again_though_the_spool_cannot_be_emptied(tmp_path: Path) -> None:
    with closing(Away(tmp_path / "log")) as log, spooling(log, tmp_path) as spool:
        log.refuses = True
        spool.append(messages("a", "b", "c"))
        forbid_deleting(tmp_path / "spool" / "0.db")
        with unusable(tmp_path / "spool" / "0.db"):
            log.refuses = False
            wait_until(lambda: not spool.away)
            spool.append(messages("d"))
            assert log.keys() == ["a", "b", "c", "d"]
            log.refuses = True
            assert not keeps(spool, messages("e"))
        spool.append(messages("f"))
        log.refuses = False
        wait_until(lambda: not spool.away)
        assert log.keys() == ["a", "b", "c", "d", "f"]


def test_a_slot_left_behind_that_cannot_be_emptied_is_kept_and_sent_once(tmp_path: Path) -> None:
    kept = [SpoolSlot.take_first(tmp_path / "spool", 2**20) for _ in range(2)]
    kept[1].append(messages("of the dead", "and more"))
    forbid_deleting(tmp_path / "spool" / "1.db")
    for slot in kept:
        slot.close()

    class Stumbling(Away):
        def append(self, messages: Sequence[Message]) -> None:
            self.refuses = bool(self.batches)
            super().append(messages)

    with closing(Stumbling(tmp_path / "log")) as log:
        with spooling(log, tmp_path):
            wait_until(lambda: log.refuses)
            assert list(abandoned_slots(tmp_path / "spool", 0, 2**20)) == []  # nobody else may send it again
        assert log.keys() == ["of the dead"]
        assert [slot.num_records for slot in closing_each(abandoned_slots(tmp_path / "spool", 0, 2**20))] == [2]


def closing_each(slots: Iterator[SpoolSlot]) -> Iterator[SpoolSlot]:
    for slot in slots:
        yield slot
        slot.close()


def outlive_a_full_disk(folder: Path) -> None:
    """In a process of its own: no file of it may grow beyond DISK_BYTES."""
    log = InMemory(folder / "log")
    spool = Spool(log, folder / "spool")
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, resource.RLIM_INFINITY))
    sent: list[str] = []
    for outage in range(2):
        log.refuses = True
        keys = [f"{outage}-{number}" for number in range(100)]
        kept = [key for key in keys if keeps(spool, messages(key, size=10_000))]
        assert 10 < len(kept) < 100, len(kept)
        assert spool.num_waiting == len(kept)
        log.refuses = False
        wait_until(lambda: not spool.away)
        spool.append(messages(f"{outage}-after"))
        sent += [*kept, f"{outage}-after"]
        assert log.taken == sent, log.taken
    spool.close()


@pytest.mark.slow
def test_a_full_disk_loses_and_repeats_nothing_and_is_usable_again(tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=outlive_a_full_disk, args=(tmp_path,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
