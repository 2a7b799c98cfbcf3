"""Rows of PostgreSQL go into a backup and come back, all or none, and so does its whole home."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text

from commands.backup import backup
from commands.restore import restore
from contracts.errors import Conflict, Damaged
from contracts.tables import outbox
from contracts.topics import GENERATIONS, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.backup import tables
from runtime.backup.archive import PIECE_BYTES
from runtime.database import Database
from runtime.days import held_days
from runtime.log.local import LocalLog
from runtime.settings import Settings, load_settings, write_settings
from runtime.worker import Worker
from tests.contract.test_upgrade import contents
from tests.fakes import BOOKING_TASK, a_generation, a_signal, message
from tests.worlds.servers.postgres import create_empty

pytestmark = pytest.mark.services


def fill(database: Database, event_log: LocalLog) -> None:
    """Answers with bodies, signals, and an outbox row that is larger than a piece, with every byte."""
    answers = [a_generation() for _ in range(20)]
    event_log.append([message(GENERATIONS, answer) for answer in answers])
    event_log.append([message(SIGNALS, a_signal(answer)) for answer in answers])
    worker = Worker(EpisodesHandler({"booking": BOOKING_TASK}, lambda: 150.0), database, event_log, clock=lambda: 150.0)
    for _ in range(4):
        worker.step()
    value = bytes(range(256)) * (PIECE_BYTES // 256)
    with database.transaction() as connection:
        row = {"process": "p", "topic": "t", "route": 1, "key": "a\tb\\\n\N{SNOWMAN}", "value": value}
        connection.execute(insert(outbox).values(row))


def home_on(server: Database, folder: Path) -> Path:
    home, more = folder / "home", {"weights_unsigned": True, "database_url": server.url}
    own = {"home": home, "run": "r", "policy": "booking", "base": "none", "tasks": (Path("none"),)}
    write_settings(Settings.model_validate(own | more), {})
    return home


def test_every_row_comes_back(server: Database, event_log: LocalLog, tmp_path: Path) -> None:
    fill(server, event_log)
    home = home_on(server, tmp_path)
    (home / "log").mkdir()
    backup(tmp_path / "b", home)
    before = contents(server)
    with pytest.raises(Conflict, match=r"the database is not empty: it has \d+ tables, first 'agent_session'"):
        restore(tmp_path / "b", tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "log") == ["b", "home"]
    other = Database(create_empty())
    restore(tmp_path / "b", tmp_path / "to", other.url)
    assert contents(other) == before
    assert load_settings(tmp_path / "to").database_url == other.url
    assert len(before["generation"]) == 20
    with server.snapshot() as old, other.snapshot() as new:
        assert held_days(new) == held_days(old)
    with other.transaction() as connection:  # numbers go on
        connection.execute(insert(outbox).values(process="p", topic="t", route=1, key="k", value=b""))
        numbers = connection.execute(select(func.count(), func.count(outbox.c.id.distinct()))).one()
    assert numbers[0] == numbers[1]
    other.close()


def test_rows_that_do_not_fit_leave_an_empty_database() -> None:
    other = Database(create_empty())
    with pytest.raises(Exception, match="invalid input syntax"):
        tables.load(other, (), {"assignment": iter([b"not\ta\trow\n"])}, {})
    tables.require_empty(other)
    other.close()


def test_a_damaged_backup_touches_no_table(server: Database, tmp_path: Path) -> None:
    path = tmp_path / "b"
    backup(path, home_on(server, tmp_path))
    path.write_bytes(path.read_bytes()[:-20_000])
    other = Database(create_empty())
    with pytest.raises(Damaged):
        restore(path, tmp_path / "to", other.url)
    tables.require_empty(other)
    other.close()


def test_rows_of_one_moment(server: Database) -> None:
    """What is committed after the snapshot is in no table of it."""
    with server.snapshot() as rows:
        rows.execute(text("SELECT 1"))
        with server.transaction() as connection:
            connection.execute(insert(outbox).values(process="p", topic="t", route=1, key="later", value=b""))
        found = b"".join(content for table, _, content in tables.pieces_of(rows) if table == "outbox")
    assert found == b""
