"""Three tasks in one home: bookings (`json_exact`), sums (`math`) and replies (a judge), each gated by its own sentinels,
with SIGKILL of every process once while people go on working.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from commands.audit import audit, read_clients
from commands.home import prepare_home
from commands.up import listen, new_settings
from contracts.assignments import LIVE
from contracts.assignments import read as read_arms
from contracts.ledger import trained_versions
from contracts.tables import generation
from contracts.tables import verdict as verdict_table
from contracts.tasks.loading import load_tasks
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from rewards.judges.identity import identity_of
from tests.end_to_end.desk.build import build
from tests.end_to_end.desk.work import POLITE, TASKS, write_sentinels, write_tasks
from tests.end_to_end.test_kill import VICTIMS, Aftermath, drain, kill
from tests.judge_server import judge_server, verdict
from tests.supervised import supervised
from tests.unit.rewards.judges.figures import FIGURES

pytestmark = pytest.mark.slow

WORK_SECONDS = 75.0
FIRST_KILL_SECONDS = 20.0
NUM_SENTINELS = 40


def admit(folder: Path, paths: list[Path]) -> None:
    """What `millrace judge admit` would have written of the judge of replies."""
    judge = load_tasks(tuple(paths))["replies"].judges[0]
    head = {"task": "replies", "judge": "polite", "at": "", "labels_file": "", "labels_sha256": ""}
    (folder / "polite.json").write_text(json.dumps({**head, "identity": identity_of(judge), "figures": FIGURES}))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("desk")
    base = build(folder / "base")
    with judge_server(lambda asked: verdict("yes" if POLITE in asked.answer else "no")) as judge:
        paths = write_tasks(folder, judge.url)
        admit(folder, paths)
        sockets = listen(0)
        settings = new_settings(folder / "home", sockets, name="desk", base=base, tasks=paths, device="cpu")
        sections = {
            "training": TrainingSettings(
                batch_size=24, max_wait_seconds=3.0, publish_samples=72, publish_seconds=8.0, learning_rate=3e-4
            ),
            "release": ReleaseSettings(sentinels=write_sentinels(folder / "sentinels.jsonl", NUM_SENTINELS)),
        }
        home = prepare_home(settings, sections)
        with supervised(home, sockets) as supervisor:
            listed = folder / "users.jsonl"
            listed.touch()
            command = [sys.executable, "-m", "tests.end_to_end.desk.users", "--url", home.settings.web_url]
            command += ["--key", str(home.app_key), "--seconds", str(WORK_SECONDS), "--out", str(listed)]
            users = subprocess.Popen(command)  # noqa: S603 our own module
            time.sleep(FIRST_KILL_SECONDS)
            kills = {name: kill(supervisor, name) for name in VICTIMS}
            users.wait(timeout=180)
            drain(home, listed)
            yield Aftermath(home, supervisor, kills, read_clients(listed))


def test_the_ledger_balances_against_the_peoples_own_list(desk: Aftermath) -> None:
    database, log = desk.home.settings.database(), desk.home.settings.event_log()
    result = audit(database, log, desk.clients, settled=True)
    database.close()
    log.close()
    assert result.problems == ()
    assert len(result.in_doubt) <= 8, f"in doubt: {result.in_doubt}"


def test_every_task_was_learned_from(desk: Aftermath) -> None:
    database = desk.home.settings.database()
    with database.snapshot() as connection:
        trained = trained_versions(connection)
        rows = connection.execute(
            select(generation.c.task, func.count())
            .where(generation.c.state == "trained", generation.c.purpose == "user")
            .group_by(generation.c.task)
        )
        num_trained = {task: count for task, count in rows}  # noqa: C416 a row is not a tuple for dict()
    database.close()
    assert num_trained.keys() == TASKS.keys()
    assert min(num_trained.values()) >= 10
    assert sum(num_trained.values()) == len(trained)


def test_every_version_was_judged_on_every_task_by_its_own_sentinels(desk: Aftermath) -> None:
    database = desk.home.settings.database()
    policy = desk.home.settings.policy
    with database.snapshot() as connection:
        rows = connection.execute(select(verdict_table).where(verdict_table.c.policy == policy))
        details: dict[int, dict[str, Any]] = {row.version: row.details for row in rows if row.accepted}
        live = read_arms(connection, policy)[LIVE].version
    database.close()
    assert live is not None
    assert live > 0, "nothing better than the base was released"
    assert live in details
    graders = {"reservations": ["exact"], "sums": ["value"], "replies": ["polite"]}
    for version, found in details.items():
        assert {name: task["graders"] for name, task in found["tasks"].items()} == graders, f"v{version}"
        assert all(task["num"] == NUM_SENTINELS for task in found["tasks"].values())
        assert found["ungated"] == {}
        compared = {item["reference"] for task in found["tasks"].values() for item in task["comparisons"]}
        assert version == 0 or "live" in compared


def test_each_process_came_back_and_only_the_requests_in_flight_failed(desk: Aftermath) -> None:
    assert all(desk.supervisor.children[name].restarts >= 1 for name in VICTIMS)
    assert all(child.process.poll() is None for child in desk.supervisor.children.values())
    kill_of_web = desk.kills["web"]
    failed = [item for item in desk.clients if item["kind"] == "failed"]
    assert [item for item in failed if not kill_of_web.at - 1 <= item["at"] <= kill_of_web.back_at + 5] == []
