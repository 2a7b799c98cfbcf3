"""What a worker holds while it writes, on PostgreSQL: SQLite has one writer anyway."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, select

from contracts.errors import Unavailable
from contracts.event_log import LogRecord, Message
from contracts.tables import position
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.worker import Worker
from tests.worlds.passing import Echo

pytestmark = pytest.mark.services


class TwoTopics(Echo):
    """Changes nothing."""

    topics = ("generations", "signals")

    def handle(self, connection: Connection, items: Sequence[LogRecord]) -> list[Message]:
        del connection, items
        return []


@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
def test_who_has_a_record_of_a_partition_holds_the_partition_of_every_topic(
    any_database: Database, event_log: LocalLog
) -> None:
    refused = []

    def heir_tries(point: str) -> None:
        if point != "worker: before commit":
            return
        for topic, partition in (("generations", 0), ("generations", 1)):
            place = (position.c.topic == topic) & (position.c.partition == partition)
            try:
                with any_database.transaction() as connection:
                    connection.execute(select(position).where(place).with_for_update(nowait=True)).one()
            except Unavailable:
                refused.append((topic, partition))

    worker = Worker(TwoTopics(), any_database, event_log, fault=heir_tries)
    worker.step()
    assert refused == []
    event_log.append([Message("signals", 0, "s", b"")])
    assert worker.step() == 1
    assert refused == [("generations", 0)]
