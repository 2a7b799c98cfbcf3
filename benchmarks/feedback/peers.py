"""Phoenix and MLflow, each in an environment of its own: servers that take feedback about a trace over HTTP.

Both refuse feedback about a trace that they have not received, so each gets one first. Both run on SQLite, as `serve` and
`server` start them, with one worker; MLflow without its job runners, which would only take processor time here. Phoenix
sets SQLite's `synchronous` to OFF: what it acknowledges is not yet on the disk. MLflow keeps SQLite's default, FULL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.worlds.processes import free_port, wait_for_port
from tests.worlds.servers.load import LoadPlan

ENVIRONMENTS = Path("/tmp/millrace-peers")  # noqa: S108 large, and made again when it is gone
_START_SECONDS, _SETTLE_SECONDS = 400.0, 3.0
_TRACE, _SPAN = "a" * 32, "b" * 16
_TIME = "2026-01-01T00:00:00Z"
_SPAN_ITEM = {
    "name": "chat",
    "context": {"trace_id": _TRACE, "span_id": _SPAN},
    "span_kind": "LLM",
    "start_time": _TIME,
    "end_time": _TIME,
    "status_code": "OK",
    "attributes": {},
}
_ANNOTATION = {
    "span_id": _SPAN,
    "name": "accepted",
    "annotator_kind": "HUMAN",
    "identifier": "{n}",  # a new one is a new row, not an update
    "result": {"label": "true", "score": 1},
}
_TRACE_INFO = {
    "trace_id": f"tr-{_TRACE}",
    "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}},
    "request_time": _TIME,
    "execution_duration": "1s",
    "state": "OK",
}
_ASSESSMENT = {
    "assessment_name": "accepted",
    "trace_id": f"tr-{_TRACE}",
    "source": {"source_type": "HUMAN", "source_id": "{n}"},
    "create_time": _TIME,
    "last_update_time": _TIME,
    "feedback": {"value": True},
    "valid": True,
}


def install() -> dict[str, str]:
    """Make the environments that are missing; returns the version in each."""
    versions = {}
    for package in ("arize-phoenix", "mlflow"):
        folder = ENVIRONMENTS / package.removeprefix("arize-")
        python = folder / "bin" / "python"
        if not (folder / "bin" / package.removeprefix("arize-")).exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603 our own interpreter
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", package], check=True)  # noqa: S603 as above
        told = subprocess.run(  # noqa: S603 as above
            [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
            check=True,
            capture_output=True,
            text=True,
        )
        versions[package] = told.stdout.strip()
    return versions


@contextmanager
def phoenix(folder: Path) -> Iterator[dict[str, LoadPlan]]:
    """A running Phoenix; one plan for answers after the insert, and one for answers before it."""
    port, grpc_port = free_port(), free_port()
    environment = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with _process([str(ENVIRONMENTS / "phoenix/bin/phoenix"), "serve"], folder, environment):
        wait_for_port(port, "/healthz", _START_SECONDS)
        _post(port, "/v1/projects/default/spans", {"data": [_SPAN_ITEM]})
        time.sleep(_SETTLE_SECONDS)  # the span is inserted by a queue
        body = json.dumps({"data": [_ANNOTATION]})
        yield {
            "phoenix sync": LoadPlan(port=port, path="/v1/span_annotations?sync=true", body=body),
            "phoenix async": LoadPlan(port=port, path="/v1/span_annotations?sync=false", body=body),
        }


@contextmanager
def mlflow(folder: Path) -> Iterator[dict[str, LoadPlan]]:
    """A running MLflow."""
    port = free_port()
    command = [str(ENVIRONMENTS / "mlflow/bin/mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1"]
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with _process(command, folder, environment):
        wait_for_port(port, "/health", _START_SECONDS)
        _post(port, "/api/3.0/mlflow/traces", {"trace": {"trace_info": _TRACE_INFO}})
        path = f"/api/3.0/mlflow/traces/tr-{_TRACE}/assessments"
        yield {"mlflow": LoadPlan(port=port, path=path, body=json.dumps({"assessment": _ASSESSMENT}))}


def _post(port: int, path: str, content: object) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(content).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 loopback
        answer.read()


@contextmanager
def _process(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 the peers' own programs
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a server of several processes, whose files are thrown away
        process.wait()
