"""Whose turn it is to write: announced transactions go before those that give way, across processes and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import select

from contracts.tables import signal_count
from contracts.tables.statements import insert_new
from runtime import turns
from runtime.database import Database
from runtime.turns import WriteTurns

HOLD = """
import sys
from runtime.turns import WriteTurns
with WriteTurns(sys.argv[1]).announced():
    print("held", flush=True)
    sys.stdin.read()
"""


def passes(path: Path) -> threading.Event:
    """Set once somebody who gives way may go on."""
    done = threading.Event()

    def wait() -> None:
        WriteTurns(str(path)).give_way()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    return done


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives way waits as long as it takes."""
    monkeypatch.setattr(turns, "LONGEST_WAIT_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_who_gives_way_waits_until_every_announced_transaction_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with WriteTurns(str(path)).announced():
        with WriteTurns(str(path)).announced():
            done = passes(path)
            assert not done.wait(0.05)
        assert not done.wait(0.05)
    assert done.wait(30.0)


@pytest.mark.usefixtures("patient")
def test_the_turn_of_a_process_that_is_killed_is_over(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    here = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=here) as holder:  # noqa: S603
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = passes(path)
        assert not done.wait(0.05)
        holder.send_signal(signal.SIGKILL)
        assert done.wait(30.0)


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_WAIT_SECONDS", 0.01)
    path = str(tmp_path / "m.db")
    with WriteTurns(path).announced():
        WriteTurns(path).give_way()
        assert passes(Path(path)).wait(30.0), "it goes on while the other still holds its turn"


def test_a_disk_that_cannot_be_written_is_reported_by_the_transaction(tmp_path: Path) -> None:
    path = str(tmp_path / "no folder" / "m.db")
    WriteTurns(path).give_way()
    with WriteTurns(path).announced():
        assert not (tmp_path / "no folder").exists()


@pytest.mark.usefixtures("patient")
def test_data_gives_way_to_the_rows_that_keep_the_product_running(database: Database) -> None:
    """While data is being written, both wait; then the one that does not give way begins first, whoever asked first."""
    order: list[str] = []
    asked = {name: threading.Event() for name in ("data", "lease")}

    def write(name: str, *, gives_way: bool) -> None:
        own = Database(database.url)
        asked[name].set()
        with own.transaction(gives_way=gives_way) as connection:
            order.append(name)
            insert_new(connection, signal_count, {"state": name, "count": 1})
        own.close()

    path = database.url.removeprefix("sqlite:///")
    with database.transaction():
        lease = threading.Thread(target=write, args=("lease",), kwargs={"gives_way": False})
        lease.start()
        asked["lease"].wait()
        while turns_are_free(path):
            pass
        data = threading.Thread(target=write, args=("data",), kwargs={"gives_way": True})
        data.start()
        asked["data"].wait()
    lease.join()
    data.join()
    assert order == ["lease", "data"]
    with database.snapshot() as connection:
        assert set(connection.execute(select(signal_count.c.state)).scalars()) == {"data", "lease"}


def turns_are_free(path: str) -> bool:
    file = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT)
    try:
        return turns._is_free(file)
    finally:
        os.close(file)
