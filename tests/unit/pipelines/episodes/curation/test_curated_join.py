"""Curation where it acts: what it refuses is named, counted in the identity, and nobody is asked to judge it."""

from __future__ import annotations

from contracts.ledger import generation_counts
from contracts.records import Outcome
from runtime.database import Database
from tests.fakes import a_signal, asking
from tests.unit.pipelines.episodes.bench import Join, a_task

ACCEPTED = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}


def test_what_is_refused_is_named_and_never_becomes_an_episode(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, curation={"duplicates": 1, "secrets": True}))
    first, again = asking("a table for two"), asking("A table  for two")
    secret = asking("use AKIA" + "IOSFODNN7EXAMPLX")
    sentinel = asking("a table for two", purpose="sentinel")
    episodes = join.hear(first, again, secret, sentinel, a_signal(first), a_signal(again), a_signal(secret))
    assert {episode.key for episode in episodes} == {first.key}, "the gate grades its sentinels itself"
    named = {record.key: (record.state, record.reason) for record in join.sent if isinstance(record, Outcome)}
    assert named[again.key] == ("filtered", "duplicate")
    assert named[secret.key] == ("filtered", "secret")
    join.hear(*(record for record in join.sent if isinstance(record, Outcome)))
    assert join.wait(1e6) == []
    with database.snapshot() as connection:
        counts = generation_counts(connection)
    assert counts.unexplained == 0
    assert counts.states["filtered"] == 3


def test_a_retraction_and_a_late_signal_wake_nothing_that_was_refused(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, curation={"max_characters": 3}))
    about = asking("much too long")
    signal = a_signal(about)
    assert join.hear(about, signal) == []
    join.now = 5_000.0
    assert join.hear(a_signal(about, value=False, received_at=5_000.0)) == []
    assert join.wait(1e6) == []
