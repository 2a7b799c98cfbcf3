"""Durable acknowledgements per second of POST /v1/feedback, against servers that take feedback elsewhere.

    python -m benchmarks.feedback            embedded; also Kafka and PostgreSQL, when `make services` runs and
                                             runs/services/env was sourced
    python -m benchmarks.feedback --peers    Phoenix and MLflow beside them, in environments of their own

The server is the process `feedback` as users run it: SQLite with synchronous FULL, or PostgreSQL with fsync. The relay to
the log runs along and shares the processors, as does the load generator. Rounds interleave all arms.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from benchmarks.feedback import peers as feedback_peers
from benchmarks.report import print_table, summarise, write_report
from tests.worlds.feedback import FeedbackWorld, running, servers
from tests.worlds.servers.load import Load, LoadPlan, run_load

CONNECTIONS = (1, 8, 32)
_MULTIPLE_CHOICES = 300


class FeedbackArm(NamedTuple):
    """Something to send to; `world` if it is ours."""

    name: str
    plan: LoadPlan
    world: FeedbackWorld | None


Figures = dict[str, dict[str, list[float]]]


def main() -> None:
    """Measure, print, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.feedback", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement, after one of warming up")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds")
    parser.add_argument("--peers", action="store_true", help=f"made in {feedback_peers.ENVIRONMENTS} if missing")
    options = parser.parse_args()
    rounds, seconds = (1, 2.0) if options.quick else (options.rounds, options.seconds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-feedback-")))
        versions = feedback_peers.install() if options.peers else {}
        figures, loads = measure(_arms(stack, folder, peers=options.peers), rounds, seconds)
    summary = {arm: {name: summarise(samples) for name, samples in of.items()} for arm, of in figures.items()}
    show(summary)
    print(f"load of the machine, before each round: {loads}")
    if not options.quick:
        print(write_report("feedback", {"peers": versions, "loads": loads, "seconds": seconds, "arms": summary}))


def measure(arms: list[FeedbackArm], rounds: int, seconds: float) -> tuple[Figures, list[float]]:
    """Samples by arm and figure, one for each round; and the machine's load before each round."""
    figures: Figures = {arm.name: {} for arm in arms}
    loads = []
    for _ in range(rounds):
        loads.append(round(os.getloadavg()[0], 1))
        for connections in CONNECTIONS:
            for arm in arms:
                for name, value in _measure(arm, connections, seconds).items():
                    figures[arm.name].setdefault(f"{name} at {connections}", []).append(value)
    return figures, loads


def show(summary: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Medians, and the spread of the most important figures."""
    rows = []
    for connections in CONNECTIONS:
        for arm, figures in summary.items():
            acks, p50, p99 = (figures[f"{name} at {connections}"] for name in ("acks/s", "p50 ms", "p99 ms"))
            cost = figures.get(f"server processor ms per ack at {connections}")
            spread = f"{acks['min']:,.0f} to {acks['max']:,.0f}"
            cells = [f"{acks['median']:,.0f}", spread, p50["median"], p99["median"]]
            rows.append([connections, arm, *cells, f"{cost['median']:.2f}" if cost else "-"])
    columns = ["connections", "arm", "acks/s", "spread", "p50 ms", "p99 ms", "processor ms per ack"]
    print_table("feedback, closed loop: medians", columns, rows)


def _arms(stack: ExitStack, folder: Path, *, peers: bool) -> list[FeedbackArm]:
    def place(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    worlds = {"millrace embedded": stack.enter_context(running(place("embedded")))}
    if (found := servers()) is not None:
        worlds["millrace kafka+postgresql"] = stack.enter_context(running(place("services"), *found))
    arms = [FeedbackArm(name, world.plan(), world) for name, world in worlds.items()]
    if peers:
        plans = stack.enter_context(feedback_peers.phoenix(place("phoenix")))
        plans |= stack.enter_context(feedback_peers.mlflow(place("mlflow")))
        arms += [FeedbackArm(name, plan, None) for name, plan in plans.items()]
    return arms


def _measure(arm: FeedbackArm, connections: int, seconds: float) -> dict[str, float]:
    """One measurement. Raises RuntimeError if a request was refused, or something acknowledged is not stored."""
    plan = msgspec.structs.replace(arm.plan, connections=connections, seconds=seconds)
    if arm.world is None:
        return _figures_of(arm, run_load(plan))
    num_before, processor_before = arm.world.num_stored(), _processor_seconds(arm.world)
    load = run_load(plan)
    figures = _figures_of(arm, load)
    figures["relay lag"] = float(arm.world.num_waiting())
    figures["drain s"] = arm.world.drain()
    num_stored = arm.world.num_stored() - num_before
    if num_stored < load.num_good:
        raise RuntimeError(f"{arm.name} acknowledged {load.num_good} and stored {num_stored}")
    figures["server processor ms per ack"] = 1000 * (_processor_seconds(arm.world) - processor_before) / num_stored
    return figures


def _figures_of(arm: FeedbackArm, load: Load) -> dict[str, float]:
    if refused := {status: num for status, num in load.statuses.items() if not 0 < status < _MULTIPLE_CHOICES}:
        raise RuntimeError(f"{arm.name} refused requests: {refused}")
    return {"acks/s": load.per_second, "p50 ms": load.percentile(0.5), "p99 ms": load.percentile(0.99)}


def _processor_seconds(world: FeedbackWorld) -> float:
    times = psutil.Process(world.processes[0].pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
