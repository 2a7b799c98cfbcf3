"""A flood about one answer, and looks by several columns, on SQLite and on PostgreSQL."""

from __future__ import annotations

from msgspec.structs import replace
from sqlalchemy import select

from contracts.ledger import rejection_counts
from contracts.records import Submitter
from contracts.tables import join_key
from contracts.tables.statements import among_rows, insert_all_new
from pipelines.episodes import join as rules
from pipelines.episodes import repository
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.unit.pipelines.episodes.bench import Join


def test_of_a_flood_so_many_count_are_read_and_may_be_taken_back(any_database: Database) -> None:
    join = Join(any_database, BOOKING_TASK)
    about = a_generation()
    flood = [a_signal(about, id=f"f{number}", submitter=Submitter(id=f"p{number % 40}")) for number in range(300)]
    episodes = join.hear(*flood[:100], about, *flood[100:])
    assert [len(episode.signals) for episode in episodes] == [100, rules.MOST_OF_ANSWER]
    assert join.hear(*flood) == [], "delivered again"
    assert join.hear(*(replace(said, retracted=True) for said in flood[200:])) == []
    with any_database.snapshot() as connection:
        assert rejection_counts(connection) == {rules.TOO_MANY: 200 - rules.MOST_OF_ANSWER}
        assert len(list(repository.heard(connection, {about.completion_id}))) == rules.MOST_OF_ANSWER


def test_signals_about_keys_are_found_page_by_page(any_database: Database) -> None:
    join = Join(any_database, BOOKING_TASK)
    join.receive(*({"id": f"k{number}", "join_key": f"key {number}"} for number in range(1_100)))
    join.receive({"id": "s", "session_id": "s"})
    join.hear(*(a_generation(join_key=f"key {number}") for number in (0, 550, 1_099)), a_generation(session_id="s"))
    for now in range(104, 110):
        join.wait(float(now))
    assert join.counts() == {"joined": 4, "pending": 1_097}
    for now in range(10):
        join.wait(1e6 + now)
    assert join.counts() == {"joined": 4, "rejected": 1_097}


def test_rows_are_found_by_several_columns(any_database: Database) -> None:
    names = [("t", "key", value) for value in ('quoted "\\', "umlaut ä", "ẞ", "b", "B", "")]
    columns = ("tenant", "kind", "value")
    with any_database.transaction() as connection:
        rows = [
            dict(zip(columns, name, strict=True)) | {"completion_id": "c", "choice": 0, "at": 0.0} for name in names
        ]
        insert_all_new(connection, join_key, rows)
        found = select(join_key.c.value).where(
            among_rows(connection, [join_key.c[name] for name in columns], [*names[:4], ("u", "key", "b")])
        )
        assert sorted(connection.execute(found).scalars()) == sorted(value for _, _, value in names[:4])
