"""The figures of a demo: `summary.json`, and what is printed for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from commands.audit import Audit, print_audit
from contracts.assignments import LIVE
from contracts.ledger import learned_signals
from examples.demo import queries
from examples.demo.curves import (
    Bin,
    acceptance_curve,
    base_acceptance,
    exploring_acceptance,
    last_acceptance,
    realistic_delta,
)
from examples.demo.figures import (
    LONGEST_WAIT,
    DemoFigure,
    answers_until,
    exact_figure,
    median_figure,
    p_better,
    reached,
    share_figure,
    ungated,
    waits_for_gains,
)
from examples.demo.machine import tell_machine
from examples.demo.pace import FULL_PACE, tell_pace
from examples.reservations.evaluate import Evaluation
from examples.reservations.summary import freshness, percentile
from runtime.settings import Settings
from weights.stores.opening import open_weight_store
from weights.versions.manifest import Manifest


class DemoGoals(NamedTuple):
    """What a demo should reach. Seconds are stated at the full pace, and grow as much as a machine is slower."""

    accuracy: float
    """Of the last version on held-out cases."""
    accepted: float
    """Share of users' signals that accept, in the last fifth of their time. Spammers leave .967 at most."""
    answers_to_most: int | None
    """Until users accept MOST in a stretch of 15 seconds; None: no goal."""
    versions: int
    seconds: float
    gain_seconds: float = 20.0
    """From the gate's verdict that a version is better to the moment at which half of the users have it, in the median."""


MOST = 0.85
GOALS = DemoGoals(accuracy=0.97, accepted=0.94, answers_to_most=1500, versions=5, seconds=300.0)
LONGEST_SECONDS = 420.0
"""However slow the machine is."""
_BAR_WIDTH = 16


class DemoRun(NamedTuple):
    """What was measured while everything was running. `clients`: the users' own list."""

    base: Evaluation
    live: Evaluation
    audit: Audit
    clients: list[dict[str, Any]]
    learning_rate: float
    explore_share: float
    pace: dict[str, Any]
    ended: Mapping[str, Sequence[int]]
    """By process: the statuses with which it ended before it was told to."""
    unjudged: Sequence[int]
    """Versions that learned and have no verdict."""

    @property
    def seconds(self) -> float:
        """How long users worked."""
        times = [float(item["at"]) for item in self.clients if item["kind"] == "generation"]
        return max(times) - min(times) if times else 0.0


def summarise(settings: Settings, run: DemoRun) -> dict[str, Any]:
    """The measured values of summary.json, without seed and seconds."""
    policy, store, database = settings.policy, open_weight_store(settings), settings.database()
    manifests = {version: store.manifest(policy, version) for version in store.versions(policy)}
    with database.snapshot() as connection:
        learned = learned_signals(connection)
        accepted = queries.accepted_verdicts(connection, policy)
        gaps, pauses = queries.swaps(connection, policy, LIVE)
    database.close()
    curve = acceptance_curve(run.clients, [(at, accuracy) for _, at, accuracy in accepted])
    shipped = [version for version, _, _ in accepted if version]
    parents = {version: manifest.parent for version, manifest in manifests.items()}
    waits = freshness(run.clients, learned, parents, [(run.live.first_at, run.live.version)])
    deltas = [manifests[version] for version in shipped if manifests[version].kind == "step"]
    kinds = [item["kind"] for item in run.clients]
    seconds = [None if value is None else round(value, 1) for value in reached(curve, MOST)]
    return {
        "held_out_base": run.base.accuracy,
        "held_out_live": run.live.accuracy,
        "num_held_out": len(run.live.right),
        "p_better": p_better(run.base.right, run.live.right),
        "accepted_base": _rounded(base_acceptance(run.clients)),
        "accepted_last": _rounded(last_acceptance(run.clients, run.seconds)[0]),
        "num_last": last_acceptance(run.clients, run.seconds)[1],
        "seconds_until_85": seconds,
        "answers_until_85": [answers_until(run.clients, value) for value in seconds],
        "gain_waits": [round(wait, 1) for wait in waits_for_gains(run.clients, accepted)],
        "pace": run.pace,
        "answers_per_second": round(kinds.count("generation") / max(run.seconds, 1e-9), 1),
        "exploring": {
            name: _rounded(value)
            for name, value in exploring_acceptance(run.clients, run.explore_share, run.seconds).items()
        },
        "versions_shipped": len(shipped),
        "ended": dict(run.ended),
        "unjudged": list(run.unjudged),
        "ungated": ungated(run.clients, accepted),
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


def figures_of(summary: Mapping[str, Any], goals: DemoGoals) -> list[DemoFigure]:
    """What was measured, beside the goals."""
    slower = FULL_PACE / min(max(summary["answers_per_second"], 1e-9), FULL_PACE)
    found = [
        share_figure("held-out right", summary["held_out_live"], summary["num_held_out"], goals.accuracy),
        share_figure("accepted, last fifth", summary["accepted_last"], summary["num_last"], goals.accepted),
    ]
    if goals.answers_to_most is not None:
        named = f"{MOST:.0%} accepted after"
        goal_seconds = round(goals.answers_to_most / FULL_PACE * slower)
        found += [
            _until(named, summary["answers_until_85"], goals.answers_to_most, "answers"),
            _until(named, summary["seconds_until_85"], goal_seconds, "s"),
        ]
    within = round(min(goals.gain_seconds * slower, LONGEST_WAIT), 1)
    longest = max(goals.seconds, LONGEST_SECONDS)
    return [
        *found,
        median_figure("verdict to half of users", summary["gain_waits"], within, "s"),
        exact_figure("versions that passed", summary["versions_shipped"], goals.versions, at_least=True),
        exact_figure("all in all", summary["seconds"], round(min(goals.seconds * slower, longest)), unit="s"),
    ]


def _until(name: str, values: Sequence[float | None], goal: float, unit: str) -> DemoFigure:
    value, low, high = values
    return DemoFigure(name, value, low, high, goal, unit=unit)


def _describe(delta: Manifest, pause_seconds: float | None) -> dict[str, Any]:
    """The size of a version on its way, and how long its swap paused the live arm."""
    return {
        "version": delta.version,
        "density": _rounded(delta.density),
        "bytes": delta.payload_bytes,
        "ratio": _rounded(delta.ratio),
        "pause_ms": _milliseconds(pause_seconds),
    }


def print_summary(
    console: Console, summary: Mapping[str, Any], result: Audit, figures: Sequence[DemoFigure], broken: Sequence[str]
) -> None:
    """Print the curves, the audit, the figures beside their goals, and the promises that were broken."""
    print_curves(console, [Bin(**item) for item in summary["curve"]])
    print_audit(result)
    table = Table("", "measured", "95% interval", "goal", "")
    for figure in figures:
        table.add_row(*row_of(figure))
    if figures:
        console.print(table)
    console.print(_tell_rest(summary))
    console.print(tell_pace(summary["pace"]))
    console.print(tell_machine(summary["machine"]))
    for what in broken:
        console.print(f"[red]BROKEN: {what}")
    if not broken:
        console.print("Every promise was kept: nothing failed, the ledger balances, no version answered ungated.")


_WORDS = {"met": "[green]met", "within": "[yellow]in reach", "missed": "[yellow]missed"}
"""In reach: a part of the interval meets the goal, so chance may have decided."""


def row_of(figure: DemoFigure) -> tuple[str, ...]:
    """A figure as cells of the table."""
    value, low, high, goal = (_tell(number, figure.unit) for number in (*figure[1:4], figure.goal))
    interval = "" if figure.low == figure.high and figure.value is not None else f"{low} to {high}"
    return (
        figure.name + (f" ({figure.unit})" if figure.unit else ""),
        value,
        interval,
        f"{'≥' if figure.at_least else '≤'} {goal}",
        _WORDS[figure.verdict],
    )


def _tell(value: float | None, unit: str) -> str:
    if value is None:
        return "never"
    if unit or value > 1:
        return f"{value:,.0f}"
    return f"{value:.1%}"


def _tell_rest(summary: Mapping[str, Any]) -> str:
    """Figures without a goal."""
    delta = summary["delta_at_realistic_rate"]
    elsewhere = (
        "" if delta is None else f"; {delta['ratio']:.0f} times at a learning rate of {delta['learning_rate']:g}"
    )
    fresh = "no signal was served" if summary["freshness_p50_s"] is None else (
        f"from a signal to an answer by a version that learned from it: {summary['freshness_p50_s']:.0f} s (p50), "
        f"{summary['freshness_p95_s']:.0f} s (p95)"
    )  # fmt: skip
    pause = summary["swap_pause_p99_ms"]
    return (
        f"The base was right on {summary['held_out_base']:.1%} of the held-out cases. {summary['answers']:,} answers, "
        f"{summary['signals']:,} signals; {fresh}. Versions are {summary['delta_bytes_ratio'] or 1:.1f} times smaller than full "
        f"copies{elsewhere}. Swaps paused users for {'-' if pause is None else f'{max(pause, 0.0):.1f}'} ms (p99)."
    )


def print_curves(console: Console, curve: Sequence[Bin]) -> None:
    """Print what users accepted, beside what the gate measured of the version that they had, as bars over time."""
    is_shared = any(item.own is not None for item in curve)
    by = ("own model",) if is_shared else ()
    table = Table(
        "until", "users accept", "", "the gate says", "", *by, title="What users felt, and what the gate said"
    )
    for item in curve:
        says = ("", "not judged") if item.gate is None else (f"{item.gate:4.0%}", _bar(item.gate))
        own = (f"{item.own or 0.0:4.0%}",) if is_shared else ()
        table.add_row(f"{item.seconds:.0f} s", f"{item.accepted:4.0%}", _bar(item.accepted), *says, *own)
    console.print(table)


def _bar(share: float) -> str:
    return "█" * round(_BAR_WIDTH * share)


def _mean(values: list[float]) -> float | None:
    return _rounded(sum(values) / len(values) if values else None)


def _milliseconds(seconds: float | None) -> float | None:
    return _rounded(None if seconds is None else 1000 * seconds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
