"""A replica whose clock differs from the database's reports it, is not ready, and creates no partition."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from contracts.errors import ClockOff
from runtime.clocks import MOST_SECONDS, ClockWatch, database_time, offset_seconds
from runtime.database import Database
from runtime.days import make_days_now
from runtime.operations import Operations
from tests.contract.test_partitions import partitions

ROOT = Path(__file__).parent.parent.parent
DAY, SECONDS = 86_400.0, 60.0


@pytest.fixture
def server(server: Database) -> Iterator[Database]:
    """It is closed when no watch measures with it any more."""
    yield server
    for thread in threading.enumerate():
        if thread.name == "clock":
            thread.join(SECONDS)


def ready(watch: ClockWatch) -> dict[str, str]:
    answer = Operations({"clock": watch.check}).answer("/ready")
    problems: dict[str, str] = json.loads(answer.body)["problems"]
    assert (answer.status == 503) == bool(problems)
    return problems


def test_embedded_the_database_is_the_same_machine(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'm.db'}")
    assert offset_seconds(database, lambda: time.time() + 10 * DAY) == 0.0
    assert ready(ClockWatch(database, lambda: time.time() + 10 * DAY)) == {}
    database.close()


@pytest.mark.services
def test_a_clock_that_is_right_is_ready(server: Database) -> None:
    watch = ClockWatch(server)
    watch.measure()
    assert ready(watch) == {}
    offset = REGISTRY.get_sample_value("millrace_clock_offset_seconds")
    assert offset is not None
    assert abs(offset) < MOST_SECONDS
    watch.close()


@pytest.mark.services
@pytest.mark.parametrize("jump", [10 * DAY, -10 * DAY, 70.0, -70.0])
def test_a_clock_that_is_off_says_so_is_not_ready_and_makes_no_day(server: Database, jump: float) -> None:
    held = partitions(server)
    watch = ClockWatch(server, lambda: time.time() + jump)
    with capture_logs() as lines:
        watch.measure()
    said = [line["seconds"] for line in lines if line["event"] == "clock off"]
    assert said
    assert said == pytest.approx([jump] * len(said), abs=5.0)
    problems = ready(watch)
    assert "more than 60: set it" in problems["clock"]
    assert ("ahead of" if jump > 0 else "behind") in problems["clock"]
    assert REGISTRY.get_sample_value("millrace_clock_offset_seconds") == pytest.approx(jump, abs=5.0)
    with pytest.raises(ClockOff):
        make_days_now(server, lambda: time.time() + jump)
    assert partitions(server) == held
    assert watch.now() == pytest.approx(time.time(), abs=5.0), "windows end by the database's clock"
    watch.close()


@pytest.mark.services
def test_up_to_a_minute_is_a_clock_like_others(server: Database) -> None:
    assert database_time(server, lambda: time.time() + 50.0) == pytest.approx(time.time(), abs=5.0)


@pytest.mark.services
@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime: apt-get install faketime")
def test_a_process_that_lives_ten_days_ahead_migrates_nothing_and_is_not_ready(server: Database) -> None:
    """The real clock of a real process, as libfaketime has it."""
    code = (
        "import json, sys\n"
        "from runtime.clocks import ClockWatch\n"
        "from runtime.database import Database\n"
        "from runtime.days import migrate\n"
        "from contracts.errors import ClockOff\n"
        "from runtime.operations import Operations\n"
        "database = Database(sys.argv[1])\n"
        "try:\n"
        "    migrate(database)\n"
        "except ClockOff as error:\n"
        "    refused = error.message\n"
        "ready = Operations({'clock': ClockWatch(database).check}).answer('/ready')\n"
        "print()  # a thread may be writing a log line\n"
        "print(json.dumps({'refused': refused, 'status': ready.status, 'body': json.loads(ready.body)}))\n"
    )
    held = partitions(server)
    done = subprocess.run(  # noqa: S603 our own interpreter
        ["faketime", "-f", "+10d", sys.executable, "-c", code, server.url],  # noqa: S607 found above
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said["status"] == 503
    assert said["body"]["problems"]["clock"] == said["refused"]
    assert "864000 s ahead of the database's" in said["refused"]
    assert partitions(server) == held
