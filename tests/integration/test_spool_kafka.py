"""Kafka away from the real inference process, at 100 requests a second: users notice nothing, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.gateway.outage import Phases, run
from tests.services import kafka_servers

pytestmark = [pytest.mark.services, pytest.mark.slow]

SERVICES = Path(__file__).parent.parent.parent / "deploy" / "services"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of the servers that deploy/services started; all of them run again afterwards."""
    kafka_servers()
    folder = Path(os.environ.get("MILLRACE_SERVICES", SERVICES.parent.parent / "runs" / "services"))
    pid = folder / "kafka" / "pid"
    if not pid.exists():
        pytest.skip("the broker was not started by deploy/services")
    yield folder
    if pid.exists() and psutil.pid_exists(int(pid.read_text())):
        psutil.Process(int(pid.read_text())).resume()
    subprocess.run([SERVICES, "start"], check=True, capture_output=True)  # noqa: S603 our own script


@pytest.mark.parametrize("freeze", [False, True], ids=["stopped", "frozen"])
def test_nobody_notices_that_kafka_is_away_and_nothing_is_lost(folder: Path, freeze: bool) -> None:
    report = run(folder, Phases(before=2.0, during=15.0, after=40.0), freeze=freeze)

    assert report["requests"] == 5700
    assert (report["not_2xx"], report["not_logged"]) == (0, 0)
    assert report["spool_peak_records"] > 100
    assert report["drain_seconds"] is not None
    assert (report["lost"], report["unknown"]) == (0, 0)
