"""What `serving` adds to every service: metrics, request ids, fields of log lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import structlog
from fastapi import FastAPI
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from runtime.database import Database
from runtime.operations import Operations
from runtime.settings import Settings, write_settings
from services.engine_ready import engine_check
from services.http import off_loop
from services.serving import Measured, make_web, storage_check
from services.web import CHECKS, make
from tests.unit.services.inference.conftest import stage
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home, make_key, serve, wait_until
from tests.worlds.processes import free_port


def served() -> FastAPI:
    app = FastAPI(title="Millrace sample")

    @app.get("/fine")
    async def fine() -> dict[str, str]:
        return {str(key): str(value) for key, value in structlog.contextvars.get_contextvars().items()}

    @app.get("/breaks")
    async def breaks() -> None:
        raise ZeroDivisionError

    return app


def count(status: str) -> float:
    return REGISTRY.get_sample_value("millrace_requests_total", {"service": "sample", "status": status}) or 0.0


def test_requests_are_counted_and_named() -> None:
    before = count("200"), count("404")
    with serve(Measured(served(), "sample")) as url:
        answer = httpx.get(f"{url}/fine", headers={"x-request-id": "mine"})
        other = httpx.get(f"{url}/fine")
        with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            httpx.get(f"{url}/nowhere", headers={"x-request-id": "lost"})

    assert answer.headers["x-request-id"] == answer.json()["request"] == "mine"
    assert len(other.headers["x-request-id"]) == 32
    assert (count("200") - before[0], count("404") - before[1]) == (2.0, 1.0)
    assert REGISTRY.get_sample_value("millrace_requests_in_flight", {"service": "sample"}) == 0.0
    [line] = [line for line in lines if line["event"] == "request"]
    assert (line["request"], line["status"], line["path"], line["log_level"]) == ("lost", 404, "/nowhere", "warning")


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_the_frame_answers_for_itself(tmp_path: Path, database: Database, path: str) -> None:
    del database
    checks = {"storage": storage_check(make_home(tmp_path))}
    with serve(make_web({"/": served()}, Operations(checks))) as url:
        answer = httpx.get(f"{url}{path}")
    assert answer.status_code == 200
    assert json.loads(answer.content) in ({"status": "alive"}, {"ready": True, "problems": {}})


def test_a_service_without_its_engine_is_unready(tmp_path: Path, database: Database) -> None:
    del database
    with serve(make_web({"/": served()}, Operations({"engine": engine_check(make_home(tmp_path))}))) as url:
        answer = httpx.get(f"{url}/ready")
    assert answer.status_code == 503
    assert "no engine answers" in answer.json()["problems"]["engine"]


__all__ = ["stage"]


def test_one_port_serves_everything(tmp_path: Path, database: Database, stage: Stage) -> None:
    stage.engine = FakeEngine("hello")
    make_base(tmp_path / "base")
    headers = {"authorization": f"Bearer {make_key(database)}"}
    settings = make_home(tmp_path, stage.url)
    with (
        serve(make_web(make(settings), Operations({name: check(settings) for name, check in CHECKS.items()}))) as url,
        httpx.Client(base_url=url, headers=headers) as client,
    ):
        answer = client.post(
            "/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        )
        item = {"completion_id": answer.json()["id"], "name": "accepted", "value": True, "submitter": {"id": "u1"}}
        assert answer.json()["choices"][0]["message"]["content"] == "hello"
        assert client.post("/v1/feedback", json=item).status_code == 202
        assert client.get("/sessions/visit-7/v1/models").json()["data"][0]["id"] == "demo"
        assert client.get("/sessions?id=visit-7").headers["content-type"].startswith("text/html"), (
            "the dashboard's page"
        )
        assert client.get("/").status_code in {200, 303, 307, 401}
        assert client.get("/nowhere").status_code == 404
        assert client.get("/health").json() == {"status": "alive"}
        assert client.get("/ready").json() == {"ready": True, "problems": {}}

        stage.engine.serving = False
        wait_until(lambda: client.get("/ready").status_code == 503)  # it looks once a second
        assert list(client.get("/ready").json()["problems"]) == ["engine"]


@pytest.mark.slow
def test_a_process_drains_on_sigterm_and_never_loads_torch(tmp_path: Path, database: Database, stage: Stage) -> None:
    stage.engine = engine = FakeEngine("hello")
    engine.hold_after = 2
    make_base(tmp_path / "base")
    key = make_key(database)
    settings = make_home(tmp_path, stage.url)
    settings = settings.model_copy(update={"web_port": free_port()})
    write_settings(settings, {})
    program = (
        "import sys; from pathlib import Path; from services.web import main; main(Path(sys.argv[1]));"
        "print(sorted({'torch', 'transformers', 'trl', 'accelerate', 'policy'} & set(sys.modules)))"
    )
    process = subprocess.Popen(  # noqa: S603 our own interpreter and program
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: _alive(settings))
        body = '{"model": "demo", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        headers = {"authorization": f"Bearer {key}"}
        address = f"{settings.web_url}/v1/chat/completions"
        with httpx.stream("POST", address, content=body, headers=headers) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not _alive(settings))
            engine.go.set()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        output, _ = process.communicate(timeout=10)
    finally:
        process.kill()
    assert output.splitlines()[-1] == "[]"
    assert process.returncode == 0


def _alive(settings: Settings) -> bool:
    try:
        return httpx.get(f"{settings.web_url}/health").is_success
    except httpx.TransportError:
        return False


async def test_large_bodies_are_read_on_another_thread() -> None:
    threads = [await off_loop(lambda _body: threading.get_ident(), bytes(num)) for num in (100, 100_000)]
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()
