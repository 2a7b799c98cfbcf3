"""A moment of a home is one moment: while writers write, no file knows what another does not know yet."""

import itertools
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from contracts.errors import Conflict
from contracts.event_log import Message
from contracts.topics import SIGNALS
from runtime.backup.cut import STAGING, copy_database, home_cut
from runtime.log.local import LocalLog
from tests.databases import write_migrated


def nothing() -> None:
    pass


def rows(path: Path, statement: str) -> int:
    with sqlite3.connect(path) as connection:
        number: int = connection.execute(statement).fetchone()[0]
    connection.close()
    return number


@pytest.mark.slow
def test_a_cause_is_never_missing(tmp_path: Path) -> None:
    """Each writer adds to the database, then to the log, then to a journal: whoever has the later has the earlier."""
    home = tmp_path / "home"
    write_migrated(home / "millrace.db")
    log = LocalLog(home / "log")
    log.create_topics()
    journal = home / "checkpoints" / "journal"
    journal.parent.mkdir()
    journal.touch()
    stop = threading.Event()

    def write() -> None:
        connection = sqlite3.connect(home / "millrace.db", timeout=30, isolation_level=None)
        connection.execute("CREATE TABLE said (number INTEGER)")
        for number in itertools.count():
            if stop.is_set():
                break
            connection.execute("INSERT INTO said VALUES (?)", (number,))
            log.append([Message(SIGNALS, 0, str(number), b"")])
            with journal.open("ab") as file:
                file.write(b"x")
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(12):
            threading.Event().wait(0.05)
            with home_cut(home, nothing) as cut:
                threading.Event().wait(0.05)  # the writer goes on
                said, logged = tmp_path / f"{number}.db", tmp_path / f"{number}.log"
                copy_database(cut.databases["millrace.db"], said)
                copy_database(cut.databases[f"log/{SIGNALS}.db"], logged)
                [kept] = [item for item in cut.files if item.name == "checkpoints/journal"]
            counts = rows(said, "SELECT count(*) FROM said"), rows(logged, "SELECT count(*) FROM record")
            assert counts[0] - 1 <= counts[1] <= counts[0], counts
            assert counts[1] - 1 <= kept.size <= counts[1], (counts, kept)
            assert cut.held_seconds < 30
    finally:
        stop.set()
        writer.join()
    assert counts[0] > 3
    assert not (home / STAGING).exists()


def test_a_file_that_is_deleted_or_replaced_meanwhile_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    old = tmp_path / "checkpoints" / "checkpoint-1" / "weights"
    old.write_bytes(b"old")
    grown = tmp_path / "spool"
    grown.write_bytes(b"12")
    for name in ("logs", "replica", "bundles"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    (tmp_path / "up.lock").touch()
    with home_cut(tmp_path, nothing) as cut:
        old.unlink()
        with grown.open("ab") as file:
            file.write(b"34")
        found = {item.name: item.path.read_bytes()[: item.size] for item in cut.files}
    assert found == {"checkpoints/checkpoint-1/weights": b"old", "spool": b"12"}


def test_a_file_that_is_deleted_and_made_again_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").touch()

    def link(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "link", link)
    with home_cut(tmp_path, nothing) as cut:
        assert cut.files == []


def test_a_second_backup_is_refused_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / STAGING / "home").mkdir(parents=True)
    (tmp_path / STAGING / "home" / "left").touch()
    (tmp_path / "key").touch()
    with home_cut(tmp_path, nothing) as cut:
        assert [item.name for item in cut.files] == ["key"]
        with pytest.raises(Conflict, match=r"another backup of .* is being taken"), home_cut(tmp_path, nothing):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key"]


def test_nobody_writes_while_another_database_is_read(tmp_path: Path) -> None:
    write_migrated(tmp_path / "millrace.db")
    failures: list[str] = []

    def try_to_write() -> None:
        connection = sqlite3.connect(tmp_path / "millrace.db", timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            failures.append(str(error))
        connection.close()

    with home_cut(tmp_path, try_to_write):
        try_to_write()
    assert failures == ["database is locked"]
