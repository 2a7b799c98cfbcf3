"""Three tasks in one home, see `tests/worlds/desk/work.py`, in which each process is killed with SIGKILL in turn, under people who go on working.

Nothing is lost, nothing is learned twice, and each task is learned from and gated by its own sentinels and graders.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import func, select

from commands.audit import audit, read_clients
from commands.home import Home, prepare_home
from commands.supervisor import Supervisor
from commands.up import listen, new_settings
from contracts.assignments import LIVE
from contracts.assignments import read as read_arms
from contracts.ledger import trained_versions
from contracts.records import Outcome, decode
from contracts.tables import generation
from contracts.tables import verdict as verdict_table
from contracts.tasks.loading import load_tasks
from contracts.topics import OUTCOMES
from examples.demo.command import PRODUCT
from examples.demo.loop import DRAIN_SECONDS, all_judged
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from rewards.judges.report import identity_of
from tests.fakes import everything
from tests.supervised import supervised
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.services.serving import wait_until
from tests.worlds.desk.work import TASKS, TimeJudge, write_sentinels, write_tasks
from tests.worlds.servers.judge import judge_server, verdict
from weights.stores.opening import open_weight_store

pytestmark = pytest.mark.slow

VICTIMS = ("engine", "training", "episodes", "rewards", "release", "web")
PAUSE = 2.0
NUM_BEFORE, NUM_AFTER = 40, 50
"""Signals of people before the first kill, and after the last one."""
NUM_SENTINELS = 40
PATIENCE_SECONDS = 240.0
"""How long anything may take, on the slowest machine."""


class Kill(NamedTuple):
    """When a process was killed, and when it ran again."""

    at: float
    back_at: float


class Aftermath(NamedTuple):
    """What is left to look at."""

    home: Home
    supervisor: Supervisor
    kills: dict[str, Kill]
    clients: list[dict[str, Any]]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """People work while each process is killed in turn; then everything is settled."""
    folder, judging = tmp_path_factory.mktemp("desk"), TimeJudge()
    with judge_server(
        lambda asked: verdict("yes" if judging.passes(asked.sections["CONVERSATION"], asked.answer) else "no")
    ) as judge:
        paths = write_tasks(folder, judge.url)
        admit(folder, paths)
        sockets = listen(0)
        settings = new_settings(folder / "home", sockets, name="desk", base=PRODUCT / "base", tasks=paths, device="cpu")
        sections = {
            "training": TrainingSettings(
                batch_size=16, max_wait_seconds=3.0, publish_samples=48, publish_seconds=5.0, learning_rate=3e-4
            ),
            "release": ReleaseSettings(sentinels=write_sentinels(folder / "sentinels.jsonl", NUM_SENTINELS)),
        }
        home = prepare_home(settings, sections)
        with supervised(home, sockets) as supervisor:
            listed = folder / "users.jsonl"
            listed.touch()
            command = [sys.executable, "-m", "tests.worlds.desk.users", "--url", home.settings.web_url]
            command += ["--key", str(home.app_key), "--out", str(listed), "--stop", str(folder / "stop")]
            users = subprocess.Popen(command)  # noqa: S603 our own module
            try:
                wait_for_signals(listed, NUM_BEFORE)
                kills = {name: kill(supervisor, name) for name in VICTIMS}
                wait_for_signals(listed, num_signals(listed) + NUM_AFTER)
            finally:
                (folder / "stop").touch()
                users.wait(PATIENCE_SECONDS)
            drain(home, listed)
            assert judging.passed, "the judge knew what was asked"
            yield Aftermath(home, supervisor, kills, read_clients(listed))


def admit(folder: Path, paths: list[Path]) -> None:
    """What `millrace judge admit` would have written of the judge of times."""
    judge = load_tasks(tuple(paths))["times"].judges[0]
    head = {"task": "times", "judge": "timely", "at": "", "labels_file": "", "labels_sha256": ""}
    (folder / "timely.json").write_text(json.dumps({**head, "identity": identity_of(judge), "figures": FIGURES}))


def num_signals(listed: Path) -> int:
    return listed.read_text().count('"kind": "signal"')  # its last line may not be whole


def wait_for_signals(listed: Path, number: int) -> None:
    wait_until(lambda: num_signals(listed) >= number, PATIENCE_SECONDS)


def kill(supervisor: Supervisor, name: str) -> Kill:
    """SIGKILL, and wait until the supervisor has started it again."""
    child = supervisor.children[name]
    before, at = child.restarts, time.time()
    child.process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while child.restarts == before and time.monotonic() < deadline:
        time.sleep(0.05)
    back_at = time.time()
    time.sleep(PAUSE)
    return Kill(at, back_at)


def drain(home: Home, listed: Path) -> None:
    """Until nothing is pending, and no candidate is left whose sentinels would be."""
    database, log = home.settings.database(), home.settings.event_log()
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        if audit(database, log, read_clients(listed), settled=True).balanced and all_judged(
            database, home.settings.policy
        ):
            break
        time.sleep(0.5)
    database.close()
    log.close()


def test_each_process_was_started_again_by_the_supervisor(desk: Aftermath) -> None:
    restarts = {name: child.restarts for name, child in desk.supervisor.children.items()}
    assert all(restarts[name] >= 1 for name in VICTIMS)
    assert all(child.process.poll() is None for child in desk.supervisor.children.values())
    assert all(-signal.SIGKILL in child.ends for child in desk.supervisor.children.values())


def test_only_engine_and_training_hold_torch(desk: Aftermath) -> None:
    loaded = {
        name
        for name, child in desk.supervisor.children.items()
        if "libtorch" in Path(f"/proc/{child.process.pid}/maps").read_text()
    }
    assert loaded == {"engine", "training"}


def test_the_ledger_balances_against_the_peoples_own_list(desk: Aftermath) -> None:
    database, log = desk.home.settings.database(), desk.home.settings.event_log()
    result = audit(database, log, desk.clients, settled=True)
    database.close()
    log.close()
    assert result.problems == ()
    assert result.generations.states["trained"] > 20
    # The only answers nobody saw are those whose connection broke when `web` died.
    kill_of_web = desk.kills["web"]
    assert len(result.in_doubt) <= 8, f"in doubt: {result.in_doubt}, web was killed at {kill_of_web}"


def test_no_sample_was_learned_twice(desk: Aftermath) -> None:
    settings = desk.home.settings
    database, log = settings.database(), settings.event_log()
    with database.snapshot() as connection:
        trained = trained_versions(connection)
    store = open_weight_store(settings)
    newest = store.versions(settings.policy)[-1]
    learned, version = 0, newest
    while (manifest := store.manifest(settings.policy, version)).parent is not None:
        learned += manifest.num_samples
        version = manifest.parent
    outcomes = [decode(Outcome, record.value) for record in everything(log, OUTCOMES)]
    said = {(o.key, o.epoch, o.revision) for o in outcomes if o.state == "trained"}
    revisions = {key: {r for k, _, r in said if k == key} for key, _, _ in said}
    database.close()
    log.close()
    assert learned == len([key for key, at in trained.items() if at <= newest])
    assert all(len(held) == 1 for held in revisions.values())


def test_no_request_failed_except_those_in_flight_on_the_killed_web(desk: Aftermath) -> None:
    kill_of_web = desk.kills["web"]
    failed = [item for item in desk.clients if item["kind"] == "failed"]
    elsewhere = [item for item in failed if not kill_of_web.at - 1 <= item["at"] <= kill_of_web.back_at + 5]
    assert elsewhere == []
    broken = ("onnection", "closed", "ReadError")
    assert all(any(how in item["what"] for how in broken) for item in failed), json.dumps(failed)


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
    assert num_trained.keys() == set(TASKS)
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
    graders = {"reservations": ["exact"], "parties": ["counted"], "times": ["timely"]}
    for version, found in details.items():
        assert {name: task["graders"] for name, task in found["tasks"].items()} == graders, f"v{version}"
        assert all(task["num"] == NUM_SENTINELS for task in found["tasks"].values())
        assert found["ungated"] == {}
        compared = {item["reference"] for task in found["tasks"].values() for item in task["comparisons"]}
        assert version == 0 or "live" in compared
