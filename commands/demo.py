"""`millrace demo`: the whole loop on this machine, from a base policy that is half right to one that is not.

In: a seed. Out: a table and <home>/summary.json. Waits: for the users to finish, for the loop to drain.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from commands import queries
from commands.audit import Audit, audit, print_audit, read_clients
from commands.home import Home, claimed, prepare_home
from commands.servers import Servers, servers_of
from commands.supervisor import Supervisor
from commands.up import greet, listen, new_settings, running, training_settings
from contracts import assignments
from contracts.assignments import LIVE
from contracts.errors import MillraceError
from contracts.ledger import PENDING, generation_counts, learned_signals, trained_versions
from examples.reservations.evaluate import Evaluation, evaluate
from examples.reservations.sentences import requests
from examples.reservations.summary import accept_rates, freshness, percentile
from pipelines.release.settings import ReleaseSettings
from runtime.database import Database
from weights.stores.opening import open_weight_store
from weights.versions.manifest import Manifest

NUM_SENTINELS = 200
NUM_USERS = 16
PACE_SECONDS = 1.0
DRAIN_SECONDS = 90.0
SMOKE_SECONDS = 30.0
PRODUCT = Path(__file__).parent.parent / "examples" / "reservations"
_REPORT_SECONDS = 5.0

console = Console(highlight=False, soft_wrap=True)


class Goals(NamedTuple):
    """What a run promises besides: no failed request, and a balanced ledger."""

    accuracy: float
    versions: int
    seconds: float


GOALS = Goals(accuracy=0.90, versions=5, seconds=300.0)
SMOKE_GOALS = Goals(accuracy=0.0, versions=1, seconds=600.0)


class Run(NamedTuple):
    """What was measured while everything was up."""

    base: Evaluation
    live: Evaluation
    audit: Audit
    clients: list[dict[str, Any]]


def run_demo(
    *,
    seed: int,
    seconds: float,
    home: Path | None = None,
    keep: bool = False,
    device: str = "cpu",
    learning_rate: float | None = None,
    profile: str = "embedded",
    smoke: bool = False,
) -> int:
    """Run it; 0 if every goal was met. `smoke`: half a minute that need not learn much, only lose nothing."""
    started = time.monotonic()
    folder = (home or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    with claimed(folder):
        return _run_claimed(
            folder,
            started,
            servers_of(profile),
            seed=seed,
            seconds=SMOKE_SECONDS if smoke else seconds,
            keep=keep,
            device=device,
            learning_rate=learning_rate,
            goals=SMOKE_GOALS if smoke else GOALS,
        )


def _run_claimed(
    folder: Path,
    started: float,
    servers: Servers,
    *,
    seed: int,
    seconds: float,
    keep: bool,
    device: str,
    learning_rate: float | None,
    goals: Goals,
) -> int:
    sockets = listen(0, split=servers.is_shared)
    settings = new_settings(
        folder,
        sockets,
        name="reservations",
        base=PRODUCT / "base",
        tasks=[PRODUCT / "task.toml"],
        device=device,
        servers=servers,
    )
    sentinels = write_sentinels(folder / "sentinels.jsonl")
    training = training_settings(learning_rate)
    ready = prepare_home(settings, {"training": training, "release": ReleaseSettings(sentinels=sentinels)})
    with running(ready, sockets, servers.replicas) as supervisor:
        greet(ready)
        run = _loop(ready, supervisor, seed, seconds)
        elapsed = time.monotonic() - started
        summary = {"seed": seed, "seconds": round(elapsed, 1), **summarise(ready, run)}
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        _print_summary(summary, run.audit, folder, goals)
        if keep:
            console.print("Everything stays up; Ctrl-C ends it.")
            _wait_for_interrupt(supervisor)
    return 0 if not missed_goals(summary, goals) else 1


def run_seeds(seeds: Iterable[int]) -> int:
    """Run the demo for each seed; 0 if the worst met every goal."""
    summaries = []
    for seed in seeds:
        console.rule(f"seed {seed}")
        folder = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
        run_demo(seed=seed, seconds=180.0, home=folder)
        summaries.append(json.loads((folder / "summary.json").read_text()))
    worst = min(summaries, key=lambda summary: float(summary["held_out_live"]))
    table = Table("seed", "seconds", "held_out_base", "held_out_live", "versions", "failed", "balanced")
    names = (
        "seed",
        "seconds",
        "held_out_base",
        "held_out_live",
        "versions_shipped",
        "failed_requests",
        "ledger_balanced",
    )
    for summary in summaries:
        table.add_row(*(str(summary[name]) for name in names))
    console.print(table)
    console.print(f"worst: seed {worst['seed']}, held_out_live {worst['held_out_live']}")
    return 0 if not any(missed_goals(summary) for summary in summaries) else 1


def missed_goals(summary: dict[str, Any], goals: Goals = GOALS) -> list[str]:
    """What a run promised and did not do."""
    promises = {
        f"held_out_live at least {goals.accuracy}": summary["held_out_live"] >= goals.accuracy,
        f"at least {goals.versions} versions": summary["versions_shipped"] >= goals.versions,
        "no failed request": summary["failed_requests"] == 0,
        "ledger balanced": summary["ledger_balanced"],
        f"within {goals.seconds:.0f} s": summary["seconds"] <= goals.seconds,
    }
    return [name for name, met in promises.items() if not met]


def _loop(home: Home, supervisor: Supervisor, seed: int, seconds: float) -> Run:
    settings = home.settings
    base = evaluate(settings.web_url, home.operator_key, settings.policy, 0)
    console.print(f"base policy: {base.accuracy:.1%} of the held-out sentences are right")
    listed = settings.home / "users.jsonl"
    users = _start_users(home, seed, seconds, listed)
    stop = threading.Event()
    watcher = threading.Thread(target=supervisor.watch, args=(stop,), daemon=True)
    watcher.start()
    try:
        started = time.monotonic()
        while users.poll() is None:
            time.sleep(_REPORT_SECONDS)
            _report(home, listed, time.monotonic() - started)
        if users.returncode != 0:
            raise MillraceError(
                f"the users ended with status {users.returncode}; see {settings.home / 'logs/users.log'}"
            )
        console.print("users have stopped; windows close, the trainer takes the remainder")
        result = _drain(home, listed)
    finally:
        users.terminate()
        users.wait()
        stop.set()
        watcher.join()
    live = evaluate(settings.web_url, home.operator_key, settings.policy, _live(home))
    return Run(base, live, result, read_clients(listed))


def _drain(home: Home, listed: Path) -> Audit:
    """Until nothing is pending and all that was learned is in versions that were judged."""
    database, log = home.settings.database(), home.settings.event_log()
    deadline = time.monotonic() + DRAIN_SECONDS
    result = audit(database, log, read_clients(listed), settled=True)
    while time.monotonic() < deadline and not (result.balanced and all_judged(database, home.settings.policy)):
        time.sleep(0.5)
        result = audit(database, log, read_clients(listed), settled=True)
    log.close()
    database.close()
    return result


def all_judged(database: Database, policy: str) -> bool:
    """True if every version that holds a trained sample has its verdict: what is live will not change by itself."""
    with database.snapshot() as connection:
        return set(trained_versions(connection).values()) <= queries.verdicts(connection, policy).keys()


def _start_users(home: Home, seed: int, seconds: float, listed: Path) -> subprocess.Popen[bytes]:
    if home.app_key is None:
        raise MillraceError(f"{home.settings.home} was used before; run the demo in a new folder")
    command = [sys.executable, "-m", "examples.reservations.users", "--url", home.settings.web_url]
    command += ["--feedback-url", home.settings.feedback_url]
    command += ["--key", home.app_key, "--model", home.settings.policy, "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--users", str(NUM_USERS), "--pace", str(PACE_SECONDS), "--out", str(listed)]
    listed.touch()
    with (home.settings.home / "logs" / "users.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603 our own interpreter and module
            command, stdout=output, stderr=subprocess.STDOUT, cwd=PRODUCT.parent.parent
        )


def write_sentinels(path: Path, count: int = NUM_SENTINELS) -> Path:
    """The gate's own sentences, disjoint from those of users and from the held-out ones."""
    lines = [
        json.dumps(
            {
                "messages": [{"role": "user", "content": request.sentence}],
                "reference": request.booking.json(),
            }
        )
        for request in itertools.islice(requests("sentinel", 0), count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _live(home: Home) -> int:
    database = home.settings.database()
    with database.snapshot() as connection:
        version = assignments.read(connection, home.settings.policy)[LIVE].version
    database.close()
    return version or 0


def _report(home: Home, listed: Path, seconds: float) -> None:
    clients = read_clients(listed)
    said = [item for item in clients if item["kind"] == "signal"]
    recent = said[-100:]
    accepted = sum(item["positive"] for item in recent) / len(recent) if recent else 0.0
    answers = sum(item["kind"] == "generation" for item in clients)
    failed = sum(item["kind"] == "failed" for item in clients)
    database = home.settings.database()
    with database.snapshot() as connection:
        pending = generation_counts(connection).states.get(PENDING, 0)
    database.close()
    console.print(
        f"{seconds:4.0f} s  live v{_live(home):<3} {answers:5} answers {len(said):5} signals  "
        f"accepted {accepted:4.0%}  pending {pending:4}  failed {failed}"
    )


def summarise(home: Home, run: Run) -> dict[str, Any]:
    """The figures of summary.json, beside seed and seconds."""
    settings = home.settings
    store = open_weight_store(settings)
    manifests = {version: store.manifest(settings.policy, version) for version in store.versions(settings.policy)}
    database = settings.database()
    with database.snapshot() as connection:
        learned = learned_signals(connection)
        shipped = [v for v, verdict in queries.verdicts(connection, settings.policy).items() if v and verdict.accepted]
        gaps = queries.swap_gaps(connection, settings.policy, LIVE)
        pauses = queries.swap_pauses(connection, settings.policy, LIVE)
    database.close()
    parents = {version: manifest.parent for version, manifest in manifests.items()}
    waits = freshness(run.clients, learned, parents, [(run.live.first_at, run.live.version)])
    first, last = accept_rates(run.clients)
    deltas = [manifests[version] for version in shipped if manifests[version].kind == "step"]
    return {
        "held_out_base": run.base.accuracy,
        "held_out_live": run.live.accuracy,
        "accept_rate_first": _rounded(first),
        "accept_rate_last": _rounded(last),
        "versions_shipped": len(shipped),
        "signals_served": len(waits),
        "freshness_p50_s": _rounded(percentile(waits, 0.50)),
        "freshness_p95_s": _rounded(percentile(waits, 0.95)),
        "delta_bytes_ratio": _rounded(_mean([_ratio(manifest) for manifest in deltas])),
        "delta_density": _rounded(_mean([manifest.density for manifest in deltas])),
        "swap_pause_p99_ms": _rounded(None if not gaps else 1000 * (percentile(gaps, 0.99) or 0.0)),
        "failed_requests": sum(item["kind"] == "failed" for item in run.clients),
        "ledger_balanced": run.audit.balanced,
        "answers": sum(item["kind"] == "generation" for item in run.clients),
        "signals": sum(item["kind"] == "signal" for item in run.clients),
        "in_doubt": len(run.audit.in_doubt),
        "live_version": run.live.version,
        "generations": run.audit.generations.states,
        "versions": [_describe(manifest, pauses.get(manifest.version)) for manifest in deltas],
    }


def _describe(manifest: Manifest, pause_seconds: float | None) -> dict[str, Any]:
    """How a version travelled, and how long it held up the live arm."""
    return {
        "version": manifest.version,
        "density": _rounded(manifest.density),
        "bytes": manifest.payload_bytes,
        "ratio": _rounded(manifest.ratio),
        "pause_ms": _rounded(None if pause_seconds is None else 1000 * pause_seconds),
    }


def _print_summary(summary: dict[str, Any], result: Audit, folder: Path, goals: Goals) -> None:
    table = Table("", "")
    for name, value in summary.items():
        table.add_row(name, json.dumps(value))
    console.print(table)
    print_audit(result)
    console.print(f"written to {folder / 'summary.json'}")
    for goal in missed_goals(summary, goals):
        console.print(f"[red]missed: {goal}")


def _wait_for_interrupt(supervisor: Supervisor) -> None:
    try:
        supervisor.watch(threading.Event())
    except KeyboardInterrupt:
        console.print("ending")


def _ratio(manifest: Manifest) -> float:
    return manifest.full_bytes / max(1, manifest.payload_bytes)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
