"""Inference is ready only while its engine serves and accepts its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from commands.doctor import engine_of
from commands.findings import Finding
from contracts.engines import EngineReplica, announce
from contracts.errors import Unavailable
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
        return engine_of(settings)

    assert (found().good, found().needed) == (True, False)
    (tmp_path / FILE_NAME).write_text("the-key-of-another-home\n")
    assert (found().good, found().needed) == (False, True)
    assert "refuses this home's key" in found().says
    (tmp_path / FILE_NAME).write_text("")
    assert (found().good, found().needed) == (False, True)
    settings = make_home(tmp_path, "http://127.0.0.1:1")
    (tmp_path / FILE_NAME).unlink()
    assert (found().good, found().needed) == (True, False)
    assert "no engine runs at http://127.0.0.1:1" in found().says


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
