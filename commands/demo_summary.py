"""The figures of a demo: `summary.json`, the goals, and the table that is printed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from commands import queries
from commands.audit import Audit, print_audit
from commands.demo_curves import (
    acceptance_curve,
    base_acceptance,
    exploring_acceptance,
    last_acceptance,
    realistic_delta,
    seconds_until,
)
from contracts.assignments import LIVE
from contracts.ledger import learned_signals
from examples.reservations.evaluate import Evaluation
from examples.reservations.summary import freshness, percentile
from runtime.settings import Settings
from weights.stores.opening import open_weight_store
from weights.versions.manifest import Manifest


class DemoGoals(NamedTuple):
    """What a demo must reach. Every demo also needs a balanced ledger, and no request may fail."""

    accuracy: float
    """Of the last version on held-out sentences."""
    accepted: float
    """Share of users' signals that accept, in the last fifth of their time. Spammers leave .967 at most."""
    seconds_to_most: float
    """Until users accept MOST in a stretch of 15 seconds."""
    versions: int
    seconds: float


MOST = 0.85
GOALS = DemoGoals(accuracy=0.97, accepted=0.94, seconds_to_most=90.0, versions=5, seconds=300.0)
SMOKE_GOALS = DemoGoals(accuracy=0.0, accepted=0.0, seconds_to_most=math.inf, versions=1, seconds=600.0)
_BAR_WIDTH = 16
VLLM_SECONDS = 480.0
"""The limit with vLLM, which is still the users' three minutes: its servers import for a minute, and cost more per token on CPU."""


class DemoRun(NamedTuple):
    """What was measured while everything was running. `clients`: the users' own list."""

    base: Evaluation
    live: Evaluation
    audit: Audit
    clients: list[dict[str, Any]]
    seconds: float
    """How long the users worked."""
    learning_rate: float
    explore_share: float


def missed_goals(summary: dict[str, Any], goals: DemoGoals = GOALS) -> list[str]:
    """The goals that a demo did not reach."""
    until_most = summary["seconds_until_85"]
    met = {
        f"held_out_live at least {goals.accuracy}": summary["held_out_live"] >= goals.accuracy,
        f"users accept at least {goals.accepted} in the last fifth": (summary["accepted_last"] or 0.0)
        >= goals.accepted,
        f"users accept {MOST} within {goals.seconds_to_most:.0f} s": (math.inf if until_most is None else until_most)
        <= goals.seconds_to_most,
        f"at least {goals.versions} versions": summary["versions_shipped"] >= goals.versions,
        "no failed request": summary["failed_requests"] == 0,
        "ledger balanced": summary["ledger_balanced"],
        f"within {goals.seconds:.0f} s": summary["seconds"] <= goals.seconds,
        "engines compute with the published weights": summary.get("weights_exact") is not False,
        "sessions keep their tokens": not summary.get("breaks_unexplained"),
    }
    return [goal for goal, is_met in met.items() if not is_met]


def summarise(settings: Settings, run: DemoRun) -> dict[str, Any]:
    """The figures of summary.json, without seed and seconds."""
    policy, store, database = settings.policy, open_weight_store(settings), settings.database()
    manifests = {version: store.manifest(policy, version) for version in store.versions(policy)}
    with database.snapshot() as connection:
        learned = learned_signals(connection)
        shipped = [v for v, verdict in queries.verdicts(connection, policy).items() if v and verdict.accepted]
        gaps, pauses = queries.swaps(connection, policy, LIVE)
        curve = acceptance_curve(run.clients, queries.accepted_accuracies(connection, policy))
    database.close()
    parents = {version: manifest.parent for version, manifest in manifests.items()}
    waits = freshness(run.clients, learned, parents, [(run.live.first_at, run.live.version)])
    deltas = [manifests[version] for version in shipped if manifests[version].kind == "step"]
    kinds = [item["kind"] for item in run.clients]
    return {
        "held_out_base": run.base.accuracy,
        "held_out_live": run.live.accuracy,
        "accepted_base": _rounded(base_acceptance(run.clients)),
        "accepted_last": _rounded(last_acceptance(run.clients, run.seconds)),
        "seconds_until_85": seconds_until(curve, MOST),
        "exploring": {
            name: _rounded(value)
            for name, value in exploring_acceptance(run.clients, run.explore_share, run.seconds).items()
        },
        "versions_shipped": len(shipped),
        "signals_served": len(waits),
        "freshness_p50_s": _rounded(percentile(waits, 0.50)),
        "freshness_p95_s": _rounded(percentile(waits, 0.95)),
        "delta_bytes_ratio": _mean([delta.ratio for delta in deltas]),
        "delta_density": _mean([delta.density for delta in deltas]),
        "delta_at_realistic_rate": realistic_delta(settings.checkpoints, run.learning_rate),
        "swap_pause_p99_ms": _milliseconds(percentile(gaps, 0.99)),
        "failed_requests": kinds.count("failed"),
        "ledger_balanced": run.audit.balanced,
        "answers": kinds.count("generation"),
        "signals": kinds.count("signal"),
        "in_doubt": len(run.audit.in_doubt),
        "live_version": run.live.version,
        "generations": run.audit.generations.states,
        "curve": [item._asdict() for item in curve],
        "versions": [_describe(delta, pauses.get(delta.version)) for delta in deltas],
    }


def _describe(delta: Manifest, pause_seconds: float | None) -> dict[str, Any]:
    """The size of a version on its way, and how long its swap paused the live arm."""
    return {
        "version": delta.version,
        "density": _rounded(delta.density),
        "bytes": delta.payload_bytes,
        "ratio": _rounded(delta.ratio),
        "pause_ms": _milliseconds(pause_seconds),
    }


def print_summary(console: Console, summary: dict[str, Any], result: Audit, goals: DemoGoals) -> None:
    """Print the figures, the audit, and the goals that were missed."""
    table = Table("", "")
    for name, value in summary.items():
        if name != "curve":
            table.add_row(name, json.dumps(value))
    console.print(table)
    print_curves(console, summary["curve"])
    print_audit(result)
    for goal in missed_goals(summary, goals):
        console.print(f"[red]missed: {goal}")


def print_curves(console: Console, curve: Sequence[Mapping[str, Any]]) -> None:
    """Print what users accepted, beside what the gate measured of the version that they had, as bars over time."""
    table = Table("until", "users accept", "", "the gate says", "", title="What users felt, and what the gate said")
    for item in curve:
        gate = item["gate"]
        says = ("", "not judged") if gate is None else (f"{gate:4.0%}", _bar(gate))
        table.add_row(f"{item['seconds']:.0f} s", f"{item['accepted']:4.0%}", _bar(item["accepted"]), *says)
    console.print(table)


def _bar(share: float) -> str:
    return "█" * round(_BAR_WIDTH * share)


def _mean(values: list[float]) -> float | None:
    return _rounded(sum(values) / len(values) if values else None)


def _milliseconds(seconds: float | None) -> float | None:
    return _rounded(None if seconds is None else 1000 * seconds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
