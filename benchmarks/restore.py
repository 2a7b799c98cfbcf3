"""A home is backed up while users work, killed, moved away and restored: what is left, what is lost, and does the ledger say so?

    python -m benchmarks.restore              on the servers of MILLRACE_DATABASE, MILLRACE_KAFKA, MILLRACE_REDIS and MILLRACE_WEIGHTS, if set
    python -m benchmarks.restore --lose-log   the topics are deleted too

Every process of `millrace up` runs, the trainer too, and the users of the reservations example work all the time. After the backup they go on;
then everything is killed (-9). `millrace restore` makes a new home, a new database and a new prefix in the bucket. It is started, users come
back, and the audit reads everything. Exits with 1 unless each problem of the audit is a signal of the time between backup and kill.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks import drill
from contracts.keys import new_text
from runtime import schema
from runtime.backup.archive import read_header
from runtime.database import create_database
from runtime.settings import load_settings
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.processes import end_process, free_port

_PATIENCE_SECONDS, _UNJOINED_SECONDS = 300.0, 15.0
_TITLE = re.compile(r"^UNEXPLAINED (.*)$", re.MULTILINE)
_PENDING = re.compile(r"^UNEXPLAINED (\w+): \d+ still pending$", re.MULTILINE)
_UNRECEIVED = re.compile(r"^signal (\S+) of \S+ has a state, and was never received$")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--before", type=float, default=60.0, help="seconds of work before the backup")
    parser.add_argument("--after", type=float, default=20.0, help="seconds from the backup to the kill")
    parser.add_argument("--lose-log", action="store_true", help="delete Kafka's topics before the restore")
    parser.add_argument("--quick", action="store_true", help="write no file")
    options = parser.parse_args(arguments)
    if options.lose_log and "MILLRACE_KAFKA" not in os.environ:
        parser.error("--lose-log needs MILLRACE_KAFKA: an embedded log is in the backup")
    name = "restore-lost-log" if options.lose_log else "restore"
    return drill.conduct(name, lambda folder, stack: _Drill(folder, options, stack).run(), quick=options.quick)


class _Drill:
    def __init__(self, folder: Path, options: argparse.Namespace, stack: ExitStack) -> None:
        self._folder, self._options, self._stack = folder, options, stack
        self._port, self._key = free_port(), new_text("app")
        self._lists: list[Path] = []
        self._database, self._weights = os.environ.get("MILLRACE_DATABASE"), os.environ.get("MILLRACE_WEIGHTS")
        self._kafka, self._redis = os.environ.get("MILLRACE_KAFKA"), os.environ.get("MILLRACE_REDIS")

    def run(self) -> dict[str, Any]:
        options, old, new, file = self._options, self._folder / "old", self._folder / "new", self._folder / "backup"
        places = self._places()
        servers = ["--kafka", self._kafka] * bool(self._kafka) + ["--redis", self._redis] * bool(self._redis)
        running = self._up(old, [*places, *(str(part) for part in servers)])
        crowd = self._crowd(old, 1)
        time.sleep(options.before)
        said = drill.millrace("backup", "--home", str(old), "--to", str(file))
        time.sleep(options.after)
        _kill(running)
        crowd.kill()
        crowd.wait()
        old.rename(self._folder / "gone")
        print(f"{said}killed", flush=True)
        if options.lose_log:
            _delete_topics(str(self._kafka), self._folder / "gone")
        places = self._places()
        restored = drill.millrace("restore", str(file), "--home", str(new), *places)
        print(restored, flush=True)
        accepted = drill.millrace("log", "accept-loss", "--home", str(new), "--yes") if options.lose_log else ""
        held = drill.audit(new).splitlines()[:20]
        running = self._up(new, [])
        crowd = self._crowd(new, 2)
        time.sleep(options.after)
        crowd.terminate()
        crowd.wait()
        seconds, words = self._settle(new)
        running.send_signal(signal.SIGTERM)
        status = running.wait(_PATIENCE_SECONDS)
        return self._verdict(words, read_header(file, schema.newest(), schema.release()).taken_at) | {
            "on": {"database": places[1].partition(":")[0] if places else "sqlite", "kafka": bool(self._kafka)},
            "log_lost": options.lose_log,
            "users": options.users,
            "backup": said.strip().splitlines(),
            "restore": restored.strip().splitlines()[0],
            "accept_loss": accepted.strip().splitlines()[-3:],
            "held_after_restore": held,
            "seconds_until_settled": round(seconds, 1),
            "status_of_up": status,
        }

    def _places(self) -> list[str]:
        """A new database and a new prefix, on servers that have them."""
        name = f"restore_{secrets.token_hex(4)}"
        found = ["--database", create_database(self._database, name)] if self._database else []
        return [*found, "--weights", f"{self._weights}-{name}"] if self._weights else found

    def _up(self, home: Path, places: list[str]) -> subprocess.Popen[bytes]:
        output = self._stack.enter_context((self._folder / f"{home.name}.log").open("wb"))
        product = ["--policy", str(EXAMPLE / "base"), "--task", str(EXAMPLE / "task.toml"), "--name", "reservations"]
        process = subprocess.Popen(  # noqa: S603 our own program
            [
                sys.executable,
                str(ROOT / "millrace.py"),
                "up",
                *product,
                "--home",
                str(home),
                "--port",
                str(self._port),
                *places,
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "MILLRACE_APP_KEY": self._key},
            start_new_session=True,
        )
        self._stack.callback(end_process, process)
        began = time.monotonic()
        while not drill.is_ready(self._port):
            if process.poll() is not None or time.monotonic() - began > _PATIENCE_SECONDS:
                raise SystemExit(f"up is not ready: {(self._folder / f'{home.name}.log').read_text()[-3000:]}")
            time.sleep(0.5)
        return process

    def _crowd(self, home: Path, seed: int) -> subprocess.Popen[bytes]:
        self._lists.append(self._folder / f"users-{seed}.jsonl")
        return drill.start_users(self._stack, home, self._key, self._lists[-1], users=self._options.users, seed=seed)

    def _settle(self, home: Path) -> tuple[float, str]:
        """Wait until nothing is pending; the words of the last audit."""
        began, both = time.monotonic(), self._folder / "users.jsonl"
        both.write_text("".join(path.read_text() for path in self._lists))
        while True:
            words = drill.audit(home, "--settled", "--clients", str(both))
            # A signal whose answer was in the lost log alone waits for it for a while, as any other.
            pending = _PENDING.findall(words)
            if pending in ([], ["signals"] * self._options.lose_log) or time.monotonic() - began > _PATIENCE_SECONDS:
                return time.monotonic() - began, words
            time.sleep(2.0)

    def _verdict(self, words: str, taken_at: float) -> dict[str, Any]:
        """Each problem must be about a signal or an answer of the time after the backup, or about a record that only the lost log had."""
        listed = [json.loads(line) for path in self._lists for line in path.read_text().splitlines()]
        failed = [item["what"] for item in listed if item["kind"] == "failed"]
        between = [item for item in listed if item["at"] >= taken_at]
        if self._options.lose_log:  # and the join may have been so far behind
            between = [item for item in listed if item["at"] >= taken_at - _UNJOINED_SECONDS]
        after = {item.get("id") or item.get("key") for item in between if item["kind"] in {"generation", "signal"}}
        problems = _TITLE.findall(words)
        named = Counter[str]()
        others = []
        for problem in problems:
            key = problem.split()[1].rstrip(":") if len(problem.split()) > 1 else ""
            if key in after:
                named[
                    "received and not restored"
                    if _UNRECEIVED.match(problem)
                    else re.sub(r"^\w+ \S+ ?", "", problem)[:60]
                ] += 1
            elif self._options.lose_log and problem.startswith("signals:") and problem.endswith("still pending"):
                named["signals that wait for an answer that is lost"] += int(problem.split()[1])
            else:
                others.append(problem)
        return {
            "users_noted": dict(Counter(item["kind"] for item in listed)),
            "failed": failed[:3],
            "audit": words.splitlines()[:20],
            "problems_after_the_backup": dict(named),
            "other_problems": others[:20],
            "balanced": "NOT balanced" not in words,
            "good": not others,
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all its children, at once: as when the power fails."""
    parent = psutil.Process(process.pid)
    parent.suspend()  # it would start again what died
    mine = [*parent.children(recursive=True), parent]
    for one in mine:
        one.kill()
    psutil.wait_procs(mine)


def _delete_topics(servers: str, home: Path) -> None:
    from kafka import KafkaAdminClient  # noqa: PLC0415 only where there is a Kafka

    prefix = load_settings(home).prefix
    admin = KafkaAdminClient(bootstrap_servers=servers)
    mine = [name for name in admin.list_topics() if name.startswith(prefix)]
    admin.delete_topics(mine)
    admin.close()
    print(f"deleted {len(mine)} topics", flush=True)


if __name__ == "__main__":
    sys.exit(main())
