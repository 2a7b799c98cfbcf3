"""What the bench's results say, as Markdown for docs/training.md and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.objectives.plan import (
    BATCHES,
    CANDIDATES,
    CLEAN,
    FACTORS,
    LAGS,
    REAL,
    ObjectiveVerdict,
    PlanPlace,
    Results,
    Scale,
    best_rates,
    ranked,
    verdicts,
)


def summary(results: Results, tasks: Sequence[str], scale: Scale = REAL) -> dict[str, Any]:
    """Per candidate: cells, failures, the worst cell, and whether all cells and seeds were run."""
    found = {}
    for name in CANDIDATES:
        cells = [item for item in verdicts(results, name, tasks, scale.full, scale) if item.place.factor]
        if not cells:
            continue
        clean = [item.end for item in verdicts(results, name, tasks, CLEAN, scale)]
        worst = min(cells, key=lambda item: item.end - item.start)
        found[name] = {
            "cells": len(cells),
            "of": len(tasks) * len([place for place in scale.full if place.factor]),
            "seeds": min(item.num_seeds for item in cells),
            "failures": sum(item.fails for item in cells),
            "screen_failures": sum(item.fails for item in cells if item.place in scale.screen),
            "mean": statistics.mean(item.end for item in cells),
            "clean": statistics.mean(clean) if clean else None,
            "worst": worst.end - worst.start,
            "worst_cell": f"{worst.task}, batch {worst.place.batch}, lag {worst.place.lag}, rate x{worst.place.factor}",
            "constants": CANDIDATES[name].num_constants,
        }
    rates = {f"{task}/{batch}": rate for (task, batch), rate in best_rates(results, tasks, scale).items()}
    order = ranked(results, list(found), tasks, scale.screen, scale)
    return {"rates": rates, "order_of_screen": order, "candidates": found}


def table(results: Results, tasks: Sequence[str], scale: Scale = REAL) -> str:
    """Failures of each candidate, then all cells: start to end in percent, mean of the seeds; bold fails."""
    facts = summary(results, tasks, scale)
    lines = [
        "| objective | constants | cells run | seeds | cells failed | mean of the cells' ends | clean | worst cell: change in points |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in facts["candidates"].items():
        worst = f"{100 * each['worst']:+.0f} ({each['worst_cell']})"
        run = f"{each['cells']} of {each['of']}"
        ends = f"{100 * each['mean']:.0f} | {_percent(each['clean'])}"
        lines.append(
            f"| {name} | {each['constants']} | {run} | {each['seeds']} | {each['failures']} | {ends} | {worst} |"
        )
    for task in tasks:
        for batch in BATCHES:
            places = [PlanPlace(batch, 0, 0), *(PlanPlace(batch, lag, factor) for lag in LAGS for factor in FACTORS)]
            rows = {name: _row(verdicts(results, name, [task], places, scale), places) for name in CANDIDATES}
            start = next(
                (item.start for name in CANDIDATES for item in verdicts(results, name, [task], places, scale)), None
            )
            if start is None:
                continue
            rate = facts["rates"][f"{task}/{batch}"]
            heads = ["clean", *(f"{lag} x{factor}" for lag in LAGS for factor in FACTORS)]
            lines += [
                "",
                f"{task}, batches of {batch}, start {100 * start:.0f}, best clean rate {rate:g}; columns are lag and rate:",
                "",
            ]
            lines += [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
            lines += [f"| {name} | {' | '.join(row)} |" for name, row in rows.items() if any(row)]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _row(found: Sequence[ObjectiveVerdict], places: Sequence[PlanPlace]) -> list[str]:
    by_place = {item.place: item for item in found}
    texts = []
    for place in places:
        item = by_place.get(place)
        text = "" if item is None else f"{100 * item.end:.0f}"
        texts.append(f"**{text}**" if item is not None and item.place.factor and item.fails else text)
    return texts
