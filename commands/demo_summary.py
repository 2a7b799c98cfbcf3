"""The figures of a demo: `summary.json`, the goals, and the table that is printed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from commands import queries
from commands.audit import Audit, print_audit
from contracts.assignments import LIVE
from contracts.ledger import learned_signals
from examples.reservations.evaluate import Evaluation
from examples.reservations.summary import accept_rates, freshness, percentile
from runtime.settings import Settings
from weights.stores.opening import open_weight_store
from weights.versions.manifest import Manifest


class DemoGoals(NamedTuple):
    """What a demo must reach. Every demo also needs a balanced ledger, and no request may fail."""

    accuracy: float
    versions: int
    seconds: float


GOALS = DemoGoals(accuracy=0.90, versions=5, seconds=300.0)
SMOKE_GOALS = DemoGoals(accuracy=0.0, versions=1, seconds=600.0)
VLLM_SECONDS = 480.0
"""The limit with vLLM, which is still the users' three minutes: its servers import for a minute, and cost more per token on CPU."""


class DemoRun(NamedTuple):
    """What was measured while everything was running. `clients`: the users' own list."""

    base: Evaluation
    live: Evaluation
    audit: Audit
    clients: list[dict[str, Any]]


def missed_goals(summary: dict[str, Any], goals: DemoGoals = GOALS) -> list[str]:
    """The goals that a demo did not reach."""
    met = {
        f"held_out_live at least {goals.accuracy}": summary["held_out_live"] >= goals.accuracy,
        f"at least {goals.versions} versions": summary["versions_shipped"] >= goals.versions,
        "no failed request": summary["failed_requests"] == 0,
        "ledger balanced": summary["ledger_balanced"],
        f"within {goals.seconds:.0f} s": summary["seconds"] <= goals.seconds,
        "engines compute with the published weights": summary.get("weights_exact") is not False,
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
    database.close()
    parents = {version: manifest.parent for version, manifest in manifests.items()}
    waits = freshness(run.clients, learned, parents, [(run.live.first_at, run.live.version)])
    first, last = accept_rates(run.clients)
    deltas = [manifests[version] for version in shipped if manifests[version].kind == "step"]
    kinds = [item["kind"] for item in run.clients]
    return {
        "held_out_base": run.base.accuracy,
        "held_out_live": run.live.accuracy,
        "accept_rate_first": _rounded(first),
        "accept_rate_last": _rounded(last),
        "versions_shipped": len(shipped),
        "signals_served": len(waits),
        "freshness_p50_s": _rounded(percentile(waits, 0.50)),
        "freshness_p95_s": _rounded(percentile(waits, 0.95)),
        "delta_bytes_ratio": _mean([delta.ratio for delta in deltas]),
        "delta_density": _mean([delta.density for delta in deltas]),
        "swap_pause_p99_ms": _milliseconds(percentile(gaps, 0.99)),
        "failed_requests": kinds.count("failed"),
        "ledger_balanced": run.audit.balanced,
        "answers": kinds.count("generation"),
        "signals": kinds.count("signal"),
        "in_doubt": len(run.audit.in_doubt),
        "live_version": run.live.version,
        "generations": run.audit.generations.states,
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
        table.add_row(name, json.dumps(value))
    console.print(table)
    print_audit(result)
    for goal in missed_goals(summary, goals):
        console.print(f"[red]missed: {goal}")


def _mean(values: list[float]) -> float | None:
    return _rounded(sum(values) / len(values) if values else None)


def _milliseconds(seconds: float | None) -> float | None:
    return _rounded(None if seconds is None else 1000 * seconds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
