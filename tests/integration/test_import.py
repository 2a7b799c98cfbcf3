"""An export comes into a home of real processes: killed in the middle, resumed, joined, scored, audited, taken back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from commands.audit import audit
from commands.home import prepare_home
from commands.imports import progress
from contracts.ledger import generation_counts
from contracts.tables import score, signal
from examples.demo.command import PRODUCT
from runtime.settings import Settings
from tests.command_line import run_here
from tests.worlds.light_processes import start_light

pytestmark = pytest.mark.slow

NUM_ROWS = 3000
JUNE = 1_750_000_000
PATIENCE_SECONDS = 120.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(
        home=tmp_path / "home",
        run="r",
        policy="reservations",
        base=str(PRODUCT / "base"),
        tasks=(PRODUCT / "task.toml",),
    )
    return prepare_home(made, {}).settings


def an_export(path: Path) -> Path:
    rows = (
        {"id": f"r{number}", "messages": [{"role": "user", "content": f"a table for {number % 9}"}], "answer": '{"party": 2}',
         "at": JUNE + number, "user": f"u{number % 50}", "signals": {"accepted": number % 2 == 0}}
        for number in range(NUM_ROWS)
    )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def num_of(settings: Settings, kind: str) -> int:
    table = {"scores": score, "signals": signal}[kind]
    with settings.snapshot() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def states(settings: Settings) -> dict[str, int]:
    with settings.snapshot() as connection:
        return generation_counts(connection).states


def test_an_export_survives_kills_and_is_taken_back(settings: Settings, tmp_path: Path) -> None:
    export = str(an_export(tmp_path / "export.jsonl"))
    home, output = ("--home", str(settings.home)), tmp_path / "said.txt"
    running = start_light("import", export, "--from", "jsonl", *home, output=output)
    until(lambda: any(held.next_byte for held in progress.all_of(settings.home)))
    running.kill()
    running.wait()
    [held] = progress.all_of(settings.home)
    assert held.done_at is None, "it ended before it was killed"
    workers = [start_light(name, *home, output=output) for name in ("episodes", "rewards")]
    try:
        resumed = run_here("import", export, "--from", "jsonl", *home)
        assert (resumed.returncode, f"going on with {held.id}" in resumed.stdout) == (0, True), resumed
        assert f"imported already, as {held.id}" in run_here("import", export, "--from", "jsonl", *home).stdout
        until(lambda: num_of(settings, "scores") >= NUM_ROWS and states(settings) == {"off_support": NUM_ROWS})
        assert num_of(settings, "signals") == num_of(settings, "scores") == NUM_ROWS
        assert f"{NUM_ROWS:,} rows" in run_here("import", "undo", held.id, *home).stdout
        assert "already" in run_here("import", "undo", held.id, *home).stdout
        until(lambda: states(settings) == {"quarantined": NUM_ROWS})
        assert [worker.poll() for worker in workers] == [None, None], "a process died"
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    database, log = settings.database(), settings.event_log()
    result = audit(database, log)
    database.close()
    log.close()
    assert result.problems == ()
    assert result.signals.states["joined"] == NUM_ROWS
