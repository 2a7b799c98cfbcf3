"""What `serving` adds to every service: metrics, request ids, fields of log lines."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import structlog
from fastapi import FastAPI
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from runtime.database import Database
from runtime.operations import Operations
from services.engine_ready import engine_check
from services.serving import Measured, make_web, storage_check
from tests.unit.services.serving import make_home, serve


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
