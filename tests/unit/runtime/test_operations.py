"""What a process says of itself on its own port."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from contracts.errors import Unavailable
from runtime import metrics
from runtime.operations import LONGEST_STEP_SECONDS, OPERATIONS_FD, Operations, step_done, trouble


def broken() -> None:
    raise Unavailable("the database is away")


def test_ready_names_what_is_missing_and_health_does_not_care() -> None:
    operations = Operations({"storage": broken, "engine": lambda: None})

    ready = operations.answer("/ready")
    assert ready.status == 503
    assert json.loads(ready.body) == {"ready": False, "problems": {"storage": "the database is away"}}
    assert operations.answer("/health").status == 200


def test_a_process_that_drains_is_unready_and_healthy() -> None:
    operations = Operations()
    assert operations.answer("/ready").status == 200
    operations.drain()
    assert json.loads(operations.answer("/ready").body)["problems"] == {"draining": "told to stop"}
    assert operations.answer("/health").status == 200


def test_a_loop_that_does_not_come_round_is_unhealthy() -> None:
    operations = Operations()
    metrics.LAST_STEP.set(time.time() - LONGEST_STEP_SECONDS - 1)
    assert operations.answer("/health").status == 503
    step_done()
    assert operations.answer("/health").status == 200


def test_metrics_are_prometheus_text_and_other_paths_are_named() -> None:
    answer = Operations().answer("/metrics")
    assert answer.content_type.startswith("text/plain")
    assert b"# TYPE millrace_behind_seconds gauge" in answer.body
    assert Operations().answer("/other").status == 404


def test_names_follow_the_conventions() -> None:
    ours = [metric for metric in REGISTRY.collect() if metric.name.startswith("millrace_")]
    assert len(ours) > 20
    for metric in ours:
        assert re.fullmatch(r"millrace_[a-z_]+", metric.name)
        assert metric.documentation.endswith(".")
        if metric.type == "histogram" and metric.name not in {"millrace_reward", "millrace_judge_disagreement"}:
            assert metric.name.endswith("_seconds")


def test_an_inherited_socket_is_served_from_the_first_moment_and_who_leaves_early_is_no_news() -> None:
    program = (
        "from runtime.operations import Operations; operations = Operations(); print('up', flush=True); input();"
        "operations.close()"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with socket.create_connection(listening.getsockname()) as leaving:
            leaving.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        process = subprocess.Popen(  # noqa: S603 our own interpreter and program
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {OPERATIONS_FD: str(listening.fileno())},
            pass_fds=[listening.fileno()],
            cwd=Path(__file__).parent.parent.parent.parent,
        )
        with process:
            with urllib.request.urlopen(f"{url}/ready", timeout=20) as answer:  # noqa: S310 loopback
                assert json.load(answer) == {"ready": True, "problems": {}}
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{url}/nowhere", timeout=20)  # noqa: S310 loopback
            assert process.communicate(b"\n", timeout=20)[1] == b""
        assert process.returncode == 0


def test_a_trouble_of_the_process_keeps_it_unready_until_it_is_over() -> None:
    operations = Operations({})
    trouble("gate", "no verdict: the judge is away")
    answer = operations.answer("/ready")
    assert (answer.status, json.loads(answer.body)["problems"]) == (503, {"gate": "no verdict: the judge is away"})
    trouble("gate", None)
    assert operations.answer("/ready").status == 200


def test_what_fails_again_and_again_is_a_metric_too() -> None:
    trouble("gate", "no engine")
    assert REGISTRY.get_sample_value("millrace_trouble", {"name": "gate"}) == 1.0
    trouble("gate", None)
    assert REGISTRY.get_sample_value("millrace_trouble", {"name": "gate"}) == 0.0


def test_the_clock_is_read_at_each_scrape() -> None:
    Operations()
    before = time.time()
    assert before <= (REGISTRY.get_sample_value("millrace_clock_timestamp_seconds") or 0.0) <= time.time()
