"""A name belongs to the replica that announced it first. A row of another run or base is read as one that serves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from contracts.engines import EngineReplica, read_replica, read_replicas
from contracts.errors import NameTaken
from contracts.tables import engine_replica
from engines.fitting import fitting
from runtime.base_policy import fingerprint
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_rows import EngineRows
from tests.worlds.passing import Clock

FIRST = EngineReplica(
    "eu-1", "demo", "http://10.0.0.1:1", "millrace", "eu", "serving", {"live": 1}, frozenset({"spans"}), "first", "e", "float32",
    0.0, "run", "base",
)  # fmt: skip
SECOND = FIRST._replace(url="http://10.0.0.2:1", instance="second", slots={"live": 2})


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'millrace.db'}")
    migrate(database)
    yield database
    database.close()


def holder(database: Database) -> str | None:
    """The instance whose row the name has."""
    with database.snapshot() as connection:
        row = read_replica(connection, "demo", "eu-1")
    return None if row is None else row.instance


def tick(database: Database, by: float = 1.0) -> None:
    """Move `seen_at` as a renewal would: two writes of a test may fall into one tick of the clock."""
    with database.transaction() as connection:
        connection.execute(update(engine_replica).values(seen_at=engine_replica.c.seen_at + by))


def test_a_second_replica_with_the_name_of_a_living_one_is_refused_and_changes_nothing(database: Database) -> None:
    clock = Clock()
    first, second = EngineRows(database, "demo", clock), EngineRows(database, "demo", clock)
    first.announce(FIRST)
    second.announce(SECOND)
    assert holder(database) == "first", "it is not known yet whether the holder lives"
    first.announce(FIRST)
    tick(database)
    with pytest.raises(NameTaken, match=r"an engine named eu-1 already runs at http://10\.0\.0\.1:1 \(region eu\)"):
        second.announce(SECOND)
    second.withdraw("eu-1")
    assert holder(database) == "first", "the row of another is not removed"


def test_the_row_of_a_dead_replica_is_taken_over_after_three_seconds(database: Database) -> None:
    clock = Clock()
    EngineRows(database, "demo", clock).announce(FIRST)
    second = EngineRows(database, "demo", clock)
    for clock.now in (0.0, 1.0, 2.9):
        second.announce(SECOND)
        assert holder(database) == "first"
    clock.now = 3.1
    second.announce(SECOND)
    assert holder(database) == "second"


def test_a_restart_at_the_same_address_waits_for_nothing(database: Database) -> None:
    EngineRows(database, "demo").announce(FIRST)
    EngineRows(database, "demo").announce(SECOND._replace(url=FIRST.url))
    assert holder(database) == "second"


def test_a_row_that_is_not_fresh_is_taken_over_at_once(database: Database) -> None:
    EngineRows(database, "demo").announce(FIRST)
    tick(database, -60.0)
    EngineRows(database, "demo").announce(SECOND)
    assert holder(database) == "second"


def test_of_two_hosts_with_one_address_the_first_stays(database: Database) -> None:
    """Both listen on a loopback address, each on its own machine."""
    clock = Clock()
    first, second = EngineRows(database, "demo", clock), EngineRows(database, "demo", clock)
    first.announce(FIRST)
    clock.now = 10.0
    second.announce(SECOND._replace(url=FIRST.url))
    first.announce(FIRST)
    assert holder(database) == "first"
    with pytest.raises(NameTaken):
        second.announce(SECOND._replace(url=FIRST.url))


def test_a_replica_whose_server_was_started_again_keeps_its_row(database: Database) -> None:
    rows = EngineRows(database, "demo")
    rows.announce(FIRST)
    rows.announce(SECOND)
    assert holder(database) == "second"
    rows.withdraw("eu-1")
    assert holder(database) is None


def test_a_replica_of_another_run_or_base_serves_nothing_for_this_home(database: Database) -> None:
    EngineRows(database, "demo").announce(FIRST)
    with database.snapshot() as connection:
        (row,) = read_replicas(connection, "demo")
    assert fitting(row, "run", "base") == row
    assert fitting(row, "run", "") == row, "an unknown base accuses nobody"
    for run, base, status in (("other", "base", "another_run"), ("run", "other", "another_base")):
        found = fitting(row, run, base)
        assert (found.status, dict(found.slots), found.serves("live")) == (status, {}, False)


def test_the_fingerprint_is_of_model_and_tokenizer_and_not_of_the_place(tmp_path: Path) -> None:
    found = []
    for name, changes, tokenizer in (
        ("a", {}, "{}"),
        ("b", {"_name_or_path": "/elsewhere", "transformers_version": "6"}, "{}"),
        ("c", {"rope_theta": 5.0}, "{}"),
        ("d", {}, "{ }"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"rope_theta": 1.0, "_name_or_path": "/here"} | changes))
        (folder / "tokenizer.json").write_text(tokenizer)
        found.append(fingerprint(folder))
    assert found[0] == found[1]
    assert len(set(found)) == len(found) - 1
    assert not fingerprint(tmp_path / "absent")
