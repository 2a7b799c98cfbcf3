"""What `benchmarks.deltas` shows a person. In: its figures. Out: tables, and the peers that could not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.report import print_table

_LARGE = 100
_SPEEDS = (
    ("encode", "encode_gb_s", 1.5, 3.0),
    ("apply", "apply_gb_s", 1.5, 3.0),
    ("apply, base root computed anew,", "apply_with_base_root_gb_s", None, None),
)
_PEER_FIGURES = ("ratio", "encode_gb_s", "decode_gb_s")


class DeltaGoal(NamedTuple):
    """A figure, and what it should be."""

    measure: str
    reached: float | None
    must: float | None = None
    stretch: float | None = None
    is_limit: bool = False
    """Less is better."""
    spread: Mapping[str, float] | None = None


def show(figures: Mapping[str, Any]) -> None:
    """Goals first, then each run beside the peers, the smallest first."""
    runs = {f"synthetic {label}": run for label, run in figures["synthetic"].items()}
    if figures["trace"] is None:
        print(figures["of"])
    else:
        runs = {"trace": figures["trace"], **runs}
    goals = [*_trace_goals(figures), *_synthetic_goals(figures), *_cost_goals(runs)]
    title = f"{figures['codec']}; times are medians of {figures['rounds']}, GB of bf16 per second of one core"
    print_table(title, ("", "must", "stretch", "reached", "met"), [_row(goal) for goal in goals])
    for name, run in runs.items():
        ours = (f"millrace, {figures['codec']}, hashes included", {**run, "decode_gb_s": run["apply_gb_s"]})
        ranked = sorted((ours, *run["peers"].items()), key=lambda item: -item[1]["ratio"])
        rows = [(peer, *(_shown(found[key]) for key in _PEER_FIGURES)) for peer, found in ranked]
        title = f"{name}, last step: {run['density']:.2%} of {run['num_weights']:,} weights changed"
        print_table(title, ("", "full / payload", "encode GB/CPU s", "decode GB/CPU s"), rows)
    for name, instruction in figures["peers_skipped"].items():
        print(f"skipped: {name}: {instruction}")


def _trace_goals(figures: Mapping[str, Any]) -> list[DeltaGoal]:
    goals = [
        DeltaGoal("trace, last step, full / payload", figures["ratio_last_step"], 150.0, 172.0),
        DeltaGoal("  with the manifest counted", figures["ratio_last_step_with_manifest"]),
        DeltaGoal("  without history", figures["ratio_last_step_without_history"]),
    ]
    for back, must, stretch in zip((8, 16), (0.5, 0.35), (0.47, 0.33), strict=True):
        goals += [
            DeltaGoal(f"trace, fold of {back} / its steps", figures[f"fold{back}"], must, stretch, is_limit=True),
            DeltaGoal("  coded without history", figures[f"fold{back}_without_history"]),
        ]
    return goals


def _synthetic_goals(figures: Mapping[str, Any]) -> list[DeltaGoal]:
    return [
        DeltaGoal(f"synthetic {label}, masters {where} grid, full / payload", run["ratio"], must)
        for where, key in (("on", "synthetic"), ("off", "synthetic_off_grid"))
        for (label, run), must in zip(figures[key].items(), (400.0, 260.0, 130.0), strict=True)
    ]


def _cost_goals(runs: Mapping[str, Any]) -> list[DeltaGoal]:
    goals = []
    for name, run in runs.items():
        goals += [
            DeltaGoal(f"{name}, {what} GB/s", run[key], must, stretch, spread=run["spread"][key])
            for what, key, must, stretch in _SPEEDS
        ]
    for name, run in runs.items():
        goals += [
            DeltaGoal(
                f"{name}, {way}: peak above base / largest tensor",
                run["peak_memory"][f"{way}_largest_tensors"],
                2.0,
                is_limit=True,
            )
            for way in ("encode", "apply")
        ]
    return goals


def _row(goal: DeltaGoal) -> tuple[str, str, str, str, str]:
    met = ""
    if goal.must is not None and goal.reached is not None:
        met = "yes" if (goal.reached <= goal.must if goal.is_limit else goal.reached >= goal.must) else "NO"
    reached = "no trace" if goal.reached is None else _shown(goal.reached)
    if goal.spread is not None:
        reached += f" ({_shown(goal.spread['min'])} to {_shown(goal.spread['max'])})"
    return goal.measure, _shown(goal.must), _shown(goal.stretch), reached, met


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g}" if value < _LARGE else f"{value:,.1f}"
