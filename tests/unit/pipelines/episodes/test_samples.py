"""What a batch writes, and what it counts."""

from __future__ import annotations

from sqlalchemy import select

from contracts.tables import generation_count
from pipelines.episodes.handler import EpisodesHandler, ReadRecord
from pipelines.episodes.lifecycle import SampleState
from pipelines.episodes.samples import HeldSignal, Samples, Tracked
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal


def test_only_rows_that_differ_from_the_database_are_written() -> None:
    rows: Tracked[str, int] = Tracked()
    rows.read("same", 1)
    rows.read("other", 1)
    rows |= {"other": 2, "new": 3, "same": 1}
    assert (rows.new, rows.changed) == ([3], [2])


def test_a_signal_belongs_to_the_first_revision_that_contains_it() -> None:
    samples, about = Samples(), a_generation()
    samples.states[about.completion_id, 0] = SampleState(about, 0, 0.0)
    samples.read_signal(HeldSignal(a_signal(about), "joined"))
    samples.sent((about.completion_id, 0), 1)
    samples.sent((about.completion_id, 0), 2)
    assert [held.revision for held in samples.signals.changed] == [1]


def test_generations_that_the_log_holds_twice_are_counted(database: Database) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    turn = a_generation()
    item = ReadRecord(turn, (turn.completion_id, turn.choice), 0, 0)
    for items in ([item, item], [item]):
        with database.transaction() as connection:
            handler.handle(connection, items)
    with database.snapshot() as connection:
        counted = select(generation_count.c["count"]).where(generation_count.c.state == "duplicate")
        assert connection.execute(counted).scalar_one() == 2
