from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import select

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.database import Database
from contracts.errors import StaleWrite, VersionNotResident
from contracts.passing.in_process import LocalBell
from contracts.tables import verdict
from pipelines.release.releaser import Releaser
from pipelines.release.rules import Sentinels
from pipelines.release.sentinels import SentinelFile, SentinelRunner
from pipelines.release.settings import ReleaseSettings

Answers = Callable[[int], Sentinels]
FILE = SentinelFile(({"messages": [], "reference": ""},), "abc")


class FakeRunner(SentinelRunner):
    """Answers from a table instead of over HTTP."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def run(self, sentinels: SentinelFile, version: int, stop: threading.Event) -> Sentinels:
        del sentinels, stop
        return self._answers(version)


def point(database: Database, arm: str, version: int | None) -> None:
    with database.transaction() as connection:
        held = assignments.read(connection, "p").get(arm)
        assignments.move(
            connection,
            policy="p",
            arm=arm,
            version=version,
            expected_epoch=held.epoch if held else 0,
            writer="t",
            reason="",
        )


def arms(database: Database) -> dict[str, int | None]:
    with database.snapshot() as connection:
        return {name: arm.version for name, arm in assignments.read(connection, "p").items()}


def a_releaser(database: Database, answers: Answers, tolerance: float = 0.03) -> Releaser:
    settings = ReleaseSettings(tolerance=tolerance)
    return Releaser(database, FakeRunner(answers), FILE, policy="p", settings=settings, bell=LocalBell())


def right(share: dict[int, int]) -> Answers:
    return lambda version: Sentinels(version, (1.0,) * share[version] + (0.0,) * (10 - share[version]))


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def test_the_base_is_judged_first_and_a_better_candidate_goes_live(database: Database, stop: threading.Event) -> None:
    releaser = a_releaser(database, right({0: 5, 1: 7}))
    point(database, LIVE, 0)
    point(database, CANDIDATE, 1)
    assert releaser.look(stop)
    assert arms(database) == {LIVE: 0, CANDIDATE: 1}
    assert releaser.look(stop)
    assert arms(database) == {LIVE: 1, CANDIDATE: None}
    assert not releaser.look(stop)
    with database.snapshot() as connection:
        rows = connection.execute(select(verdict).order_by(verdict.c.version)).all()
    assert [(row.version, row.accepted, row.accuracy) for row in rows] == [(0, True, 0.5), (1, True, 0.7)]


def test_three_refusals_in_a_row_send_the_trainer_back(database: Database, stop: threading.Event) -> None:
    releaser = a_releaser(database, right({0: 8, 1: 2, 2: 3, 3: 4}))
    point(database, LIVE, 0)
    releaser.look(stop)
    for version in (1, 2, 3):
        assert TRAINING not in arms(database)
        point(database, CANDIDATE, version)
        releaser.look(stop)
    assert arms(database) == {LIVE: 0, CANDIDATE: None, TRAINING: 0}


def test_the_trainer_is_sent_back_again_only_after_three_more(database: Database, stop: threading.Event) -> None:
    releaser = a_releaser(database, right({0: 8} | dict.fromkeys(range(1, 7), 1)))
    point(database, LIVE, 0)
    releaser.look(stop)
    epochs = []
    for version in range(1, 7):
        point(database, CANDIDATE, version)
        releaser.look(stop)
        with database.snapshot() as connection:
            held = assignments.read(connection, "p").get(TRAINING)
        epochs.append(held.epoch if held else 0)
    assert epochs == [0, 0, 1, 1, 1, 2]


def test_the_yardstick_is_the_best_accepted_version_not_the_last(database: Database, stop: threading.Event) -> None:
    releaser = a_releaser(database, right({0: 5, 1: 9, 2: 8, 3: 7}), tolerance=0.1)
    point(database, LIVE, 0)
    releaser.look(stop)
    for version, live in ((1, 1), (2, 2), (3, 2)):
        point(database, CANDIDATE, version)
        releaser.look(stop)
        assert arms(database)[LIVE] == live


def test_what_was_refused_is_no_yardstick(database: Database, stop: threading.Event) -> None:
    def answers(version: int) -> Sentinels:
        return right({0: 5, 1: 10, 2: 6})(version)._replace(finite=version != 1)

    releaser = a_releaser(database, answers)
    point(database, LIVE, 0)
    releaser.look(stop)
    for version, live in ((1, 0), (2, 2)):
        point(database, CANDIDATE, version)
        releaser.look(stop)
        assert arms(database)[LIVE] == live


def test_a_candidate_the_engine_does_not_take_is_refused_by_name(database: Database, stop: threading.Event) -> None:
    def absent(version: int) -> Sentinels:
        if version == 1:
            raise VersionNotResident("the engine did not take v1")
        return Sentinels(version, (1.0,))

    releaser = a_releaser(database, absent)
    point(database, LIVE, 0)
    releaser.look(stop)
    point(database, CANDIDATE, 1)
    releaser.look(stop)
    assert arms(database) == {LIVE: 0, CANDIDATE: None}
    with database.snapshot() as connection:
        row = connection.execute(select(verdict).where(verdict.c.version == 1)).one()
    assert not row.accepted
    assert "did not take v1" in row.reason


def test_a_candidate_that_changed_meanwhile_gets_no_verdict(database: Database, stop: threading.Event) -> None:
    def replaced(version: int) -> Sentinels:
        if version == 1:
            point(database, CANDIDATE, 2)
        return Sentinels(version, (1.0,))

    releaser = a_releaser(database, replaced)
    point(database, LIVE, 0)
    releaser.look(stop)
    point(database, CANDIDATE, 1)
    with pytest.raises(StaleWrite):
        releaser.look(stop)
    with database.snapshot() as connection:
        assert connection.execute(select(verdict.c.version)).scalars().all() == [0]
    assert arms(database) == {LIVE: 0, CANDIDATE: 2}
