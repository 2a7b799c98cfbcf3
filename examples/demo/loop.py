"""One run of a demo's loop: the base is evaluated, users work at a pace that this machine can learn from, everything drains.

In: a running home. Out: what was measured. Waits for: the users to finish, then for the loop to drain.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from commands.audit import Audit, audit, read_clients
from commands.home import Home
from commands.queries import verdicts
from commands.supervisor import Supervisor
from contracts import assignments
from contracts.assignments import LIVE
from contracts.errors import MillraceError
from contracts.ledger import PENDING, generation_counts, signal_counts, trained_versions
from contracts.tasks.loading import load_tasks
from examples.demo import queries
from examples.demo.machine import MachineUse
from examples.demo.pace import DemoLoad, PaceMaker
from examples.demo.product import DemoProduct
from examples.demo.summary import LONGEST_SECONDS, DemoRun
from examples.pace import write_pace
from runtime.database import Database
from weights.stores.opening import open_weight_store

DRAIN_SECONDS = 180.0
"""At most; a quiet machine needs twenty."""
_END_SECONDS, _SHORTEST_SECONDS = 40.0, 120.0
"""What draining and the summary take on a slow machine, so that users leave in time; and what users get at least."""
_REPORT_SECONDS = 5.0
_LATE_SECONDS = 8.0
"""From the end of a sample's window to the moment at which the trainer may have it, on a machine that keeps up."""
_RECENT_SIGNALS = 100
_ROOT = Path(__file__).parent.parent.parent


class DemoLoop:
    """See the module docstring.

    Args:
        product: what runs.
        home: its home; every process is ready.
        supervisor: of the processes.
        seed: of the users.
        started: monotonic time at which the demo began.
    """

    def __init__(
        self, product: DemoProduct, home: Home, supervisor: Supervisor, console: Console, *, seed: int, started: float
    ) -> None:
        self._product, self._home, self._supervisor, self._console = product, home, supervisor, console
        self._seed, self._started = seed, started
        self._settings, self._policy = home.settings, home.settings.policy
        self._listed = self._settings.home / "users.jsonl"
        self._pace_file = self._settings.home / "pace"
        self._task = next(iter(load_tasks(self._settings.tasks).values()))
        self._unjudged: dict[int, float] = {}
        self._answers = 0

    def run(self, learning_rate: float, machine: MachineUse) -> DemoRun:
        """Evaluate the base policy, let the users work, drain the loop, and evaluate the live version."""
        ends = {name: len(child.ends) for name, child in self._supervisor.children.items()}
        base = self._product.evaluate(self._settings.web_url, self._home.operator_key, self._policy, 0)
        pace = PaceMaker(base.answers_per_second, self._product.num_sentinels)
        self._console.print(
            f"base policy: {base.accuracy:.1%} of the held-out cases are right; the engine alone gives "
            f"{base.answers_per_second:.0f} answers a second, so users begin with {pace.rate:.0f}"
        )
        # The last versions are judged and evaluated as the base was.
        end = _END_SECONDS + 2 * len(base.right) / base.answers_per_second
        users = self._start_users(pace.rate, LONGEST_SECONDS - end)
        stop = threading.Event()
        watcher = threading.Thread(target=self._supervisor.watch, args=(stop,), daemon=True)
        watcher.start()
        try:
            self._follow(users, pace, machine)
            self._console.print("users have stopped; windows close, and the trainer takes the remaining samples")
            result = self._drain()
        finally:
            users.terminate()
            users.wait()
            stop.set()
            watcher.join()
        live = self._product.evaluate(self._settings.web_url, self._home.operator_key, self._policy, self._live())
        explore = self._task.sampling.explore
        share = 0.0 if explore is None else explore.share
        ended = {name: child.ends[ends[name] :] for name, child in self._supervisor.children.items()}
        ended = {name: statuses for name, statuses in ended.items() if statuses}
        with self._database() as database:
            waiting = unjudged(database, self._policy)
        return DemoRun(
            base, live, result, read_clients(self._listed), learning_rate, share, pace.figures(), ended, waiting
        )

    def _start_users(self, rate: float, until: float) -> subprocess.Popen[bytes]:
        settings, product = self._settings, self._product
        left = until - (time.monotonic() - self._started)
        seconds = min(product.seconds, max(left, _SHORTEST_SECONDS))
        self._set_pace(rate)
        command = [sys.executable, "-m", f"examples.{product.folder.name}.users", "--url", settings.web_url]
        command += ["--feedback-url", settings.feedback_url, "--key", str(self._home.app_key)]
        command += ["--model", settings.policy, "--seed", str(self._seed), "--seconds", str(seconds)]
        command += ["--users", str(product.num_users), "--pace-file", str(self._pace_file)]
        command += ["--visits", str(product.visits), "--out", str(self._listed)]
        self._listed.touch()
        with (settings.home / "logs" / "users.log").open("wb") as output:
            return subprocess.Popen(  # noqa: S603 our own interpreter and module
                command, stdout=output, stderr=subprocess.STDOUT, cwd=_ROOT
            )

    def _set_pace(self, rate: float) -> None:
        product = self._product
        write_pace(self._pace_file, product.num_users * product.answers_per_visit / rate)

    def _follow(self, users: subprocess.Popen[bytes], pace: PaceMaker, machine: MachineUse) -> None:
        """Report and adapt the pace until the users leave."""
        began = looked = time.monotonic()
        while users.poll() is None:
            time.sleep(_REPORT_SECONDS)
            now = time.monotonic()
            machine.look()
            self._report_and_adapt(pace, now - began, now - looked)
            looked = now
        if users.returncode != 0:
            raise MillraceError(why_users_ended(users.returncode, self._settings.home / "logs" / "users.log"))

    def _report_and_adapt(self, pace: PaceMaker, seconds: float, since_last: float) -> None:
        clients = read_clients(self._listed)
        signals = [item for item in clients if item["kind"] == "signal"]
        recent = signals[-_RECENT_SIGNALS:]
        accepted = sum(item["positive"] for item in recent) / len(recent) if recent else 0.0
        answers = sum(item["kind"] == "generation" for item in clients)
        failed = sum(item["kind"] == "failed" for item in clients)
        with self._database() as database, database.snapshot() as connection:
            over = time.time() - self._task.window_seconds - _LATE_SECONDS
            untrained = queries.num_untrained(connection, over) / self._product.training["publish_samples"]
            judged = verdicts(connection, self._policy).keys()
            pending = generation_counts(connection).states.get(PENDING, 0)
            live = assignments.read(connection, self._policy)[LIVE].version or 0
        load = DemoLoad((answers - self._answers) / since_last, untrained, self._unjudged_seconds(judged))
        self._answers = answers
        self._set_pace(pace.look(load))
        self._console.print(
            f"{seconds:4.0f} s  live v{live:<3} {answers:5} answers ({load.answered:4.1f}/s) {len(signals):5} signals  "
            f"accepted {accepted:4.0%}  pending {pending:4}  failed {failed}"
        )

    def _unjudged_seconds(self, judged: Collection[int]) -> float:
        """Age of the oldest version that waits for its verdict, as far as it was seen here."""
        now, waiting = time.monotonic(), set(open_weight_store(self._settings).versions(self._policy)) - set(judged)
        self._unjudged = {version: self._unjudged.get(version, now) for version in waiting}
        return now - min(self._unjudged.values(), default=now)

    def _drain(self) -> Audit:
        """Wait until nothing is pending, and every version that learned has its verdict."""
        log = self._settings.event_log()
        deadline = time.monotonic() + DRAIN_SECONDS
        with self._database() as database:
            while time.monotonic() < deadline and not is_settled(database, self._policy):
                time.sleep(0.5)
            result = audit(database, log, read_clients(self._listed), settled=True)
            while time.monotonic() < deadline and not result.balanced:
                time.sleep(0.5)
                result = audit(database, log, read_clients(self._listed), settled=True)
        log.close()
        return result

    def _live(self) -> int:
        with self._database() as database, database.snapshot() as connection:
            return assignments.read(connection, self._policy)[LIVE].version or 0

    @contextmanager
    def _database(self) -> Iterator[Database]:
        database = self._settings.database()
        try:
            yield database
        finally:
            database.close()


def why_users_ended(status: int, log: Path) -> str:
    """For an error: their status, and the last line that they printed."""
    said = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "they printed nothing")
    return f"the users ended with status {status}: {last}; see {log}"


def is_settled(database: Database, policy: str) -> bool:
    """True if nothing is pending, and `all_judged`."""
    with database.snapshot() as connection:
        pending = [counts(connection).states.get(PENDING, 0) for counts in (generation_counts, signal_counts)]
    return not any(pending) and all_judged(database, policy)


def all_judged(database: Database, policy: str) -> bool:
    """True if every version with a trained sample has its verdict. Then the live version no longer changes by itself."""
    return not unjudged(database, policy)


def unjudged(database: Database, policy: str) -> list[int]:
    """Versions with a trained sample and no verdict."""
    with database.snapshot() as connection:
        return sorted(set(trained_versions(connection).values()) - verdicts(connection, policy).keys())
