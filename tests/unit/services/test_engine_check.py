"""Inference is ready only while its engine serves and accepts its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from commands.engines import engine_findings
from commands.findings import Finding
from contracts.engines import EngineReplica, LoadProblem, announce
from contracts.errors import Unavailable
from contracts.tables import engine_replica
from runtime.database import Database
from runtime.engine_key import FILE_NAME, engine_key
from services.engine.guard import Guard
from services.engine_ready import engine_check
from tests.unit.services.serving import make_home, serve


class Engine:
    """Says of itself whatever it is told to."""

    status = "serving"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = JSONResponse({"status": self.status}, 200 if self.status == "serving" else 503)
            await answer(scope, receive, send)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Engine, str]]:
    engine = Engine()
    with serve(Guard(engine, engine_key(tmp_path))) as url:
        yield engine, url


def test_an_engine_that_serves_is_ready(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    engine_check(make_home(tmp_path, engine[1]))()


@pytest.mark.parametrize("status", ["paused", "starting", "restarting", "failed"])
def test_an_engine_that_does_not_serve_is_not(tmp_path: Path, engine: tuple[Engine, str], status: str) -> None:
    engine[0].status = status
    with pytest.raises(Unavailable, match=f"says 503: {status}$"):
        engine_check(make_home(tmp_path, engine[1]))()


def test_an_engine_of_another_home_is_not(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    (tmp_path / FILE_NAME).write_text("the-key-of-another-home\n")
    with pytest.raises(Unavailable, match="says 401: it refuses this process"):
        engine_check(make_home(tmp_path, engine[1]))()


def test_doctor_says_whether_the_engine_takes_the_key(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    settings = make_home(tmp_path, engine[1])

    def found() -> Finding:
        return next(engine_findings(settings))

    assert (found().good, found().needed) == (True, False)
    (tmp_path / FILE_NAME).write_text("the-key-of-another-home\n")
    assert (found().good, found().needed) == (False, True)
    assert "refuses this home's key" in found().says
    (tmp_path / FILE_NAME).write_text("")
    assert (found().good, found().needed) == (False, True)
    settings = make_home(tmp_path, "http://127.0.0.1:1")
    (tmp_path / FILE_NAME).unlink()
    assert (found().good, found().needed) == (True, False)
    assert "no engine answers" in found().says


def test_one_engine_that_serves_is_enough(tmp_path: Path, engine: tuple[Engine, str], database: Database) -> None:
    dead = EngineReplica(
        "dead", "demo", "http://127.0.0.1:1", "vllm", "local", "serving", {"live": 3}, frozenset(), "", "vllm", "float32", 0.0
    )  # fmt: skip
    with database.transaction() as connection:
        announce(connection, dead)
    check = engine_check(make_home(tmp_path, engine[1]))
    with pytest.raises(Unavailable, match=r"no engine answers at http://127\.0\.0\.1:1"):
        check()
    with database.transaction() as connection:
        announce(connection, dead._replace(name="well", url=engine[1], kind="millrace"))
    check()
    engine[0].status = "paused"
    with pytest.raises(Unavailable, match="says 503: paused"):
        check()


def test_doctor_names_every_replica(tmp_path: Path, engine: tuple[Engine, str], database: Database) -> None:
    settings = make_home(tmp_path, engine[1])
    (tmp_path / "millrace.toml").touch()  # with the defaults of [train]
    settings = settings.model_copy(update={"database_url": database.url})
    well = EngineReplica(
        "eu-1", "demo", engine[1], "millrace", "eu", "serving", {"live": 3}, frozenset(), "", "e", "float32", 0.0, settings.run
    )  # fmt: skip
    problem = LoadProblem(version=4, code="payload_hash", message="another hash", attempts=2)
    with database.transaction() as connection:
        announce(connection, well)
        announce(connection, well._replace(name="eu-2", kind="vllm", problems={"live": problem}))
        announce(connection, well._replace(name="us-1", region="us", run="another"))
        announce(connection, well._replace(name="us-2", region="us"))
        connection.execute(update(engine_replica).where(engine_replica.c.name == "us-2").values(seen_at=1.0))
    found = list(engine_findings(settings))
    assert [(finding.good, finding.needed) for finding in found] == [
        (True, False), (False, False), (False, True), (False, False), (True, False),
    ]  # fmt: skip
    says = [finding.says for finding in found]
    assert says[0].startswith(f"eu-1 (millrace, region eu, {engine[1]}): serving, live v3: accepts this home's key")
    assert "cannot load v4 as live: payload_hash: another hash" in says[1]
    assert "us-1 (millrace, region us," in says[2]
    assert "another_run: it belongs to another run, so it gets no requests" in says[2]
    assert "us-2" in says[3]
    assert "no sign of life for" in says[3]
    assert "canary" in says[4]
