from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, update

from contracts import assignments
from contracts.errors import Conflict, InvalidSettings, NotFound, StaleWrite
from contracts.tables import assignment_change, doomed, version_claim
from contracts.version_history import read_assigned_since
from runtime.database import Database


def move(
    database: Database, version: int | None, expected_epoch: int, root: str | None = None, run: str | None = None
) -> assignments.Assignment:
    with database.transaction() as connection:
        return assignments.move(
            connection,
            policy="p",
            arm="live",
            version=version,
            expected_epoch=expected_epoch,
            writer="test",
            reason="",
            share=1.0,
            root=root,
            run=run,
        )


def test_only_the_first_of_two_moves_from_the_same_epoch_counts(database: Database) -> None:
    assert move(database, 0, 0).epoch == 1
    assert move(database, 1, 1).epoch == 2
    with pytest.raises(StaleWrite):
        move(database, 2, 1)
    with pytest.raises(StaleWrite):
        move(database, 2, 0)
    with database.snapshot() as connection:
        assert assignments.read(connection, "p")["live"].version == 1


def test_versions_of_late_are_those_that_an_arm_pointed_at_however_shortly(database: Database) -> None:
    for epoch, version in enumerate((0, 1, 2, None, 3)):
        move(database, version, epoch)
    with database.transaction() as connection:
        for epoch, at in enumerate((10.0, 20.0, 30.0, 30.1, 40.0), start=1):
            there = assignment_change.c.epoch == epoch
            connection.execute(update(assignment_change).where(there).values(at=at))
    with database.snapshot() as connection:
        found = {at: read_assigned_since(connection, "p", at) for at in (5.0, 15.0, 25.0, 30.05, 35.0, 99.0)}
        assert read_assigned_since(connection, "other", 0.0) == set()
    assert found == {5.0: {0, 1, 2, 3}, 15.0: {0, 1, 2, 3}, 25.0: {1, 2, 3}, 30.05: {2, 3}, 35.0: {3}, 99.0: {3}}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=12))
def test_the_epoch_counts_the_moves_and_the_history_holds_each(
    database: Database, tries: list[tuple[int, int]]
) -> None:
    with database.snapshot() as connection:
        held = assignments.read(connection, "p").get("live")
    epoch = held.epoch if held else 0
    for version, expected in tries:
        try:
            assert expected == epoch
            epoch = move(database, version, expected).epoch
        except AssertionError:
            with pytest.raises(StaleWrite):
                move(database, version, expected)
    with database.snapshot() as connection:
        moves = connection.execute(select(func.count()).select_from(assignment_change)).scalar_one()
    assert moves == epoch


def test_an_arm_names_the_root_and_so_does_whoever_goes_back_to_it(database: Database) -> None:
    assert move(database, 4, 0, root="a" * 64).root == "a" * 64
    assert move(database, 0, 1).root is None
    assert move(database, None, 2).root is None
    assert move(database, 4, 3).root == "a" * 64
    with database.snapshot() as connection:
        assert assignments.read(connection, "p")["live"].root == "a" * 64


def test_other_weights_under_a_known_number_are_refused(database: Database) -> None:
    row = {"policy": "p", "version": 4, "parent": 0, "epoch": 1, "root": "a" * 64, "claimed_at": 0.0}
    with database.transaction() as connection:
        connection.execute(insert(version_claim).values(**row))
    with pytest.raises(Conflict, match="version 4 was published as aaa"):
        move(database, 4, 0, root="b" * 64)
    assert move(database, 4, 0).root == "a" * 64


def test_a_version_whose_bytes_go_is_assigned_no_more(database: Database) -> None:
    row = {"policy": "p", "kind": "version", "name": "4", "epoch": 1, "going": True, "at": 0.0}
    with database.transaction() as connection:
        connection.execute(insert(doomed).values(**row))
    with pytest.raises(NotFound, match="removed from the weight store"):
        move(database, 4, 0)
    assert move(database, 5, 0).version == 5


def test_a_move_says_the_run_and_a_later_one_inherits_it(database: Database) -> None:
    assert move(database, 0, 0, run="run-1").run == "run-1"
    assert move(database, 1, 1).run == "run-1"
    with database.snapshot() as connection:
        assert assignments.read(connection, "p")["live"].run == "run-1"


def test_runs_never_mix(database: Database) -> None:
    move(database, 0, 0, run="run-1")
    with pytest.raises(Conflict, match="run-1"):
        move(database, 1, 1, run="run-2")
    with pytest.raises(InvalidSettings, match="run-1"), database.transaction() as connection:
        assignments.note_run(connection, "p", "run-2")


def test_a_home_of_before_learns_its_run_at_the_next_start(database: Database) -> None:
    assert move(database, 0, 0).run is None
    assert move(database, 1, 1).run is None
    with database.transaction() as connection:
        assignments.note_run(connection, "p", "run-1")
        assignments.note_run(connection, "p", "run-1")
    with database.snapshot() as connection:
        assert assignments.read(connection, "p")["live"].run == "run-1"
        assert set(connection.execute(select(assignment_change.c.run)).scalars()) == {"run-1"}
