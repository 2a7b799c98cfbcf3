"""Replicas of feedback on one PostgreSQL: one of two equal ids is accepted, no deadlocks, one replica relays."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from contracts.tables import outbox, received_signal, signal_count
from runtime.database import Database
from services.feedback import repository
from services.feedback.repository import ItemResult, Retraction
from tests.unit.services.feedback.test_writer import Items
from tests.worlds.servers.postgres import create_migrated

pytestmark = pytest.mark.services
NUM_IDS, NUM_ROUNDS = 40, 5


@pytest.fixture
def replicas() -> Iterator[list[Database]]:
    url = create_migrated()
    opened = [Database(url) for _ in range(3)]
    yield opened
    for database in opened:
        database.close()


def test_one_of_the_same_ids_is_accepted_and_nobody_deadlocks(replicas: list[Database], tmp_path: Path) -> None:
    items = Items(tmp_path)
    start = threading.Barrier(len(replicas))

    def send(number: int) -> list[ItemResult]:
        names = [f"fb-{index}" for index in range(NUM_IDS)]
        entries = []
        for turn in range(NUM_ROUNDS):
            order = names if (number + turn) % 2 else names[::-1]
            received = [items.one(f"{name}-{turn}") for name in order] + [items.one(order[0], value=False)]
            start.wait(60.0)
            with replicas[number].transaction() as connection:
                entries += repository.add(connection, received, {"invalid_request": 1})
        return entries

    with ThreadPoolExecutor(len(replicas)) as pool:
        entries = [entry for result in pool.map(send, range(len(replicas))) for entry in result]

    with replicas[0].snapshot() as connection:
        stored = connection.execute(select(func.count()).select_from(received_signal)).scalar_one()
        sent = connection.execute(select(func.sum(outbox.c.num_messages))).scalar_one()
        counts = {row[0]: row[1] for row in connection.execute(select(signal_count.c.state, signal_count.c.count))}
    fates = Counter(entry.fate for entry in entries)
    assert fates["accepted"] == stored == sent == NUM_IDS * NUM_ROUNDS + 2
    assert fates.total() == len(replicas) * NUM_ROUNDS * (NUM_IDS + 1)
    assert counts == {"duplicate": fates["duplicate"], "rejected": len(replicas) * NUM_ROUNDS}


def test_two_who_take_back_the_same_send_that_once(replicas: list[Database], tmp_path: Path) -> None:
    with replicas[0].transaction() as connection:
        repository.add(connection, [Items(tmp_path).one("a")])
    start = threading.Barrier(len(replicas))

    def take_back(number: int) -> list[float | None]:
        start.wait(60.0)
        with replicas[number].transaction() as connection:
            return repository.retract(connection, [Retraction("default", "a", float(number + 1))])

    with ThreadPoolExecutor(len(replicas)) as pool:
        times = {result[0] for result in pool.map(take_back, range(len(replicas)))}

    assert len(times) == 1
    with replicas[0].snapshot() as connection:
        assert connection.execute(select(func.count()).select_from(outbox)).scalar_one() == 2


def test_one_replica_relays_and_another_after_it(replicas: list[Database]) -> None:
    with repository.turn_to_relay(replicas[0]) as first, repository.turn_to_relay(replicas[1]) as second:
        assert (first, second) == (True, False)
    with repository.turn_to_relay(replicas[1]) as second:
        assert second
