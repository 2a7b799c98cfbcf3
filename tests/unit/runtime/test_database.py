from __future__ import annotations

import threading

import pytest
from sqlalchemy import select, text

from contracts.errors import InvalidSettings
from contracts.tables import signal_count
from contracts.tables.statements import insert_new, insert_or_update
from runtime.database import Database
from runtime.days import migrate


def add_one(database: Database, may_read: threading.Barrier) -> None:
    """Read, then write what was read plus one."""
    may_read.wait()
    with database.transaction() as connection:
        insert_new(connection, signal_count, {"state": "duplicate", "count": 0})
    for _ in range(20):
        with database.transaction() as connection:
            count = connection.execute(select(signal_count.c.count)).scalar_one()
            insert_or_update(connection, signal_count, {"state": "duplicate", "count": count + 1}, ["count"])


def test_transactions_that_read_before_they_write_wait_for_each_other(database: Database) -> None:
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=add_one, args=(database, barrier)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.snapshot() as connection:
        assert connection.execute(select(signal_count.c.count)).scalar_one() == 60


def test_a_snapshot_does_not_wait_for_a_writer_and_does_not_see_it(database: Database) -> None:
    with database.transaction() as writer:
        insert_new(writer, signal_count, {"state": "duplicate", "count": 1})
        with database.snapshot() as connection:
            assert connection.execute(select(signal_count.c.count)).all() == []


def test_a_database_of_a_newer_millrace_is_refused(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'ffffffffffff'"))
    with pytest.raises(InvalidSettings, match=r"another version of Millrace .*--home"):
        migrate(database)
