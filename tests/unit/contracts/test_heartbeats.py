import time

import pytest

from contracts import heartbeats
from contracts.heartbeats import FRESH_SECONDS, NEEDED, ProcessBeat, in_words, states_of
from runtime.database import Database

NOW = 1000.0
ALL = [ProcessBeat(name, "host/1", NOW - 1, NOW - 1, 120.0) for name in NEEDED]


def state_of(beats: list[ProcessBeat], process: str) -> list[str]:
    return [state.state for state in states_of(beats, NOW) if state.process == process]


def test_everything_is_up() -> None:
    assert {state.state for state in states_of(ALL, NOW)} == {"up"}


def test_three_stopped_workers_are_down_within_seconds() -> None:
    stopped = [sign._replace(at=NOW - FRESH_SECONDS - 0.1) if sign.process != "release" else sign for sign in ALL]
    states = states_of(stopped, NOW)
    assert {state.process for state in states if state.state == "down"} == {"episodes", "rewards", "training"}
    assert "rewards (host/1) is down: silent for 6 s" in {in_words(state, NOW) for state in states}


def test_a_loop_that_does_not_move_hangs() -> None:
    hung = [sign._replace(step_at=NOW - 121) if sign.process == "rewards" else sign for sign in ALL]
    found = next(state for state in states_of(hung, NOW) if state.process == "rewards")
    assert (found.state, in_words(found, NOW)) == ("hangs", "rewards (host/1) hangs: its loop has not moved for 121 s")


def test_a_needed_process_without_a_row_is_down_and_one_that_no_home_needs_is_not() -> None:
    rest = [sign for sign in ALL if sign.process != "training"]
    assert state_of(rest, "training") == ["down"]
    assert "no process of this name" in in_words(next(s for s in states_of(rest, NOW) if s.process == "training"), NOW)
    assert state_of(rest, "feedback") == []


@pytest.mark.parametrize(("silent", "expected"), [(60.0, ["down", "up"]), (3600.0, ["up"])])
def test_a_replaced_replica_is_forgotten_sooner_than_the_only_one(silent: float, expected: list[str]) -> None:
    other = ProcessBeat("episodes", "gone/1", NOW - silent, NOW - silent, 120.0)
    assert sorted(state_of([*ALL, other], "episodes")) == expected
    alone = [sign for sign in ALL if sign.process != "episodes"]
    assert state_of([*alone, other], "episodes") == ["down"]


def test_nothing_is_said_of_a_home_without_signs() -> None:
    assert states_of([], NOW) == []


def test_a_row_is_renewed_and_goes_with_its_process(database: Database) -> None:
    now = time.time()
    with database.transaction() as connection:
        for at in (now - 5, now):
            heartbeats.beat(connection, "p", ProcessBeat("rewards", "a/1", at, at, 120.0))
        heartbeats.beat(connection, "p", ProcessBeat("rewards", "b/1", now - 90_000, now, 120.0))
        assert sorted(sign.at for sign in heartbeats.read(connection, "p")) == [now - 90_000, now]
        heartbeats.withdraw(connection, "p", "rewards", "a/1")
        assert heartbeats.read(connection, "p") == [], "with it goes what was silent for a day"
