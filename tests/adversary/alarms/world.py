"""What `tests.adversary.alarms` breaks: `millrace up` with the demo's product and its users, and Debian's Prometheus that watches it.

In: a folder, two free ports. Out: the alarms that Prometheus says are firing. Waits for: both to be ready.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import yaml
from sqlalchemy import Connection

from contracts.errors import InvalidSettings
from runtime.settings import load_settings
from tests.adversary.alarms import hurry
from tests.adversary.alarms.reward_server import SlowRewardServer
from tests.worlds.paths import BASE, EXAMPLE, ROOT
from tests.worlds.processes import free_port
from tests.yaml_files import read_yaml

STORE_BYTES = 256 * 2**20
GRADED = "graded"
_GRADED = """name = "graded"
window_seconds = 1
consent = "train"

[sampling]
owner = "caller"

[signals.thumbs]
type = "label"
labels = {{ up = 1.0, down = 0.0 }}

[[verifiers]]
name = "server"
kind = "http"
role = "component"

[verifiers.config]
url = "http://127.0.0.1:{port}/"
retries = 0
"""
_READY_SECONDS = 180.0
_SCRAPE_SECONDS = 10.0


class WatchedHome:
    """A started home. `other_targets`: more targets for Prometheus, read again every few seconds."""

    def __init__(self, folder: Path, scrape_seconds: float, options: Sequence[str] = ()) -> None:
        self.home, self.port, self._prometheus_port = folder / "home", free_port(), free_port()
        self._folder = folder
        self._scrape, self._options = scrape_seconds, options
        self.other_targets = folder / "other.json"
        self.targets = folder / "targets.json"
        """The processes of the home, as Prometheus finds them: a copy, so that one of them can be taken out."""
        self.grader = SlowRewardServer()
        self._crowds: list[subprocess.Popen[bytes]] = []
        self.app_key = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the home, its Prometheus and, once, enough users for a few versions."""
        with ExitStack() as stack:
            stack.enter_context(self._store_of_its_own())
            stack.callback(self.grader.close)
            home = stack.enter_context(self._process("home", self._up(), signal.SIGINT))
            self._supervisor = psutil.Process(home.pid)
            until(
                lambda: "operator key" in self._said("home") or home.poll() is not None,
                _READY_SECONDS,
                "the home is not ready",
            )
            if home.poll() is not None:
                raise InvalidSettings(f"the home ended: {self._said('home')}")
            [self.app_key] = re.findall(r"app key\s+(\S+)", self._said("home"))
            self.find_processes()
            stack.enter_context(self._process("prometheus", self._prometheus(), signal.SIGTERM))
            until(lambda: self.alarms() is not None, _READY_SECONDS, "Prometheus does not answer")
            yield

    def find_processes(self) -> None:
        """Let Prometheus find every process of the home."""
        self.targets.write_text((self.home / "targets.json").read_text())

    @contextmanager
    def database(self) -> Iterator[Connection]:
        """A transaction on the database of the home."""
        database = load_settings(self.home).database()
        try:
            with database.transaction() as connection:
                yield connection
        finally:
            database.close()

    def is_unlocked(self) -> bool:
        """False while a process is writing to the embedded database."""
        with closing(sqlite3.connect(self.home / "millrace.db", timeout=0.2, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.execute("ROLLBACK")
        return True

    def users(self, seconds: float) -> None:
        """Let the demo's users work."""
        feedback = load_settings(self.home).feedback_url  # on Kafka a process of its own
        where = [f"--url=http://127.0.0.1:{self.port}", f"--feedback-url={feedback}"]
        arguments = [*where, f"--key={self.app_key}", f"--seconds={seconds}"]
        command = [sys.executable, "-m", "examples.reservations.users", "--model=base", *arguments, "--users=8"]
        with self._process("users", [*command, f"--out={self._folder / 'users.jsonl'}"], signal.SIGTERM) as process:
            self._crowds.append(process)
            process.wait(seconds + _READY_SECONDS)

    def end_users(self) -> None:
        """Let all users go home."""
        while self._crowds:
            self._crowds.pop().terminate()

    def alarms(self, *, hurried: bool = False) -> dict[tuple[str, str], str] | None:
        """Every firing alarm: its name and process to its summary; None while Prometheus does not answer. `hurried`: of the copies."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._prometheus_port}/api/v1/alerts", timeout=_SCRAPE_SECONDS)
            answer.raise_for_status()
        except httpx.HTTPError:
            return None
        alerts = answer.json()["data"]["alerts"]
        firing = [one for one in alerts if one["state"] == "firing" and ("hurried" in one["labels"]) is hurried]
        return {
            (one["labels"]["alertname"], one["labels"].get("process", "")): one["annotations"]["summary"]
            for one in firing
        }

    def child(self, process: str) -> psutil.Process | None:
        """A process of the home; None while it is not running."""
        return next(iter(self.children(process)), None)

    def children(self, process: str) -> list[psutil.Process]:
        """All replicas of a process of the home that run."""
        found = []
        for child in self._supervisor.children():
            with suppress(psutil.Error):
                if f"millrace.py {process} " in " ".join(child.cmdline()) + " ":
                    found.append(child)
        return found

    def _up(self) -> list[str]:
        lines = (EXAMPLE / "sentinels.jsonl").read_text().splitlines()
        hopeless = [json.dumps(json.loads(line) | {"reference": "{}"}) for line in lines]
        (self._folder / "hopeless.jsonl").write_text("\n".join(hopeless))
        sentinels, task = EXAMPLE / "sentinels.jsonl", EXAMPLE / "task.toml"
        start = [
            sys.executable,
            str(ROOT / "millrace.py"),
            "up",
            f"--policy={BASE}",
            f"--task={task}",
            f"--task={self._second_task()}",
        ]
        return [
            *start,
            f"--home={self.home}",
            f"--port={self.port}",
            f"--sentinels={sentinels}",
            *(part.format(folder=self._folder, kafka=os.environ.get("MILLRACE_KAFKA")) for part in self._options),
        ]

    def _second_task(self) -> Path:
        """A task that the reward server of this world grades; only records that a break appends are about it."""
        path = self._folder / "graded.toml"
        path.write_text(_GRADED.format(port=self.grader.port))
        return path

    def _prometheus(self) -> list[str]:
        """deploy/prometheus.yml, with the targets of this home."""
        settings = read_yaml(ROOT / "deploy" / "prometheus.yml")
        settings["global"]["scrape_interval"] = f"{self._scrape:g}s"
        settings["rule_files"] = [str(ROOT / "deploy" / "alerts.yml"), str(self._hurried())]
        [home] = [job for job in settings["scrape_configs"] if job["job_name"] == "millrace-up"]
        home["file_sd_configs"] = [{"files": [str(self.targets), str(self.other_targets)], "refresh_interval": "5s"}]
        settings["scrape_configs"] = [home]
        path = self._folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(settings))
        listen = f"--web.listen-address=127.0.0.1:{self._prometheus_port}"
        return ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={self._folder / 'tsdb'}", listen]

    def _hurried(self) -> Path:
        path = self._folder / "hurried.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "hurried", "interval": "1s", "rules": hurry.rules()}]}))
        return path

    @contextmanager
    def _store_of_its_own(self) -> Iterator[None]:
        """The weight store on a small disk of its own, which only root can mount."""
        weights = self.home / "weights"
        weights.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={STORE_BYTES}", "millrace-alarms", str(weights))
        try:
            yield
        finally:
            run("umount", "--lazy", str(weights))

    @contextmanager
    def _process(self, name: str, command: Sequence[str], end: signal.Signals) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / f"{name}.txt").open("wb") as output:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)  # noqa: S603 ours
        try:
            yield process
        finally:
            process.send_signal(end)
            try:
                process.wait(_READY_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.txt").read_text(errors="replace")


def until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait until it is so. Raises InvalidSettings after `seconds`."""
    ends = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends:
            raise InvalidSettings(f"{otherwise} after {seconds:.0f} s")
        time.sleep(0.5)


def run(*command: str) -> None:
    """Run a program of the system. Raises CalledProcessError."""
    subprocess.run(command, check=True)  # noqa: S603 our own command
