"""The row of a replica: written every second and at once after a change, removed at an orderly end."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from contracts.engines import EngineReplica, announce, read_replicas
from contracts.errors import NameTaken, Unavailable
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_rows import EngineRows
from runtime.settings import Settings
from services.engine.announcing import EngineAnnouncer, address_of, describe
from services.engine.engine import ENGINE, Engine
from services.engine.settings import EngineSettings
from tests.worlds.engines.memory_store import POLICY

ROW = EngineReplica(
    "one", POLICY, "http://127.0.0.1:1", "millrace", "eu", "serving", {"live": 1, "candidate": None}, frozenset({"spans"}),
    "first start", "engine/1", "float32", 0.0,
)  # fmt: skip


class Rows(EngineRows):
    """Remembers what was written; `away`: the database cannot be reached."""

    def __init__(self) -> None:
        self.written: list[EngineReplica] = []
        self.removed: list[str] = []
        self.away = False

    def announce(self, replica: EngineReplica) -> None:
        if self.away:
            raise Unavailable("no database")
        self.written.append(replica)

    def withdraw(self, name: str) -> None:
        self.removed.append(name)


def test_a_row_is_written_every_second_and_at_once_after_a_change() -> None:
    rows, row = Rows(), ROW
    announcer = EngineAnnouncer(lambda: row, rows)
    for now in (0.0, 0.1, 0.9):
        announcer.step(now)
    assert rows.written == [ROW]
    row = ROW._replace(slots={"live": 2, "candidate": None})
    announcer.step(0.95)
    assert rows.written == [ROW, row]
    announcer.step(1.9)
    announcer.step(2.0)
    assert rows.written == [ROW, row, row]


def test_a_database_that_is_away_costs_only_the_row() -> None:
    rows = Rows()
    rows.away = True
    announcer = EngineAnnouncer(lambda: ROW, rows)
    announcer.step(0.0)
    rows.away = False
    announcer.step(1.0)
    assert rows.written == [ROW]


def test_a_replica_whose_name_is_taken_ends_with_that_error() -> None:
    class Taken(Rows):
        def announce(self, replica: EngineReplica) -> None:
            raise NameTaken(f"an engine named {replica.name} already runs")

    ended: list[str] = []
    announcer = EngineAnnouncer(lambda: ROW, Taken(), lambda: ended.append("ended"))
    announcer.step(0.0)
    assert ended == ["ended"]
    assert announcer.fatal is not None
    assert announcer.fatal.message == "an engine named one already runs"


def test_the_row_is_removed_at_the_end() -> None:
    rows = Rows()
    announcer = EngineAnnouncer(lambda: ROW, rows)
    announcer.step(0.0)
    announcer.start()
    announcer.stop()
    assert rows.removed == ["one"]


def test_the_row_is_stored_and_leaves_with_rows_that_are_long_gone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'millrace.db'}")
    migrate(database)
    rows = EngineRows(database, POLICY)
    rows.announce(ROW)
    rows.announce(ROW._replace(status="paused"))
    with database.transaction() as connection:
        announce(connection, ROW._replace(name="other"))
    with database.snapshot() as connection:
        found = read_replicas(connection, POLICY)
    assert [(row.name, row.status, row.serves("candidate")) for row in found] == [
        ("one", "paused", False), ("other", "serving", False),
    ]  # fmt: skip
    rows.withdraw("one")
    with database.snapshot() as connection:
        assert [row.name for row in read_replicas(connection, POLICY)] == ["other"]
    database.close()


def test_an_engine_describes_itself(engine: Engine) -> None:
    row = describe(engine, name="one", url="http://h:1", region="eu")
    assert (row.status, row.slots, row.kind) == ("serving", {"live": 1, "candidate": None}, "millrace")
    assert (row.engine, row.dtype, row.instance) == (ENGINE, "float32", engine.instance)
    engine.pause()
    assert describe(engine, name="one", url="http://h:1", region="eu").status == "paused"
    engine.resume()


@pytest.mark.parametrize(
    ("host", "own", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:{port}"),
        ("0.0.0.0", {}, "http://{host}:{port}"),  # noqa: S104 not bound
        ("127.0.0.1", {"url": "http://10.0.0.7:9000", "name": "eu-1"}, "http://10.0.0.7:9000"),
    ],
)
def test_name_and_url_are_those_that_others_can_use(tmp_path: Path, host: str, own: dict[str, Any], url: str) -> None:
    settings = Settings(
        home=tmp_path, run="r", policy=POLICY, base="b", tasks=(tmp_path / "task.toml",), engine_host=host
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found = address_of(settings, EngineSettings(**own), listening)
    name = own.get("name", f"{socket.gethostname()}-{port}")
    assert found == (name, url.format(host=socket.gethostname(), port=port))
