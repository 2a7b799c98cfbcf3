import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, insert

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import InvalidRequest, InvalidValue, NotFound, StaleWrite, VersionRevoked
from contracts.revocations import Treatment
from contracts.rollback import (
    RollbackPlan,
    left_behind,
    promote,
    read_plan,
    read_target,
    roll_back,
    rollback_target,
    versions_to_revoke,
)
from contracts.tables import verdict, version_claim
from contracts.version_history import Parents
from runtime.database import Database
from tests.each_case import each_case

POLICY = "reservations"


@each_case(
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
def test_what_serves_was_not_left_behind(history: list[int | None]) -> None:
    assert history[-1] not in left_behind(history)


@given(st.sets(st.integers(1, 30), min_size=1), st.sets(st.integers(1, 30)))
def test_a_revoked_version_is_never_a_target(accepted: set[int], revoked: set[int]) -> None:
    live = max(accepted)
    assert rollback_target(live, accepted, [live], revoked) not in revoked


TREE = Parents([], {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 2, 7: 6, 8: 5})
"""0-1-2-3-4-5-8, and the honest branch 2-6-7."""


@each_case(
    ("live", "target", "named", "expected"),
    [
        (5, 2, None, (3, 4, 5, 8)),
        (5, 4, None, (5, 8)),
        (7, 2, None, (3, 4, 5, 6, 7, 8)),
        (7, 6, None, (7,)),
        (7, 5, None, (6, 7)),
        (5, 2, {5}, (5, 8)),
        (5, 2, {3}, (3, 4, 5, 8)),
        (5, 2, {3, 5}, (3, 4, 5, 8)),
        (7, 2, {7}, (7,)),
        (5, 2, set(), ()),
    ],
)
def test_revoked_is_the_line_left_or_what_is_named_and_what_grew_from_it(
    live: int, target: int, named: Collection[int] | None, expected: tuple[int, ...]
) -> None:
    assert versions_to_revoke(TREE, live=live, target=target, named=named) == expected


@pytest.mark.parametrize(
    ("named", "says"),
    [({9}, "it does not exist"), ({2}, "to go back to"), ({3, 1}, "an ancestor"), ({0}, "an ancestor")],
)
def test_what_would_serve_and_what_never_was_is_not_revoked(named: set[int], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        versions_to_revoke(TREE, live=5, target=2, named=named)


@given(st.dictionaries(st.integers(1, 25), st.integers(0, 24), min_size=1), st.data())
def test_nothing_that_serves_is_revoked_and_everything_that_grew_on_the_revoked_is(
    drawn: dict[int, int], data: st.DataObject
) -> None:
    tree = Parents([], {version: min(parent, version - 1) for version, parent in drawn.items()})
    live = data.draw(st.sampled_from(tree.versions[1:]))
    target = data.draw(st.sampled_from([version for version in tree.versions if version < live]))
    revoked = set(versions_to_revoke(tree, live=live, target=target))
    assert live in revoked
    assert not revoked & set(tree.lineage(target))
    assert tree.descendants(revoked) == revoked


def test_who_has_no_known_parent_counts_as_child_of_the_version_before() -> None:
    assert Parents([1, 2, 4, 5], {4: 1}).lineage(5) == [5, 4, 1, 0]


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


@pytest.fixture
def learned(database: Database) -> Iterator[Connection]:
    """A transaction of a home that has learned."""
    with database.transaction() as connection:
        learn(connection)
        yield connection


def back(connection: Connection, to: int | None = None, **options: Any) -> RollbackPlan:
    return roll_back(connection, **{"policy": POLICY, "writer": "ann", "reason": "complaints", "to": to} | options)


def forth(connection: Connection, to: int) -> None:
    promote(connection, policy=POLICY, to=to, writer="ann", reason="r")


def test_a_rollback_moves_live_and_training_and_drops_the_candidate(learned: Connection) -> None:
    assert read_target(learned, POLICY) == 2
    plan = back(learned)
    assert (plan.live, plan.target, plan.revoked, plan.kept) == (4, 2, (3, 4, 5), (2, 1, 0))
    arms = assignments.read(learned, POLICY)
    assert {arm: held.version for arm, held in arms.items()} == {LIVE: 2, TRAINING: 2, CANDIDATE: None}
    assert arms[LIVE].share == 1.0
    assert arms[LIVE].epoch == 5


def test_an_empty_candidate_moves_too_so_that_what_was_about_to_be_offered_is_not(learned: Connection) -> None:
    point(learned, CANDIDATE, None)
    seen = assignments.read(learned, POLICY)[CANDIDATE]
    back(learned)
    with pytest.raises(StaleWrite):
        assignments.move(
            learned, policy=POLICY, arm=CANDIDATE, version=6, expected_epoch=seen.epoch, writer="t", reason="t"
        )


def test_training_hears_of_a_second_rollback_to_the_same_version(learned: Connection) -> None:
    back(learned, reason="one", to=1)
    point(learned, LIVE, 6)
    before = assignments.read(learned, POLICY)[TRAINING].epoch
    back(learned, reason="two", to=1)
    assert assignments.read(learned, POLICY)[TRAINING].epoch == before + 1


@pytest.mark.parametrize("to", [3, 4, 9, -1])
def test_only_an_accepted_version_below_the_live_one_will_do(learned: Connection, to: int) -> None:
    with pytest.raises(InvalidValue):
        back(learned, to=to)
    assert assignments.read(learned, POLICY)[LIVE].version == 4


def test_there_is_nothing_below_the_base_and_nothing_before_the_first(database: Database) -> None:
    with database.transaction() as connection:
        with pytest.raises(InvalidRequest, match="no live version"):
            back(connection)
        point(connection, LIVE, 0)
        with pytest.raises(InvalidRequest, match="there is no older version"):
            back(connection)


def claim(connection: Connection, parents: dict[int, int]) -> None:
    for version, parent in parents.items():
        connection.execute(
            insert(version_claim).values(policy=POLICY, version=version, parent=parent, epoch=1, claimed_at=0.0)
        )


def test_revocations_are_written_with_the_moves_and_keep_their_first_reason(learned: Connection) -> None:
    back(learned, reason="bought votes", treatment="poison", to=1)
    point(learned, LIVE, 6)
    judge(learned, 6, accepted=True)
    plan = back(learned, writer="bob", reason="worse", to=0)
    found = revocations.read(learned, POLICY)
    assert plan.revoked == (1, 6)
    assert {version: (row.treatment, row.writer) for version, row in found.items()} == {
        **dict.fromkeys((2, 3, 4, 5), ("poison", "ann")),
        **dict.fromkeys((1, 6), ("evidence", "bob")),
    }


def test_what_is_cut_from_a_revoked_version_later_is_revoked_too(learned: Connection) -> None:
    claim(learned, {3: 2, 4: 3, 5: 4})
    back(learned, treatment="poison")
    claim(learned, {6: 5, 7: 2, 8: 6})
    found = revocations.read(learned, POLICY)
    assert set(found) == {3, 4, 5, 6, 8}
    assert found[8].treatment == "poison"
    with pytest.raises(VersionRevoked, match=r"v8 .* revoked by ann"):
        forth(learned, 8)
    point(learned, CANDIDATE, 7)


@pytest.mark.parametrize("arm", [LIVE, CANDIDATE, TRAINING])
def test_no_arm_ever_points_at_a_revoked_version(learned: Connection, arm: str) -> None:
    back(learned)
    with pytest.raises(VersionRevoked, match=r"v4 .*complaints"):
        point(learned, arm, 4)


def test_a_revoked_version_is_neither_promoted_nor_gone_back_to(learned: Connection) -> None:
    back(learned)
    with pytest.raises(VersionRevoked, match="v4"):
        forth(learned, 4)
    judge(learned, 6, accepted=True)
    forth(learned, 6)
    with pytest.raises(VersionRevoked, match="v4"):
        back(learned, to=4)
    assert read_target(learned, POLICY) == 2
    assert assignments.read(learned, POLICY)[LIVE].version == 6


def test_promoting_does_not_go_back(database: Database) -> None:
    with database.transaction() as connection:
        with pytest.raises(NotFound):
            forth(connection, 1)
        learn(connection)
        with pytest.raises(InvalidValue, match="roll back instead, with `millrace policy rollback --to 2`"):
            forth(connection, 2)
        assert assignments.read(connection, POLICY)[LIVE].version == 4


def test_only_what_is_named_is_revoked(learned: Connection) -> None:
    assert back(learned, to=1, revoke={4}).revoked == (4, 5)
    assert set(revocations.read(learned, POLICY)) == {4, 5}
    with pytest.raises(InvalidValue, match="v9 cannot be revoked"):
        back(learned, to=0, revoke={9})


def test_manifests_say_who_grew_from_whom_where_no_claim_does(learned: Connection) -> None:
    assert back(learned, parents={3: 1, 4: 2, 5: 1}).revoked == (4,)


def test_of_two_operators_at_once_one_is_told_to_look_again(database: Database) -> None:
    with database.transaction() as connection:
        learn(connection)
    treatments: list[Treatment] = ["poison", "evidence"]
    with database.snapshot() as connection:
        plan = read_plan(connection, POLICY)
    told = []
    for treatment in treatments:
        try:
            with database.transaction() as connection:
                back(connection, treatment=treatment, seen_live=plan.live)
        except StaleWrite as error:
            told.append(error.message)
    assert told == ["v4 is no longer live, v2 is; check the versions again"]
    with database.snapshot() as connection:
        found = revocations.read(connection, POLICY)
    assert {version: row.treatment for version, row in found.items()} == dict.fromkeys((3, 4, 5), "poison")
