"""One run of the whole loop in which each process is killed with SIGKILL in turn, under users who go on working."""

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

from commands.audit import audit, read_clients
from commands.demo import PRODUCT, write_sentinels
from commands.demo_loop import DRAIN_SECONDS, all_judged
from commands.home import Home, prepare_home
from commands.supervisor import Supervisor
from commands.up import listen, new_settings
from contracts.ledger import trained_versions
from contracts.records import Outcome, decode
from contracts.topics import OUTCOMES
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from tests.fakes import everything
from tests.supervised import supervised
from weights.stores.opening import open_weight_store

pytestmark = pytest.mark.slow

VICTIMS = ("engine", "training", "episodes", "rewards", "release", "web")
WORK_SECONDS = 32.0
FIRST_KILL, PAUSE = 7.0, 3.0


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
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("kill")
    sockets = listen(0)
    settings = new_settings(
        folder, sockets, name="reservations", base=PRODUCT / "base", tasks=[PRODUCT / "task.toml"], device="cpu"
    )
    sections = {
        "training": TrainingSettings(batch_size=16, max_wait_seconds=3.0, publish_samples=48, publish_seconds=5.0),
        "release": ReleaseSettings(sentinels=write_sentinels(folder / "sentinels.jsonl", 20)),
    }
    home = prepare_home(settings, sections)
    with supervised(home, sockets) as supervisor:
        listed = folder / "users.jsonl"
        listed.touch()
        users = start_users(home, listed)
        time.sleep(FIRST_KILL)
        kills = {name: kill(supervisor, name) for name in VICTIMS}
        users.wait(timeout=120)
        drain(home, listed)
        yield Aftermath(home, supervisor, kills, read_clients(listed))


def start_users(home: Home, listed: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.reservations.users", "--url", home.settings.web_url]
    command += ["--key", str(home.app_key), "--seconds", str(WORK_SECONDS), "--users", "8", "--pace", "0.8"]
    return subprocess.Popen([*command, "--out", str(listed)])  # noqa: S603 our own module


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


@pytest.mark.slow
def test_each_process_was_started_again_by_the_supervisor(aftermath: Aftermath) -> None:
    restarts = {name: child.restarts for name, child in aftermath.supervisor.children.items()}
    assert all(restarts[name] >= 1 for name in VICTIMS)
    assert all(child.process.poll() is None for child in aftermath.supervisor.children.values())
    assert all(-signal.SIGKILL in child.ends for child in aftermath.supervisor.children.values())


@pytest.mark.slow
def test_only_engine_and_training_hold_torch(aftermath: Aftermath) -> None:
    loaded = {
        name
        for name, child in aftermath.supervisor.children.items()
        if "libtorch" in Path(f"/proc/{child.process.pid}/maps").read_text()
    }
    assert loaded == {"engine", "training"}


@pytest.mark.slow
def test_the_ledger_balances_against_the_users_own_list(aftermath: Aftermath) -> None:
    database, log = aftermath.home.settings.database(), aftermath.home.settings.event_log()
    result = audit(database, log, aftermath.clients, settled=True)
    database.close()
    log.close()
    assert result.problems == ()
    assert result.generations.states["trained"] > 20
    # The only answers nobody saw are those whose connection broke when `web` died.
    kill_of_web = aftermath.kills["web"]
    assert len(result.in_doubt) <= 8, f"in doubt: {result.in_doubt}, web was killed at {kill_of_web}"


@pytest.mark.slow
def test_no_sample_was_learned_twice(aftermath: Aftermath) -> None:
    settings = aftermath.home.settings
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


@pytest.mark.slow
def test_no_request_failed_except_those_in_flight_on_the_killed_web(aftermath: Aftermath) -> None:
    kill_of_web = aftermath.kills["web"]
    failed = [item for item in aftermath.clients if item["kind"] == "failed"]
    elsewhere = [item for item in failed if not kill_of_web.at - 1 <= item["at"] <= kill_of_web.back_at + 5]
    assert elsewhere == []
    assert all("onnection" in item["what"] or "closed" in item["what"] for item in failed), json.dumps(failed)
