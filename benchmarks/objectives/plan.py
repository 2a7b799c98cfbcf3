"""Which runs the bench takes, and what they decide: screen all candidates where it hurts, halve, then every cell and seed.

Rule: an objective fails a cell if the mean of its seeds ends below its start by more than two standard errors, or, up to lag 20 at
the best rate, more than 5 points below its own clean run. Fewest failures win; ties go to fewer constants, then to the higher mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from benchmarks.objectives.run import STEP_BOUND, Cell
from benchmarks.objectives.tasks import TASKS

LAGS, FACTORS, BATCHES, SEEDS = (0, 6, 20, 80), (1, 3, 10), (64, 4), (1, 2, 3, 4, 5)
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
"""Tried clean, without lag; {1, 3, 10} times the best one are the learning rates of the cells."""
STEPS, LONG_STEPS = 100, 400
"""Five times the lag, or more."""
NEAR = 20
"""Up to this lag a run must come close to its clean one ..."""
CLOSE = 0.05
"""... by this share of answers."""
HALVES = (3, 2)


@dataclass(frozen=True)
class Candidate:
    """An objective with its constants. A control is known to fail: the bench must say so."""

    loss: str
    num_constants: int
    bound: float = 2.0
    kl: float = 0.02
    divergence: float = 2.0
    step_bound: float = STEP_BOUND
    is_control: bool = False


UNBOUND = math.inf
_OBJECTIVES = {
    "truncated": Candidate("truncated", 1),
    "cispo": Candidate("cispo", 1, bound=5.0),
    "vcpo": Candidate("vcpo", 1),
    "dppo": Candidate("dppo", 2),
    "m2po": Candidate("m2po", 2),
    "ppo": Candidate("ppo", 3),
    "gspo": Candidate("gspo", 3),
}
CANDIDATES = {
    **_OBJECTIVES,
    **{f"{name}, bound / 3": replace(each, step_bound=5e-6) for name, each in _OBJECTIVES.items()},
    "vcpo, bound / 9": Candidate("vcpo", 1, step_bound=5e-6 / 3),
    "truncated, no step bound": Candidate("truncated", 1, step_bound=UNBOUND, is_control=True),
    "vcpo, no step bound": Candidate("vcpo", 1, step_bound=UNBOUND, is_control=True),
    "gspo, no step bound": Candidate("gspo", 3, step_bound=UNBOUND, is_control=True),
}


class PlanPlace(NamedTuple):
    """A cell of the table without its task and seed. `factor` 0: the clean run."""

    batch: int
    lag: int
    factor: int


CLEAN = tuple(PlanPlace(batch, 0, 0) for batch in BATCHES)
SCREEN = (PlanPlace(64, 80, 10), PlanPlace(4, 20, 10), PlanPlace(4, 0, 10))
FULL = (
    *SCREEN,
    *CLEAN,
    *(PlanPlace(*found) for found in product(BATCHES, LAGS, FACTORS) if PlanPlace(*found) not in SCREEN),
)


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    steps: int = STEPS
    long_steps: int = LONG_STEPS
    seeds: tuple[int, ...] = SEEDS
    rates: tuple[float, ...] = RATES
    screen: tuple[PlanPlace, ...] = SCREEN
    full: tuple[PlanPlace, ...] = FULL


REAL = Scale()
QUICK = Scale(2, 2, (1, 2), (1e-3,), (*CLEAN, PlanPlace(4, 6, 10)), (*CLEAN, PlanPlace(4, 6, 10), PlanPlace(64, 6, 1)))
"""Its figures say nothing: it shows that everything runs."""


def cell(name: str, task: str, place: PlanPlace, best: float, seed: int, *, scale: Scale = REAL) -> Cell:
    """The run of a candidate. `best` is the best clean rate of the task and batch size."""
    candidate = CANDIDATES[name]
    return Cell(
        task=task,
        loss=candidate.loss,
        lag=place.lag,
        batch=place.batch,
        rate=best * max(place.factor, 1),
        seed=seed,
        steps=scale.long_steps if place.lag > NEAR else scale.steps,
        is_clean=not place.factor,
        kl=candidate.kl,
        bound=candidate.bound,
        divergence=candidate.divergence,
        step_bound=candidate.step_bound,
    )


def rate_cells(tasks: Iterable[str], scale: Scale = REAL) -> Iterator[Cell]:
    """The runs that find the best clean rate. On fresh samples every ratio is 1, so one objective speaks for all.

    Steps are not bounded: a rate that is too large shall look so.
    """
    for task, batch, rate in product(tasks, BATCHES, scale.rates):
        yield Cell(task, "truncated", 0, batch, rate, 0, scale.steps, is_clean=True, step_bound=UNBOUND)


def best_rates(results: Results, tasks: Iterable[str], scale: Scale = REAL) -> dict[tuple[str, int], float]:
    """Task and batch size to the rate that ends highest."""
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for each in rate_cells(tasks, scale):
        end = results[each]["end"]
        found[each.task, each.batch] = max(found.get((each.task, each.batch), (-1.0, 0.0)), (end, each.rate))
    return {key: rate for key, (_, rate) in found.items()}


class Results(dict[Cell, dict[str, Any]]):
    """Cell to what its run returned."""

    @classmethod
    def of_lines(cls, lines: Iterable[dict[str, Any]]) -> Results:
        """Invert `line`."""
        return cls({Cell(**item["cell"]): item["result"] for item in lines})

    @staticmethod
    def line(done: Cell, result: dict[str, Any]) -> dict[str, Any]:
        """As JSON."""
        return {"cell": asdict(done), "result": result}


class ObjectiveVerdict(NamedTuple):
    """What a candidate did in one cell, over seeds: shares of right answers."""

    task: str
    place: PlanPlace
    num_seeds: int
    start: float
    end: float
    error: float
    """Standard error of end - start; 0 for a single seed."""
    below_clean: float
    """How far it ends below its clean run."""

    @property
    def fails(self) -> bool:
        """See the rule."""
        near = self.place.lag <= NEAR and self.place.factor == 1
        return self.end - self.start < -2 * self.error or (near and self.below_clean > CLOSE + 2 * self.error)


def verdicts(
    results: Results, name: str, tasks: Iterable[str], places: Iterable[PlanPlace], scale: Scale = REAL
) -> list[ObjectiveVerdict]:
    """A candidate's cells that have at least one run."""
    tasks, places = list(tasks), list(places)
    best = best_rates(results, tasks, scale)
    found = []
    for task, place in product(tasks, places):
        rate = best[task, place.batch]
        runs = [
            results[each]
            for seed in scale.seeds
            if (each := cell(name, task, place, rate, seed, scale=scale)) in results
        ]
        clean_cells = (cell(name, task, PlanPlace(place.batch, 0, 0), rate, seed, scale=scale) for seed in scale.seeds)
        clean = [results[each]["end"] for each in clean_cells if each in results]
        if not runs:
            continue
        gains = [run["end"] - run["start"] for run in runs]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        start, end = (statistics.mean(run[key] for run in runs) for key in ("start", "end"))
        below = statistics.mean(clean) - end if clean else 0.0
        found.append(ObjectiveVerdict(task, place, len(runs), start, end, error, below))
    return found


def ranked(
    results: Results, names: Sequence[str], tasks: Sequence[str], places: Sequence[PlanPlace], scale: Scale = REAL
) -> list[str]:
    """Candidates, the best first."""

    def key(name: str) -> tuple[int, int, float]:
        cells = [item for item in verdicts(results, name, tasks, places, scale) if item.place.factor]
        mean = statistics.mean(item.end for item in cells) if cells else 0.0
        return sum(item.fails for item in cells), CANDIDATES[name].num_constants, -mean

    return sorted((name for name in names if not CANDIDATES[name].is_control), key=key)


def stages(
    results: Results, tasks: Sequence[str] = tuple(TASKS), scale: Scale = REAL
) -> Iterator[tuple[str, list[Cell]]]:
    """The bench's stages, one after the other: a name and its runs. `results` must have them before the next is asked for."""
    yield "rates", list(rate_cells(tasks, scale))
    best = best_rates(results, tasks, scale)

    def cells(names: Iterable[str], places: Iterable[PlanPlace], seeds: Iterable[int]) -> list[Cell]:
        order = product(seeds, places, tasks, list(names))
        return [
            cell(name, task, place, best[task, place.batch], seed, scale=scale) for seed, place, task, name in order
        ]

    yield "screen", cells(CANDIDATES, scale.screen, scale.seeds[:1])
    kept = ranked(results, list(CANDIDATES), tasks, scale.screen, scale)[: HALVES[0]]
    yield "half", cells(kept, scale.full, scale.seeds[:1])
    kept = ranked(results, kept, tasks, scale.full, scale)[: HALVES[1]]
    # The first of them first, so that a bench that is cut short has one whole row.
    yield "final", [each for name in kept for each in cells([name], scale.full, scale.seeds)]
