"""Freeze, pin and resume on both databases: what holds, what is refused by name, and who comes second."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, insert

from contracts import assignments, holdout, holds, revocations
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE
from contracts.engines import EngineReplica, announce
from contracts.errors import Conflict, Held, InvalidValue, MillraceError, NotFound, StaleWrite, VersionRevoked
from contracts.holds import Hold
from contracts.rollback import promote, roll_back
from contracts.tables import assignment_change, verdict, version_claim
from contracts.version_history import read_live_history
from runtime.database import Database
from tests.each_case import each_case

POLICY = "p"
HOUR = 3600.0


def point(connection: Connection, arm: str, version: int | None, share: float = 1.0) -> None:
    held = assignments.read(connection, POLICY).get(arm)
    epoch = held.epoch if held else 0
    assignments.move(
        connection, policy=POLICY, arm=arm, version=version, expected_epoch=epoch, writer="t", reason="t", share=share
    )


def in_traffic(database: Database) -> None:
    """v5 is blessed, v6 in a train, v7 the newest that passed the gate; v0 is held out; v8 was refused."""
    with database.transaction() as connection:
        for version in range(6):
            point(connection, LIVE, version)
        for version in range(9):
            row = {"policy": POLICY, "version": version, "accepted": version != 8, "reason": "", "details": {}}
            connection.execute(insert(verdict).values(**row, at=time.time()))
        point(connection, CANARY, 6, 0.05)
        point(connection, LEARNING, 7, 0.05)
        point(connection, HOLDOUT, 0, 0.02)


def arms_of(database: Database) -> dict[str, int | None]:
    with database.snapshot() as connection:
        return {name: arm.version for name, arm in assignments.read(connection, POLICY).items()}


def hold_of(database: Database, now: float | None = None) -> Hold | None:
    with database.snapshot() as connection:
        return holds.read(connection, POLICY, time.time() if now is None else now)


def pin(connection: Connection, version: int, seconds: float = HOUR, writer: str = "o") -> Hold:
    until = time.time() + seconds
    return holds.pin(connection, policy=POLICY, version=version, until=until, writer=writer, reason="an incident")


def freeze(connection: Connection, until: float | None = None, writer: str = "o") -> Hold:
    return holds.freeze(connection, policy=POLICY, until=until, writer=writer, reason="a launch")


def test_a_pin_gives_everybody_one_version_and_revokes_none(any_database: Database) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        pin(connection, 3)
    assert arms_of(any_database) == {LIVE: 3, CANARY: None, LEARNING: None, HOLDOUT: 0}
    with any_database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}
        assert read_live_history(connection, POLICY) == [0, 1, 2, 3, 4, 5]
        moves = connection.execute(assignment_change.select().where(assignment_change.c.writer == "o")).all()
    assert {(row.arm, row.version) for row in moves} == {(LIVE, 3), (CANARY, None), (LEARNING, None)}
    assert all("an incident" in row.reason and "UTC" in row.reason for row in moves)
    with any_database.transaction() as connection:
        ended = holds.resume(connection, policy=POLICY, writer="q", reason="over")
    assert (ended.kind, ended.version, hold_of(any_database)) == ("pin", 3, None)
    assert arms_of(any_database)[LIVE] == 3
    with any_database.snapshot() as connection:
        history = holds.read_history(connection, POLICY)
    assert [(row.kind, row.writer, row.reason) for row in history] == [
        ("resume", "q", "over"),
        ("pin", "o", "an incident"),
    ]


def test_a_freeze_leaves_the_arms_and_ends_by_itself(any_database: Database) -> None:
    in_traffic(any_database)
    before, now = arms_of(any_database), time.time()
    with any_database.transaction() as connection:
        freeze(connection, now + HOUR)
    assert arms_of(any_database) == before
    held = hold_of(any_database)
    assert held is not None
    assert (held.kind, held.version, held.until, held.writer) == ("freeze", None, now + HOUR, "o")
    assert hold_of(any_database, now + HOUR) is None
    with any_database.transaction() as connection, pytest.raises(Conflict, match="nothing is frozen or pinned"):
        holds.resume(connection, policy=POLICY, writer="o", reason="r", now=now + HOUR)


def test_a_hold_can_be_made_longer_without_a_gap(any_database: Database) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        pin(connection, 3, 60.0)
        epoch = assignments.read(connection, POLICY)[LIVE].epoch
        pin(connection, 3, HOUR)
        assert assignments.read(connection, POLICY)[LIVE].epoch == epoch
        assert read_live_history(connection, POLICY) == [0, 1, 2, 3, 4, 5]
        holds.resume(connection, policy=POLICY, writer="o", reason="r")
        freeze(connection, time.time() + 60.0)
        freeze(connection)
    held = hold_of(any_database, time.time() + HOUR)
    assert held is not None
    assert (held.kind, held.until) == ("freeze", None)


@pytest.mark.parametrize(
    ("version", "seconds", "error", "says"),
    [
        (7, HOUR, VersionRevoked, "v7 .*worse"),
        (8, HOUR, InvalidValue, "never accepted .*never live"),
        (77, HOUR, InvalidValue, "never accepted .*never live"),
        (3, 0.0, InvalidValue, "more than 0 seconds"),
        (3, -1.0, InvalidValue, "more than 0 seconds"),
        (3, 31 * 86_400.0, InvalidValue, "at most 30 days"),
        (3, float("nan"), InvalidValue, "at most 30 days"),
    ],
)
def test_mistakes_are_named_and_change_nothing(
    any_database: Database, version: int, seconds: float, error: type[MillraceError], says: str
) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        revocations.revoke(connection, POLICY, {7}, treatment="evidence", writer="o", reason="worse")
        connection.execute(insert(version_claim).values(policy=POLICY, version=8, parent=6, epoch=1, claimed_at=0.0))
    before = arms_of(any_database)
    with pytest.raises(error, match=says), any_database.transaction() as connection:
        pin(connection, version, seconds)
    assert (arms_of(any_database), hold_of(any_database)) == (before, None)


def test_a_freeze_into_the_past_and_a_pin_of_nothing_are_refused(any_database: Database) -> None:
    with pytest.raises(InvalidValue, match="more than 0"), any_database.transaction() as connection:
        freeze(connection, time.time() - 1.0)
    with pytest.raises(NotFound, match="no version is live"), any_database.transaction() as connection:
        pin(connection, 0)
    assert (arms_of(any_database), hold_of(any_database)) == ({}, None)


def test_one_hold_does_not_replace_another_kind(any_database: Database) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        pin(connection, 3)
    for act in (freeze, lambda connection: pin(connection, 4)):
        says = r"v3 is pinned until .* UTC \(by o: an incident\).*millrace policy resume"
        with pytest.raises(Held, match=says), any_database.transaction() as connection:
            act(connection)
    assert arms_of(any_database)[LIVE] == 3
    with any_database.transaction() as connection:
        holds.resume(connection, policy=POLICY, writer="o", reason="r")
        freeze(connection)
    with pytest.raises(Held, match="frozen until somebody resumes"), any_database.transaction() as connection:
        pin(connection, 3)


def test_while_held_nobody_promotes_and_a_rollback_goes_through(any_database: Database) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        freeze(connection)
    with pytest.raises(Held, match="millrace policy resume"), any_database.transaction() as connection:
        promote(connection, policy=POLICY, to=7, writer="q", reason="r")
    with pytest.raises(Held, match="frozen"), any_database.transaction() as connection:
        holdout.end_holdout(connection, policy=POLICY, writer="q", reason="r")
    assert arms_of(any_database)[LIVE] == 5
    with any_database.transaction() as connection:
        roll_back(connection, policy=POLICY, writer="q", reason="broken", to=4)
    held = hold_of(any_database)
    assert held is not None
    assert held.kind == "freeze"


def test_a_rollback_ends_a_pin_and_empties_arms_of_revoked_versions(any_database: Database) -> None:
    in_traffic(any_database)
    with any_database.transaction() as connection:
        pin(connection, 5)
        roll_back(connection, policy=POLICY, writer="q", reason="broken", to=4)
        point(connection, HOLDOUT, 0, 0.02)
    assert hold_of(any_database) is None
    with any_database.snapshot() as connection:
        assert holds.read_history(connection, POLICY)[0].reason == "rolled back to v4: broken"
    with any_database.transaction() as connection:
        point(connection, CANARY, 4, 0.2)
        point(connection, LEARNING, 3, 0.05)
        point(connection, CANDIDATE, 2)
        roll_back(connection, policy=POLICY, writer="q", reason="broken", to=2)
    with any_database.snapshot() as connection:
        arms = assignments.read(connection, POLICY)
    assert {name: (arms[name].version, arms[name].share) for name in (CANARY, LEARNING, HOLDOUT)} == {
        CANARY: (None, 0.0),
        LEARNING: (None, 0.0),
        HOLDOUT: (0, 0.02),
    }


@pytest.mark.parametrize("attempt", range(2))
def test_of_two_operators_at_once_both_are_told_the_truth(any_database: Database, attempt: int) -> None:
    del attempt
    in_traffic(any_database)
    together = threading.Barrier(2)

    def act(writer: str) -> str:
        together.wait()
        try:
            with any_database.transaction() as connection:
                if writer == "freezes":
                    freeze(connection, writer=writer)
                else:
                    pin(connection, 3, writer=writer)
        except (Held, StaleWrite):
            return "refused"
        return writer

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(act, ("freezes", "pins")))
    held = hold_of(any_database)
    assert held is not None
    assert told == sorted([held.writer, "refused"])
    assert arms_of(any_database)[LIVE] == (3 if held.writer == "pins" else 5)


@pytest.mark.parametrize("attempt", range(2))
def test_nothing_is_promoted_behind_a_freeze(any_database: Database, attempt: int) -> None:
    """Whoever is second sees the first: either the promotion came before the freeze, or it is refused."""
    del attempt
    in_traffic(any_database)
    together = threading.Barrier(2)
    live_when_frozen: list[int | None] = []

    def act(freezes: bool) -> bool:
        together.wait()
        try:
            if freezes:
                with any_database.transaction() as connection:
                    freeze(connection)
                live_when_frozen.append(arms_of(any_database)[LIVE])
            else:
                with any_database.transaction() as connection:
                    promote(connection, policy=POLICY, to=7, writer="q", reason="r")
        except Held:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, (True, False)))
    assert live_when_frozen == [arms_of(any_database)[LIVE]]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("2h", 7200.0), ("1.5d", 129_600.0), (" 30d ", 2_592_000.0)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert holds.seconds_of(text) == seconds


@each_case("text", ["", "2", "h", "2 hours", "-1h", "0s", "31d", "1e9h", "infs", "nan", "2h30m", "٣h"])
def test_durations_that_nobody_can_mean_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        holds.seconds_of(text)
    assert refused.value.param == "for"


def test_a_hold_out_is_blessed_by_hand(any_database: Database) -> None:
    in_traffic(any_database)
    moved = {"policy": POLICY, "writer": "o", "reason": "r"}
    for version, share, error, says in (
        (4, 0.0, InvalidValue, "above 0 and at most 0.2"),
        (4, 0.21, InvalidValue, "above 0 and at most 0.2"),
        (4, float("nan"), InvalidValue, "above 0 and at most 0.2"),
        (8, 0.02, InvalidValue, "never accepted"),
    ):
        with pytest.raises(error, match=says), any_database.transaction() as connection:
            holdout.set_holdout(connection, version=version, share=share, **moved)
    with any_database.transaction() as connection:
        holdout.set_holdout(connection, version=4, share=0.05, **moved)
        arm = assignments.read(connection, POLICY)[HOLDOUT]
        assert (arm.version, arm.share) == (4, 0.05)
        engine = EngineReplica(
            "e",
            POLICY,
            "http://e",
            "millrace",
            "local",
            "serving",
            {LIVE: 5, CANDIDATE: None},
            frozenset(),
            "i",
            "e",
            "",
            0.0,
        )
        announce(connection, engine)
        with pytest.raises(InvalidValue, match="no engine that runs has a slot"):
            holdout.set_holdout(connection, version=3, share=0.05, **moved)
        announce(connection, engine._replace(slots={LIVE: 5, HOLDOUT: 4}))
        holdout.set_holdout(connection, version=3, share=0.05, **moved)
        holdout.end_holdout(connection, **moved)
        assert assignments.read(connection, POLICY)[HOLDOUT].version is None
        with pytest.raises(Conflict, match="no hold-out"):
            holdout.end_holdout(connection, **moved)
