"""A small policy learns rounds of 13 answers from one bit at the end of each: over HTTP, with the processes that users start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from commands.audit import Audit, audit, read_clients
from commands.home import Home, prepare_home
from commands.up import listen, new_settings
from contracts.turns import count_rows
from examples.demo import queries
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from tests.end_to_end.test_kill import drain
from tests.supervised import supervised
from tests.worlds.rounds.build import build
from tests.worlds.rounds.hall import NUM_SHELVES, write_sentinels
from tests.worlds.rounds.users import WINDOW

pytestmark = pytest.mark.slow

ENOUGH = 0.85
MOST_SECONDS = 900.0
"""On two quiet cores one minute is enough."""
TASK = """\
name = "rounds"
window_seconds = 30
consent = "train"
silence = "unlabelled"
baseline_key = "task"

[sampling]
owner = "task"
temperature = 1.0
max_tokens = 12

[signals.solved]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[credit]
rule = "equal"

[[verifiers]]
name = "move"
kind = "exact"
role = "watch"

[gate]
graders = ["move"]
"""
TRAINING = {
    "learning_rate": 2e-3,
    "step_bound": 1.2e-4,
    "batch_size": 52,
    "max_wait_seconds": 5.0,
    "publish_samples": 104,
    "publish_seconds": 5.0,
}


class Rounds(NamedTuple):
    """What is left to look at."""

    home: Home
    result: Audit
    clients: list[dict[str, Any]]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    folder = tmp_path_factory.mktemp("rounds")
    base = build(folder / "base")
    task = folder / "task.toml"
    task.write_text(TASK)
    sockets = listen(0)
    settings = new_settings(folder / "home", sockets, name="rounds", base=base, tasks=[task], device="cpu")
    sections = {
        "training": TrainingSettings(**TRAINING),
        "release": ReleaseSettings(sentinels=write_sentinels(folder / "sentinels.jsonl", 30)),
    }
    home = prepare_home(settings, sections)
    with supervised(home, sockets, forked=True):
        listed = folder / "users.jsonl"
        listed.touch()
        command = [sys.executable, "-m", "tests.worlds.rounds.users", "--url", home.settings.web_url]
        command += ["--key", str(home.app_key), "--seconds", str(MOST_SECONDS), "--out", str(listed)]
        command += ["--enough", str(ENOUGH)]
        subprocess.run(command, check=True, timeout=MOST_SECONDS + 120)  # noqa: S603 our own module
        drain(home, listed)
        database, log = home.settings.database(), home.settings.event_log()
        yield Rounds(home, audit(database, log, read_clients(listed), settled=True), read_clients(listed))
        database.close()
        log.close()


def test_nothing_is_lost_and_each_round_is_one_row(rounds: Rounds) -> None:
    assert [item for item in rounds.clients if item["kind"] == "failed"] == []
    assert rounds.result.problems == ()
    database = rounds.home.settings.database()
    with database.snapshot() as connection:
        sessions = queries.session_calls(connection)
    database.close()
    counted = count_rows([call for calls in sessions.values() for call in calls])
    # A policy that learns may talk until its answer is cut: the next one begins a row.
    assert counted.rows == len(sessions) + counted.branches.get("answer_cut", 0), counted.branches
    assert max(map(len, sessions.values())) == NUM_SHELVES + 1
    assert counted.saved > 0.8, "all answers of a round are one row"


def test_four_of_five_rounds_go_well_in_the_end(rounds: Rounds) -> None:
    ends = [item["positive"] for item in rounds.clients if item["kind"] == "signal"]
    assert len(ends) >= WINDOW, "owners stop when the last of them went well, which may be soon"
    first, last = ends[: WINDOW // 2], ends[-WINDOW:]
    assert sum(first) / len(first) <= 0.6, "the base policy needs to learn"
    assert sum(last) / len(last) >= 0.8
