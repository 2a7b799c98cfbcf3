"""The gate's own tables on every database: answers, anchors and verdicts, also with what only some databases can hold."""

from __future__ import annotations

import pytest

from contracts.errors import VersionNotResident
from pipelines.release import repository
from pipelines.release.asking import SentinelAnswer
from runtime.database import Database
from tests.worlds.release.gate import STOP, GateWorld, a_set


def test_candidates_are_judged_against_live_and_the_anchor(any_database: Database) -> None:
    world = GateWorld(any_database, a_set("math", "code"))
    world.begin(60)
    assert [world.offer(version, right) for version, right in ((1, 80), (2, 79), (3, 40), (4, 81))] == [1, 2, 2, 4]
    assert world.references(4) == {"live": 2, "anchor": 1}
    world.restarted()
    assert not world.releaser.look(STOP)
    with any_database.snapshot() as connection:
        assert repository.anchors(connection, "p") == {"math": [1, 0], "code": [1, 0]}


def test_answers_come_back_as_they_were_said_and_only_those_of_their_set(any_database: Database) -> None:
    said = (
        SentinelAnswer("half a ü, a \0 and \N{GRINNING FACE}", "length", finite=True),
        SentinelAnswer("", "stop", finite=False),
    )
    with any_database.transaction() as connection:
        repository.keep_answers(connection, "p", "set", 7, said, draws=[1, 3])
        repository.keep_answers(connection, "p", "set", 7, said, draws=[1, 3])
        assert repository.read_answers(connection, "p", "set", 7, [1, 3]) == dict(enumerate(said))
        assert repository.read_answers(connection, "p", "set", 7, [2, 3]) == {1: said[1]}, "another draw of one task"
        assert repository.read_answers(connection, "p", "other", 7, [1, 3]) == {}
        repository.forget(connection, "p", "set", {8})
        assert repository.read_answers(connection, "p", "set", 7, [1, 3]) == {}


def test_a_version_that_does_not_come_leaves_nothing_behind(any_database: Database) -> None:
    world = GateWorld(any_database)
    world.begin(60)
    world.fault = lambda version: VersionNotResident(f"no v{version}")
    world.point("candidate", 1)
    with pytest.raises(VersionNotResident):
        world.releaser.look(STOP)
    assert world.verdict(1) is None
