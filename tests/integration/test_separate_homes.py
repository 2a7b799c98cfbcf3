"""Every process in a home of its own, as the Helm chart runs them: settings from a read-only file, secrets from the environment.

Real Kafka, PostgreSQL, Redis and object store; no folder is shared but that of the product (policy, tasks, sentinels).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import sqlalchemy

from commands.audit import Audit, audit, read_clients
from examples.demo.command import PRODUCT, write_sentinels
from runtime.database import create_database
from runtime.operations import OPERATIONS_ADDRESS
from runtime.operator_key import APP_KEY
from runtime.settings import load_settings, to_toml
from runtime.settings_file import SETTINGS
from tests.given_secrets import NEEDED
from tests.worlds.processes import free_port
from tests.worlds.servers.services import kafka_servers

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif("MILLRACE_SEPARATE_HOMES" not in os.environ, reason="takes over a minute: make separate-homes"),
]

ROOT = Path(__file__).parent.parent.parent
PROCESSES = tuple(name for name in NEEDED if name != "init")
START_SECONDS, DRAIN_SECONDS, END_SECONDS = 600.0, 120.0, 60.0
ROUND_SECONDS, MOST_ROUNDS = 8.0, 8
PASSWORD = "of-this-test"  # noqa: S105 PostgreSQL here believes everybody


class Cluster(NamedTuple):
    """Where everything is."""

    folder: Path
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    ports: Mapping[str, int]
    policy: str

    def home(self, process: str) -> Path:
        return self.folder / "homes" / process

    def env(self, process: str) -> dict[str, str]:
        """The environment of a process: its own secrets, and no other's."""
        own = {name: self.secrets[name] for name in NEEDED[process]}
        operations = (
            {OPERATIONS_ADDRESS: f"127.0.0.1:{self.ports['operations-' + process]}"} if process != "init" else {}
        )
        return {**self.environment, **own, **operations}

    def command(self, process: str) -> list[str]:
        return [sys.executable, str(ROOT / "millrace.py"), process, "--home", str(self.home(process))]

    def run_init(self, without: str = "") -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in self.env("init").items() if name != without}
        return subprocess.run(  # noqa: S603 our own script
            self.command("init"), env=env, capture_output=True, text=True, check=False, cwd=self.folder
        )

    def url(self, process: str) -> str:
        return f"http://127.0.0.1:{self.ports[process]}"

    def problem(self, process: str) -> str:
        """Why a process is not ready; empty if it is."""
        try:
            answer = httpx.get(f"{self.url('operations-' + process)}/ready", timeout=5.0)
        except httpx.TransportError as error:
            return repr(error)
        return "" if answer.is_success else answer.text


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    kafka, name = kafka_servers(), f"apart-{uuid.uuid4().hex[:8]}"
    names = ("inference", "engine", "feedback", "dashboard", *(f"operations-{process}" for process in PROCESSES))
    ports = {name: free_port() for name in names}
    database = create_database(os.environ["MILLRACE_DATABASE"], name.replace("-", "_"))
    product, config = tmp_path / "product", tmp_path / "config"
    for folder in (product, config):
        folder.mkdir()
    task = (PRODUCT / "task.toml").read_text().replace("window_seconds = 10", "window_seconds = 3")
    (product / "task.toml").write_text(task)
    millrace = {
        "run": "main", "policy": name, "base": str(PRODUCT / "base"), "tasks": [str(product / "task.toml")], "kafka": kafka,
        "database_url": database, "redis": os.environ["MILLRACE_REDIS"],
        "weights_url": f"{os.environ['MILLRACE_WEIGHTS']}/{name}", "web_port": ports["inference"], "engine_port": ports["engine"],
        "feedback_port": ports["feedback"], "dashboard_port": ports["dashboard"],
    }  # fmt: skip
    sections: dict[str, dict[str, Any]] = {
        "millrace": millrace,
        "training": {"batch_size": 16, "max_wait_seconds": 2.0, "publish_samples": 32, "publish_seconds": 3.0},
        "engine": {"url": f"http://${{POD_NAME}}:{ports['engine']}"},
        "release": {"sentinels": str(write_sentinels(product / "sentinels.jsonl", 20))},
    }
    file = config / "millrace.toml"
    file.write_text(to_toml(sections))
    file.chmod(0o444)
    config.chmod(0o555)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    plain |= {"PYTHONPATH": str(ROOT), SETTINGS: str(file), "PGPASSWORD": PASSWORD, "POD_NAME": "127.0.0.1"}
    yield Cluster(tmp_path, plain, make_secrets(), ports, name)
    url = sqlalchemy.make_url(database)
    admin = sqlalchemy.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE "{url.database}" WITH (FORCE)')
    admin.dispose()


def make_secrets() -> dict[str, str]:
    """What `millrace keys secrets` prints."""
    made = subprocess.run(  # noqa: S603 our own script
        [sys.executable, str(ROOT / "millrace.py"), "keys", "secrets"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return dict(line.split("=", 1) for line in made.stdout.splitlines())


def test_processes_without_a_shared_home_learn_serve_and_account_for_everything(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cluster.run_init(without="MILLRACE_ENGINE_KEY")
    assert refused.returncode != 0
    assert "MILLRACE_ENGINE_KEY is not set" in refused.stdout + refused.stderr

    for _ in range(2):  # the second is that of an upgrade
        made = cluster.run_init()
        assert made.returncode == 0, made.stdout + made.stderr
        assert "shown only once" not in made.stdout, "the given app key is used"
    with ExitStack() as stack:
        running = {process: start(cluster, process, stack) for process in PROCESSES}
        deadline = time.monotonic() + START_SECONDS
        while unready := {name: says for name in PROCESSES if (says := cluster.problem(name))}:
            assert time.monotonic() < deadline, unready
            time.sleep(0.5)
        listed = work(cluster)
        for name, value in cluster.env("init").items():
            monkeypatch.setenv(name, value)
        result = drain(cluster, listed)
        for started in running.values():
            started.send_signal(signal.SIGTERM)
        ends = {name: started.wait(END_SECONDS) for name, started in running.items()}

    assert result.problems == ()
    assert result.generations.states["trained"] > 0
    assert ends == dict.fromkeys(PROCESSES, 0)
    secrets = [value.encode() for value in cluster.secrets.values()]
    for path in (path for path in (cluster.folder / "homes").rglob("*") if path.is_file()):
        assert path.name != "millrace.toml"
        assert not any(secret in path.read_bytes() for secret in secrets), path
    kept = {process: {path.name for path in cluster.home(process).iterdir()} for process in PROCESSES}
    assert {"checkpoints"} <= kept["training"]
    assert {"replica"} <= kept["engine"]
    for process in ("feedback", "episodes", "rewards"):
        assert kept[process] == set(), process


def start(cluster: Cluster, process: str, stack: ExitStack) -> subprocess.Popen[bytes]:
    cluster.home(process).mkdir(parents=True, exist_ok=True)
    with (cluster.folder / f"{process}.log").open("wb") as log:
        started = subprocess.Popen(  # noqa: S603 our own script
            cluster.command(process), env=cluster.env(process), stdout=log, stderr=subprocess.STDOUT, cwd=cluster.folder
        )
    stack.callback(started.wait)
    stack.callback(started.kill)
    return started


def work(cluster: Cluster) -> Path:
    """Users send requests and signals until a trained version answered one of them; returns their own list."""
    listed = cluster.folder / "users.jsonl"
    listed.touch()
    for number in range(MOST_ROUNDS):
        out = cluster.folder / f"round-{number}.jsonl"
        command = [sys.executable, "-m", "examples.reservations.users", "--url", cluster.url("inference")]
        command += [
            "--feedback-url",
            cluster.url("feedback"),
            "--key",
            cluster.secrets[APP_KEY],
            "--model",
            cluster.policy,
        ]
        command += [
            "--seed",
            str(number),
            "--seconds",
            str(ROUND_SECONDS),
            "--users",
            "8",
            "--pace",
            "0.5",
            "--out",
            str(out),
        ]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603 our own module
        with listed.open("a") as whole:
            whole.write(out.read_text())
        if any(item.get("version") for item in read_clients(listed)):
            return listed
    logs = "\n".join((cluster.folder / f"{name}.log").read_text()[-1000:] for name in ("training", "release"))
    raise AssertionError(f"no trained version answered a user: {logs}")


def drain(cluster: Cluster, listed: Path) -> Audit:
    """Wait until nothing is pending."""
    settings = load_settings(cluster.home("init"))
    database, log = settings.database(), settings.event_log()
    deadline = time.monotonic() + DRAIN_SECONDS
    while (
        not (result := audit(database, log, read_clients(listed), settled=True)).balanced
        and time.monotonic() < deadline
    ):
        time.sleep(0.5)
    database.close()
    log.close()
    return result
