"""What is there in the end, against what the users were told."""

from __future__ import annotations

import time
from collections import Counter

from sqlalchemy import select

from commands.audit import audit
from contracts.ids import sample_key
from contracts.records import Episode, Experience, decode
from contracts.tables import dead_letter, generation, received_signal, score, signal
from contracts.topics import EPISODES, EXPERIENCES
from tests.fakes import everything
from tests.worlds.faults.world import FaultWorld


def balance(world: FaultWorld) -> None:
    """Wait until the loop is drained; then all that was acknowledged is there, and each of it was applied once."""
    world.settle()
    assert world.ended() == []
    result = audit(world.database, world.log, world.clients)
    assert result.problems == ()
    assert result.in_doubt == ()
    revisions = _revisions(world)
    _check_scores(world, revisions)
    _check_signals(world, revisions)
    world.is_sound = True


def _revisions(world: FaultWorld) -> dict[str, int]:
    with world.database.snapshot() as connection:
        rows = connection.execute(select(generation)).all()
        assert connection.execute(select(dead_letter)).all() == []
    # Only whose window is still open may have no episode yet.
    assert all(row.revision > 0 or row.closes_at > time.time() for row in rows)
    revisions = {sample_key(row.completion_id, row.choice): row.revision for row in rows}
    assert revisions.keys() == {item["key"] for item in world.clients if item["kind"] == "generation"}
    return revisions


def _check_scores(world: FaultWorld, revisions: dict[str, int]) -> None:
    """Each revision was sent, scored and sent on; what was sent twice is one message, from one transaction."""
    expected = Counter((key, revision) for key, last in revisions.items() for revision in range(1, last + 1))
    with world.database.snapshot() as connection:
        scored = Counter((row.key, row.revision) for row in connection.execute(select(score.c.key, score.c.revision)))
    assert scored == expected
    episodes = [decode(Episode, value) for value in _distinct(world, EPISODES)]
    assert Counter((item.key, item.revision) for item in episodes) == expected
    experiences = [decode(Experience, value) for value in _distinct(world, EXPERIENCES)]
    assert Counter((item.key, item.revision) for item in experiences) == expected


def _distinct(world: FaultWorld, topic: str) -> set[bytes]:
    return {record.value for record in everything(world.log, topic)}


def _check_signals(world: FaultWorld, revisions: dict[str, int]) -> None:
    """Each signal that was stored was joined once; it made at most one revision, and so did silence."""
    with world.database.snapshot() as connection:
        stored = Counter(connection.execute(select(received_signal.c.id)).scalars())
        rows = connection.execute(select(signal)).all()
    assert Counter(row.id for row in rows) == stored
    assert {row.state for row in rows} <= {"joined", "late"}
    spoken = Counter(sample_key(row.completion_id, row.choice) for row in rows)
    assert all(min(1, spoken[key]) <= last <= max(1, spoken[key]) for key, last in revisions.items())
