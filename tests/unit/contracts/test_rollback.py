import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, insert

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.database import Database
from contracts.errors import InvalidRequest, InvalidValue, StaleWrite
from contracts.rollback import read_target, revoked_versions, roll_back, rollback_target
from contracts.tables import verdict

POLICY = "reservations"


@pytest.mark.parametrize(
    ("live", "accepted", "history", "expected"),
    [
        (0, {0}, [0], None),
        (1, {0, 1}, [0, 1], 0),
        (1, set(), [1], 0),
        (9, {0, 5, 7, 8, 9}, [0, 5, 7, 8, 9], 8),
        (9, {0, 5, 7, 9, 10}, [0, 5, 7, 9], 7),
        (11, {0, 5, 7, 8, 9, 11}, [0, 5, 7, 8, 9, 7, 11], 7),
        (11, {0, 5, 7, 8, 9, 11}, [0, 5, 7, 8, 9, 0, 11], 0),
        (11, {0, 8, 9, 11}, [0, 8, 9, 0, 8, 11], 8),
        (9, {0, 8, 9}, [0, 8, None, 9], 8),
    ],
)
def test_the_target_is_the_newest_accepted_version_not_left_behind(
    live: int, accepted: set[int], history: list[int | None], expected: int | None
) -> None:
    assert rollback_target(live, accepted, history) == expected


@given(st.sets(st.integers(1, 30), min_size=1))
def test_rolling_back_again_and_again_visits_every_accepted_version_once_and_ends_at_the_base(
    accepted: set[int],
) -> None:
    live: int | None = max(accepted)
    history: list[int | None] = [*sorted(accepted)]
    visited = []
    while (live := rollback_target(live or 0, accepted, history)) is not None:
        visited.append(live)
        history.append(live)
    assert visited == [*sorted(accepted - {max(accepted)}, reverse=True), 0]


@given(st.lists(st.integers(0, 20), min_size=1))
def test_what_serves_is_never_revoked(history: list[int | None]) -> None:
    assert history[-1] not in revoked_versions(history)


def judge(connection: Connection, version: int, *, accepted: bool) -> None:
    connection.execute(
        insert(verdict).values(
            policy=POLICY, version=version, accepted=accepted, reason="", details={}, at=time.time(), accuracy=0.9
        )
    )


def point(connection: Connection, arm: str, version: int | None, share: float = 0.0) -> None:
    held = assignments.read(connection, POLICY).get(arm)
    epoch = held.epoch if held else 0
    assignments.move(
        connection, policy=POLICY, arm=arm, version=version, expected_epoch=epoch, writer="t", reason="t", share=share
    )


def learn(connection: Connection) -> None:
    for version in (0, 1, 2, 4):
        point(connection, LIVE, version, share=1.0)
        judge(connection, version, accepted=True)
    judge(connection, 3, accepted=False)
    point(connection, CANDIDATE, 5)


def test_a_rollback_moves_live_and_training_and_drops_the_candidate(database: Database) -> None:
    with database.transaction() as connection:
        learn(connection)
        assert read_target(connection, POLICY) == 2
        assert roll_back(connection, policy=POLICY, writer="ann", reason="complaints") == 2
        arms = assignments.read(connection, POLICY)
    assert {arm: held.version for arm, held in arms.items()} == {LIVE: 2, TRAINING: 2, CANDIDATE: None}
    assert arms[LIVE].share == 1.0
    assert arms[LIVE].epoch == 5


def test_an_empty_candidate_moves_too_so_that_what_was_about_to_be_offered_is_not(database: Database) -> None:
    with database.transaction() as connection:
        learn(connection)
        point(connection, CANDIDATE, None)
        seen = assignments.read(connection, POLICY)[CANDIDATE]
        roll_back(connection, policy=POLICY, writer="ann", reason="complaints")
        with pytest.raises(StaleWrite):
            assignments.move(
                connection, policy=POLICY, arm=CANDIDATE, version=6, expected_epoch=seen.epoch, writer="t", reason="t"
            )


def test_training_hears_of_a_second_rollback_to_the_same_version(database: Database) -> None:
    with database.transaction() as connection:
        learn(connection)
        roll_back(connection, policy=POLICY, writer="ann", reason="one", to=1)
        point(connection, LIVE, 4)
        before = assignments.read(connection, POLICY)[TRAINING].epoch
        roll_back(connection, policy=POLICY, writer="ann", reason="two", to=1)
        assert assignments.read(connection, POLICY)[TRAINING].epoch == before + 1


@pytest.mark.parametrize("to", [3, 4, 9, -1])
def test_only_an_accepted_version_below_the_live_one_will_do(database: Database, to: int) -> None:
    with database.transaction() as connection:
        learn(connection)
        with pytest.raises(InvalidValue):
            roll_back(connection, policy=POLICY, writer="ann", reason="r", to=to)
        assert assignments.read(connection, POLICY)[LIVE].version == 4


def test_there_is_nothing_below_the_base_and_nothing_before_the_first(database: Database) -> None:
    with database.transaction() as connection:
        with pytest.raises(InvalidRequest, match="no live version"):
            roll_back(connection, policy=POLICY, writer="ann", reason="r")
        point(connection, LIVE, 0)
        with pytest.raises(InvalidRequest, match="nothing lies below"):
            roll_back(connection, policy=POLICY, writer="ann", reason="r")
