"""Who rolls back at the same moment, on both databases: one does, the others are told to look again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, insert

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import StaleWrite
from contracts.revocations import Treatment
from contracts.rollback import promote, roll_back
from contracts.tables import verdict
from runtime.database import Database

POLICY = "p"


def point(connection: Connection, arm: str, version: int | None) -> None:
    held = assignments.read(connection, POLICY).get(arm)
    epoch = held.epoch if held else 0
    assignments.move(
        connection, policy=POLICY, arm=arm, version=version, expected_epoch=epoch, writer="t", reason="t", share=1.0
    )


def learn(database: Database) -> None:
    with database.transaction() as connection:
        for version in range(6):
            point(connection, LIVE, version)
            row = {"policy": POLICY, "version": version, "accepted": True, "reason": "", "details": {}}
            connection.execute(insert(verdict).values(**row, at=time.time()))
        point(connection, CANDIDATE, 6)


@pytest.mark.parametrize("attempt", range(2))
def test_of_two_operators_at_once_one_writes_and_the_other_looks_again(any_database: Database, attempt: int) -> None:
    del attempt
    learn(any_database)
    together = threading.Barrier(2)

    def roll(to: int, treatment: Treatment) -> str:
        together.wait()
        try:
            with any_database.transaction() as connection:
                roll_back(
                    connection, policy=POLICY, writer=treatment, reason="r", to=to, treatment=treatment, seen_live=5
                )
        except StaleWrite:
            return "stale"
        return treatment

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(roll, (2, 3), ("poison", "evidence")))
    winner = next(item for item in told if item != "stale")
    assert "stale" in told
    target = 2 if winner == "poison" else 3
    with any_database.snapshot() as connection:
        arms = assignments.read(connection, POLICY)
        found = revocations.read(connection, POLICY)
    assert {name: arm.version for name, arm in arms.items()} == {LIVE: target, TRAINING: target, CANDIDATE: None}
    assert {version: row.treatment for version, row in found.items()} == dict.fromkeys(range(target + 1, 7), winner)


@pytest.mark.parametrize("attempt", range(2))
def test_who_promotes_while_another_rolls_back_serves_nothing_that_is_revoked(
    any_database: Database, attempt: int
) -> None:
    del attempt
    learn(any_database)
    together = threading.Barrier(2)

    def act(rolls: bool) -> bool:
        together.wait()
        try:
            with any_database.transaction() as connection:
                if rolls:
                    roll_back(connection, policy=POLICY, writer="a", reason="r", to=2, seen_live=5)
                else:
                    promote(connection, policy=POLICY, to=6, writer="b", reason="r", seen_live=5)
        except StaleWrite:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        rolled, promoted = pool.map(act, (True, False))
    assert rolled != promoted
    with any_database.snapshot() as connection:
        live = assignments.read(connection, POLICY)[LIVE].version
        assert live == (2 if rolled else 6)
        assert live not in revocations.read(connection, POLICY)
