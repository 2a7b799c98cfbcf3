"""A home of a former release is brought to this one while users work: what fails, what is lost, and does the ledger say so?

    python -m benchmarks.upgrade --from COMMIT     embedded, or on the servers of MILLRACE_DATABASE, MILLRACE_KAFKA, MILLRACE_REDIS, MILLRACE_WEIGHTS

Follows docs/operating.md, Upgrade, step by step: both releases run beside each other for a while, workers of this one with engine, inference
and feedback of the former one. The former code comes from git and runs in this environment. Users of the reservations example work all the
time; the audit reads everything at the end. Exits with 1 unless everything was explained, versions went live after the upgrade, processes
of this release ended with 0, and users failed only while the one process that served them was replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks import drill
from contracts.assignments import LIVE, read
from contracts.keys import new_text
from runtime.database import create_database
from runtime.operations import OPERATIONS_ADDRESS
from runtime.operator_key import APP_KEY
from runtime.settings import load_settings
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.processes import end_process, free_port

_PATIENCE_SECONDS, _END_SECONDS, _AROUND_SECONDS = 300.0, 90.0, 10.0
_WORKERS = ("release", "training", "rewards", "episodes")
"""In the order in which they are stopped; started the other way round."""
_PENDING = re.compile(r"still pending$", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upgrade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="former", required=True, metavar="COMMIT", help="the former release")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="of work between two steps")
    parser.add_argument("--quick", action="store_true", help="write no file")
    options = parser.parse_args(arguments)
    where = "servers" if "MILLRACE_KAFKA" in os.environ else "embedded"
    name = f"upgrade-{where}-from-{options.former}"
    return drill.conduct(name, lambda folder, stack: _Drill(folder, options, stack).run(), quick=options.quick)


class _Drill:
    def __init__(self, folder: Path, options: argparse.Namespace, stack: ExitStack) -> None:
        self._folder, self._options, self._stack = folder, options, stack
        self._home, self._users = folder / "home", folder / "users.jsonl"
        self._environment = os.environ | {APP_KEY: new_text("app")}
        self._former = self._checkout(options.former)
        self._is_shared = "MILLRACE_KAFKA" in os.environ
        self._servers = ("inference", "feedback", "dashboard") if self._is_shared else ("web",)
        names = ("engine", *self._servers, *_WORKERS)
        self._ports = {name: free_port() for name in (*names, *(f"operations of {name}" for name in names))}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._replaced: list[tuple[float, float]] = []
        self._statuses: dict[str, list[int]] = {}

    def run(self) -> dict[str, Any]:
        init = self._init()
        printed = re.search(r"app key +(mr-\S+)", self._millrace(self._former, *init))
        key = printed[1] if printed else self._environment[APP_KEY]  # older releases make their own key
        for process in ("engine", *reversed(_WORKERS), *self._servers):
            self._start(process, self._former)
        crowd = drill.start_users(self._stack, self._home, key, self._users, users=self._options.users, seed=1)
        time.sleep(self._options.seconds)
        before = self._live()
        migrates = _migrations(self._former) != _migrations(ROOT)
        refused = self._refused() if migrates else None
        for process in _WORKERS:
            self._end(process)
        time.sleep(self._options.seconds / 3)  # the log waits
        self._millrace(ROOT, *init)
        for process in reversed(_WORKERS):
            self._start(process, ROOT)
        time.sleep(self._options.seconds)
        beside = self._live()
        # "one replica at a time. Replace engine and inference right after each other."
        for process in ("engine", *self._servers):
            began = time.time()
            self._end(process)
            self._start(process, ROOT)
            self._replaced.append((began, time.time()))
        time.sleep(self._options.seconds)
        crowd.send_signal(signal.SIGTERM)
        crowd.wait(_END_SECONDS)
        seconds, words = self._settle()
        live = self._live()
        older = drill.ask(*init, release=self._former) if migrates else None
        for process in ("release", "training", *self._servers, "engine", "rewards", "episodes"):
            self._end(process)
        listed = [json.loads(line) for line in self._users.read_text().splitlines()]
        failed = [item for item in listed if item["kind"] == "failed"]
        others = [
            item
            for item in failed
            if not any(began <= item["at"] <= ended + _AROUND_SECONDS for began, ended in self._replaced)
        ]
        balanced = "UNEXPLAINED" not in words and "NOT balanced" not in words
        ends = {codes[-1] for codes in self._statuses.values()}  # how the former release ends is not ours to mend
        right = (refused is None or (refused[0] == 2 and "schema" in refused[1])) and (older is None or older[0] != 0)  # noqa: PLR2004
        return {
            "from": self._options.former,
            "on": {
                "database": "postgresql" if "MILLRACE_DATABASE" in os.environ else "sqlite",
                "kafka": self._is_shared,
            },
            "migrates": migrates,
            "new_worker_before_init": refused and {"status": refused[0], "says": refused[1].strip().splitlines()[-1]},
            "init_of_the_former_release_afterwards": older
            and {"status": older[0], "says": older[1].strip().splitlines()[-1]},
            "live_version": {"former release": before, "both beside each other": beside, "this release": live},
            "seconds_of_replacing": [round(ended - began, 1) for began, ended in self._replaced],
            "users_noted": dict(Counter(item["kind"] for item in listed)),
            "failed_at_other_times": [item["what"] for item in others][:10],
            "statuses": self._statuses,
            "seconds_until_settled": round(seconds, 1),
            "audit": words.splitlines()[:20],
            "good": balanced and not others and ends == {0} and right and live > before,
        }

    def _checkout(self, commit: str) -> Path:
        """The files of a commit. Raises CalledProcessError if git has none of that name."""
        folder = self._folder / "former"
        folder.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=-1, check=True)  # noqa: S603, S607 git
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)  # noqa: S603, S607 tar
        return folder

    def _init(self) -> list[str]:
        """The command that both releases are given, with a new database and a new prefix on servers that have them."""
        name = f"upgrade_{secrets.token_hex(4)}"
        (self._folder / "product").mkdir()
        for file in ("task.toml", "sentinels.jsonl"):
            shutil.copy(EXAMPLE / file, self._folder / "product")
        product = self._folder / "product"
        found = ["init", "--home", str(self._home), "--policy", str(EXAMPLE / "base"), "--name", "reservations"]
        found += ["--task", str(product / "task.toml"), "--sentinels", str(product / "sentinels.jsonl")]
        serves = dict.fromkeys(("inference", "feedback", "dashboard"), "web") | {name: name for name in self._servers}
        for option, process in {**serves, "engine": "engine"}.items():
            if option != "web":
                found += [f"--{option}", f"127.0.0.1:{self._ports[process]}"]
        if self._is_shared:
            found += ["--kafka", os.environ["MILLRACE_KAFKA"]]
        if "MILLRACE_REDIS" in os.environ:
            found += ["--redis", os.environ["MILLRACE_REDIS"]]
        if "MILLRACE_DATABASE" in os.environ:
            found += ["--database", create_database(os.environ["MILLRACE_DATABASE"], name)]
        if "MILLRACE_WEIGHTS" in os.environ:
            found += ["--weights", f"{os.environ['MILLRACE_WEIGHTS']}-{name}"]
        return found

    def _millrace(self, release: Path, *arguments: str) -> str:
        return drill.millrace(*arguments, release=release, environment=self._of(release))

    def _of(self, release: Path) -> dict[str, str]:
        return {**self._environment, "PYTHONPATH": str(release)}

    def _command(self, process: str, release: Path) -> list[str]:
        return [sys.executable, str(release / "millrace.py"), process, "--home", str(self._home)]

    def _start(self, process: str, release: Path) -> None:
        """Start a process of a release and wait until it is ready."""
        port = self._ports[f"operations of {process}"]
        path = self._folder / f"{process}-{'former' if release == self._former else 'this'}.log"
        with path.open("wb") as log:
            started = subprocess.Popen(  # noqa: S603 our own program
                self._command(process, release), cwd=release, stdout=log, stderr=log,
                env=self._of(release) | {OPERATIONS_ADDRESS: f"127.0.0.1:{port}"},
            )  # fmt: skip
        self._stack.callback(end_process, started)
        self._running[process] = started
        began = time.monotonic()
        while not drill.is_ready(port):
            if started.poll() is not None or time.monotonic() - began > _PATIENCE_SECONDS:
                raise SystemExit(f"{process} is not ready: {path.read_text()[-3000:]}")
            time.sleep(0.25)
        print(f"{process} of {'the former' if release == self._former else 'this'} release is ready", flush=True)

    def _end(self, process: str) -> None:
        self._running[process].send_signal(signal.SIGTERM)
        self._statuses.setdefault(process, []).append(self._running[process].wait(_END_SECONDS))

    def _refused(self) -> tuple[int, str]:
        """A worker of this release, before its `init` migrated the tables."""
        return drill.ask("episodes", "--home", str(self._home), environment=self._of(ROOT))

    def _live(self) -> int:
        settings = load_settings(self._home)
        with closing(settings.database()) as database, database.transaction() as connection:
            arm = read(connection, settings.policy).get(LIVE)
        return -1 if arm is None or arm.version is None else arm.version

    def _settle(self) -> tuple[float, str]:
        """Wait until nothing is pending; the words of the last audit."""
        began = time.monotonic()
        while True:
            words = drill.audit(self._home, "--settled", "--clients", str(self._users))
            if not _PENDING.search(words) or time.monotonic() - began > _PATIENCE_SECONDS:
                return time.monotonic() - began, words
            time.sleep(2.0)


def _migrations(release: Path) -> set[str]:
    return {path.name for path in (release / "migrations" / "versions").glob("*.py")}


if __name__ == "__main__":
    sys.exit(main())
