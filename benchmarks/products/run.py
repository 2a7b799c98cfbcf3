"""Runs one product on this machine: all of Millrace's processes, its users, and what they felt.

In: a product. Out: figures. Waits for: the users to finish, then for the loop to drain.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.products.figures import felt, points_below
from benchmarks.products.held_out import NUM_HELD_OUT, accuracy_of
from benchmarks.products.judge import serving, write_task
from benchmarks.products.questions import ExtraProduct, stream
from commands.audit import Audit, audit, read_clients
from commands.engines import choose_engine
from commands.home import Home, claimed, prepare_home
from commands.policy_check import check_policy
from commands.up import listen, new_settings, running
from contracts import assignments
from contracts.assignments import LIVE
from contracts.errors import MillraceError
from contracts.tasks.loading import load_tasks
from examples.demo import queries
from examples.demo.command import DEMO_TRAINING, NUM_SENTINELS, NUM_USERS
from examples.demo.loop import DRAIN_SECONDS, all_judged, why_users_ended
from examples.demo.servers import servers_of
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from runtime.settings import make_section
from tests.worlds.paths import ROOT

_REPORT_SECONDS = 10.0
PACE_SECONDS = 1.0


class RunSize(NamedTuple):
    """How long the users work, and how much is asked beside them; `training` changes the demo's settings."""

    seconds: float
    num_held_out: int = NUM_HELD_OUT
    num_sentinels: int = NUM_SENTINELS
    training: Mapping[str, Any] = MappingProxyType({})


def run_product(product: ExtraProduct, base: Path, home: Path, seed: int, size: RunSize) -> dict[str, Any]:
    """Start everything in a new folder, let the users work, and measure."""
    with ExitStack() as stack:
        stack.enter_context(claimed(home))
        url = None if product.rubric is None else stack.enter_context(serving(product.rubric))
        task_file = write_task(product, home, url)
        servers, engine = servers_of("embedded"), choose_engine("millrace", None, 2)
        sockets = listen(0, split=servers.is_shared, num_engines=engine.num_own)
        settings = new_settings(
            home, sockets, name=product.name, base=base, tasks=[task_file], device="cpu", servers=servers
        )
        sections = {
            "training": make_section("[training]", TrainingSettings, **{**DEMO_TRAINING, **size.training}),
            "release": ReleaseSettings(
                sentinels=_write_sentinels(product, home / "sentinels.jsonl", size.num_sentinels)
            ),
            **engine.sections,
        }
        ready = prepare_home(settings, sections, check_policy)
        supervisor = stack.enter_context(running(ready, sockets, servers.replicas, engine))
        ended = Event()
        watcher = Thread(target=supervisor.watch, args=(ended,), daemon=True)
        watcher.start()
        try:
            return _measure(product, ready, seed, size)
        finally:
            ended.set()
            watcher.join()


def _measure(product: ExtraProduct, home: Home, seed: int, size: RunSize) -> dict[str, Any]:
    settings, seconds = home.settings, size.seconds
    task = next(iter(load_tasks(settings.tasks).values()))
    temperature, explore = task.sampling.temperature, task.sampling.explore

    def right(version: int, at: float) -> float:
        return accuracy_of(product, settings.web_url, home.operator_key, version, at, number=size.num_held_out)

    before = {"held_out_base": right(0, 0.0), "sampled_base": right(0, temperature)}
    print(f"{product.name}: base {json.dumps(before)}")
    listed = settings.home / "users.jsonl"
    _let_users_work(product, home, seed, seconds, listed)
    result, live, verdicts = _drain(home, listed)
    figures = felt(read_clients(listed), verdicts, seconds, 0.0 if explore is None else explore.share)
    held_out = right(live, 0.0)
    return {
        "seed": seed,
        "seconds": seconds,
        **before,
        "held_out_live": held_out,
        "sampled_live": right(live, temperature),
        "points_below_held_out": points_below(held_out, figures["accepted_last"]),
        "points_below_held_out_honest": points_below(held_out, figures["accepted_last_honest"]),
        "versions_shipped": len(verdicts),
        "live_version": live,
        "ledger_balanced": result.balanced,
        "problems": list(result.problems[:5]),
        "generations": result.generations.states,
        **figures,
    }


def _let_users_work(product: ExtraProduct, home: Home, seed: int, seconds: float, listed: Path) -> None:
    if home.app_key is None:
        raise MillraceError(f"{home.settings.home} was used before; choose a new folder")
    command = [sys.executable, "-m", "benchmarks.products.users", product.name, "--url", home.settings.web_url]
    command += ["--key", home.app_key, "--seed", str(seed), "--seconds", str(seconds), "--users", str(NUM_USERS)]
    command += ["--pace", str(PACE_SECONDS), "--out", str(listed)]
    listed.touch()
    log, started = home.settings.home / "logs" / "users.log", time.monotonic()
    with log.open("wb") as output:
        users = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)  # noqa: S603 our own module
    try:
        while True:
            try:
                users.wait(_REPORT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                _report(product, listed, time.monotonic() - started)
    finally:
        users.terminate()
        users.wait()
    if users.returncode != 0:
        raise MillraceError(why_users_ended(users.returncode, log))


def _report(product: ExtraProduct, listed: Path, seconds: float) -> None:
    clients = read_clients(listed)
    recent = [item for item in clients if item["kind"] == "signal"][-100:]
    accepted = sum(item["positive"] for item in recent) / len(recent) if recent else 0.0
    newest = max((item["version"] or 0 for item in clients if item["kind"] == "generation"), default=0)
    print(f"{product.name}: {seconds:4.0f} s  v{newest}  {len(clients)} lines  accepted {accepted:4.0%}", flush=True)


def _drain(home: Home, listed: Path) -> tuple[Audit, int, list[tuple[float, float]]]:
    """Wait until nothing is pending and each version has its verdict. The audit, the live version, the accepted verdicts."""
    settings, log, clients = home.settings, home.settings.event_log(), read_clients(listed)
    database, deadline = settings.database(), time.monotonic() + DRAIN_SECONDS
    try:
        result = audit(database, log, clients, settled=True)
        while time.monotonic() < deadline and not (result.balanced and all_judged(database, settings.policy)):
            time.sleep(0.5)
            result = audit(database, log, clients, settled=True)
        with database.snapshot() as connection:
            live = assignments.read(connection, settings.policy)[LIVE].version or 0
            return result, live, queries.accepted_accuracies(connection, settings.policy)
    finally:
        database.close()
        log.close()


def _write_sentinels(product: ExtraProduct, path: Path, number: int) -> Path:
    lines = []
    for question in islice(stream(product, "sentinel", 0), number):
        item: dict[str, Any] = {"messages": [{"role": "user", "content": question.text}]}
        lines.append(json.dumps(item if question.reference is None else item | {"reference": question.reference}))
    path.write_text("\n".join(lines) + "\n")
    return path
