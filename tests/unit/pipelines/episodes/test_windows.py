"""When episodes are emitted, and which of them are provisional. Answers end at 101, and a task's window is 10 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import case, event

from contracts.records import Episode, Submitter
from contracts.tables import generation
from pipelines.episodes import repository
from runtime.database import Database
from tests.fakes import a_generation, a_signal
from tests.unit.pipelines.episodes.bench import Join, a_task

ACCEPTED = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}
SLOW = {"type": "bool", "labels": {"true": 1.0, "false": -1.0}, "window_seconds": 100.0}
SLOWEST = SLOW | {"window_seconds": 1000.0}


def told(episodes: Sequence[Episode]) -> list[tuple[int, str, bool]]:
    return [(episode.revision, episode.reason, episode.provisional) for episode in episodes]


def test_without_slower_windows_there_is_one_revision_and_it_is_final(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "quick": ACCEPTED | {"window_seconds": 2.0}}))
    decided, silent = a_generation(), a_generation()
    assert told(join.hear(decided, a_signal(decided), silent)) == [(1, "decisive", False)]
    assert told(join.wait(111.0)) == [(1, "window", False)]
    assert join.wait(1e6) == []


def test_silence_is_provisional_until_the_last_window_closes(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW, "merged": SLOWEST}))
    assert join.hear(a_generation()) == []
    assert join.wait(110.9) == []
    assert told(join.wait(111.0)) == [(1, "window", True)]
    assert join.wait(201.0) == []
    assert told(join.wait(1101.0)) == [(2, "window", False)]
    assert join.wait(1e6) == []


def test_a_decisive_signal_closes_at_once_and_the_last_window_has_the_last_word(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}))
    about = a_generation()
    assert told(join.hear(about, a_signal(about))) == [(1, "decisive", True)]
    assert join.wait(111.0) == []
    assert told(join.wait(201.0)) == [(2, "window", False)]


def test_what_comes_in_between_is_provisional_while_something_slower_may_come(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW, "merged": SLOWEST}))
    about = a_generation()
    join.hear(about)
    join.wait(111.0)
    merged = a_signal(about, "merged", received_at=150.0)
    join.now = 150.0
    assert told(join.hear(merged)) == [(2, "decisive", True)]
    assert told(join.wait(201.0)) == [(3, "window", False)], "nothing is slower than what is missing"


def test_once_everything_came_nothing_is_provisional_and_no_last_word_is_needed(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}))
    about = a_generation()
    kept = a_signal(about, "kept")
    assert told(join.hear(about, a_signal(about))) == [(1, "decisive", True)]
    assert told(join.hear(kept)) == [(2, "decisive", False)]
    assert join.wait(201.0) == []
    taken_back = msgspec.structs.replace(kept, retracted=True)
    assert told(join.hear(taken_back)) == [(3, "decisive", False)], "its window is over"


def test_what_was_taken_back_may_come_again_until_its_window_closes(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}))
    about = a_generation()
    kept = a_signal(about, "kept")
    assert told(join.hear(about, kept)) == [(1, "decisive", False)]
    assert told(join.hear(msgspec.structs.replace(kept, retracted=True))) == [(2, "decisive", True)]
    assert told(join.wait(201.0)) == [(3, "window", False)]


def test_each_signal_is_late_by_its_own_window(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW, "quick": ACCEPTED | {"window_seconds": 2.0}}))
    about = a_generation()
    said = {
        (name, at): a_signal(about, name, received_at=at, submitter=Submitter(id=f"{name} {at}"))
        for name, at in [("accepted", 111.0), ("accepted", 111.1), ("kept", 201.0), ("kept", 201.1), ("quick", 103.5)]
    }
    join.hear(*said.values(), about)
    assert [join.states()[signal.id] for signal in said.values()] == ["joined", "late", "joined", "late", "late"]


def test_after_the_last_window_late_evidence_is_final(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}))
    about = a_generation()
    join.hear(about)
    join.wait(111.0)
    join.wait(201.0)
    join.now = 300.0
    assert told(join.hear(a_signal(about, received_at=300.0))) == [(3, "decisive", False)]
    assert join.wait(1e6) == []


def test_a_task_that_is_gone_says_no_last_word(database: Database) -> None:
    Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW})).hear(about := a_generation(), a_signal(about))
    orphaned = Join(database)
    assert orphaned.wait(201.0) == []
    assert orphaned.wait(1e6) == []


@pytest.mark.parametrize(("at", "wanted"), [(102.9, []), (103.0, [(1, "decisive", False)])])
def test_a_slip_of_the_hand_is_kept_and_decides_nothing(
    database: Database, at: float, wanted: list[tuple[int, str, bool]]
) -> None:
    join = Join(database, a_task({"again": {"means": "regenerate"}}))
    about = a_generation()
    slip = a_signal(about, "again", at=at)
    assert told(join.hear(about, slip)) == wanted
    assert join.states() == {slip.id: "joined"}
    assert [[signal.id for signal in episode.signals] for episode in join.wait(111.0)] == [[slip.id]] * (not wanted)


@pytest.mark.parametrize("decisive", [False, True])
def test_being_shown_decides_nothing(database: Database, decisive: bool) -> None:
    join = Join(database, a_task({"shown": {"means": "shown", "decisive": decisive}, "accepted": ACCEPTED}))
    about = a_generation()
    assert join.hear(about, a_signal(about, "shown")) == []
    assert told(join.wait(111.0)) == [(1, "window", False)]


QUARANTINE = {"trust": {"quarantine_seconds": 5.0}}
LONG_QUARANTINE = {"trust": {"quarantine_seconds": 50.0}}


def test_in_quarantine_a_decisive_signal_waits(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, **QUARANTINE))
    about = a_generation()
    assert join.hear(about, a_signal(about)) == []
    assert join.wait(105.9) == []
    assert told(join.wait(106.0)) == [(1, "decisive", False)]
    assert join.wait(111.0) == []


def test_what_is_taken_back_in_quarantine_costs_no_revision(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, **QUARANTINE))
    about = a_generation()
    accepted = a_signal(about)
    assert join.hear(about, accepted, msgspec.structs.replace(accepted, retracted=True)) == []
    assert join.wait(106.0) == []
    (episode,) = join.wait(111.0)
    assert (episode.revision, episode.reason, episode.signals) == (1, "window", ())


def test_after_the_quarantine_a_decisive_signal_closes_at_once(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, **QUARANTINE))
    about = a_generation()
    join.hear(about)
    join.now = 107.0
    assert told(join.hear(a_signal(about, received_at=107.0))) == [(1, "decisive", False)]


def test_a_quarantine_may_be_longer_than_the_window(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}, **LONG_QUARANTINE))
    about, silent = a_generation(), a_generation()
    late = a_signal(about, received_at=120.0)
    assert join.hear(about, late, silent) == []
    assert join.wait(111.0) == []
    episodes = sorted(join.wait(151.0), key=lambda episode: episode.key != about.key)
    assert told(episodes) == [(1, "decisive", True), (1, "window", True)]
    assert join.states() == {late.id: "late"}
    assert told(join.wait(201.0)) == [(2, "window", False)] * 2


def test_rollouts_wait_for_nothing(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}, **QUARANTINE))
    assert told(join.hear(a_generation(purpose="rollout"))) == [(1, "window", False)]
    assert join.wait(1e6) == []


def test_sentinels_become_no_episode_for_the_gate_grades_them_itself(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED, "kept": SLOW}, **QUARANTINE))
    assert told(join.hear(a_generation(purpose="sentinel"))) == []
    assert join.wait(1e6) == []


def test_an_import_takes_the_room_that_live_windows_leave(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}))
    imported = [msgspec.structs.replace(a_generation(), purpose="imported") for _ in range(5)]
    live = [a_generation() for _ in range(2)]
    assert join.hear(*imported, *live) == []
    with database.transaction() as connection:
        changed = generation.update().values(closes_at=case((generation.c.purpose == "user", 900.0), else_=200.0))
        connection.execute(changed)
        asked: list[tuple[str, Any]] = []
        event.listen(connection, "before_cursor_execute", lambda *said: asked.append(said[2:4]))
        found = repository.due(connection, 1000.0, frozenset(range(16)), 3)
        plans = [
            str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()) for text, values in asked[:2]
        ]
    assert {key[0] for key in found[:2]} == {each.completion_id for each in live}
    assert found[2][0] in {each.completion_id for each in imported}
    assert ["ix_generation_live_closes_at" in plan for plan in plans] == [True, False]
