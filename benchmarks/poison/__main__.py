"""Poisoned corpora beside a clean one: where a policy ends with forged log-probs among its samples, or an hour of flipped rewards.

usage: python -m benchmarks.poison [--steps N] [--seeds N] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if the mean of the seeds of a poisoned run ends more
than 1 point below that of the clean runs. A step stands for 30 seconds: an hour is 120 steps, and half a day, the default, 1,440. The final
accuracy is the mean over the versions served in the last tenth of a run. `lost` is a run whose hour has no rewards at all: the cost of the
lost time alone. Learner, trial, guard and reward watch are the trainer's own; the release gate is a simple stand-in (see `Gate`).
`unguarded` is the same run without guard, watch and gate, for comparison only.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import structlog
import torch

from benchmarks.poison.task import Users, flipped, forged, tiny_policy
from benchmarks.report import end_with, print_table
from contracts.records import Experience
from pipelines.training.known.batches import Batch
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.samples.attempts import Attempts
from pipelines.training.samples.reward_watch import REWARD_SPIKE, RewardWatch, of_tasks
from pipelines.training.samples.trial import Trial
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from policy.weights import copy_tensors

STEP_SECONDS, HOUR_STEPS = 30.0, 120
EARLY = 48
"""The first flipped step of the early hour: between a third and half of the answers are right, so the mean reward hardly moves."""
BATCH, PER_VERSION, QUICK_STEPS = 32, 4, 240
POINT, TOLERANCE, REFUSALS, FORGED_SHARE = 0.01, 0.03, 3, 0.1
ARMS = (
    "clean",
    "extreme ratios",
    "flipped for an hour",
    "flipped early for an hour",
    "lost for an hour, early",
    "flipped for an hour, unguarded",
)
POISONED = ARMS[1:4]
LAST = 10
"""The end of a run: one part in this many."""


class Gate:
    """The live version, which users talk to, and the release gate: a candidate that lost is refused, three in a row are undone.

    Sentinels are asked and judged by graders of their own, so they are the exact accuracy here.
    """

    def __init__(self, learner: Learner, users: Users, seed: int, *, is_on: bool) -> None:
        self._learner, self._users, self._is_on = learner, users, is_on
        self.live, self.version = tiny_policy(seed), 0
        self._best = users.accuracy(self.live)
        self._kept = self._capture()
        self._refused = 0
        self.num_rollbacks = 0

    def offer(self) -> None:
        """Cut a version."""
        candidate = tiny_policy(0)
        copy_tensors(candidate, self._learner.tensors())
        found = self._users.accuracy(candidate)
        if self._is_on and found < self._best - TOLERANCE:
            self._refused += 1
            if self._refused == REFUSALS:
                self._learner.restore(self._kept)
                self.num_rollbacks, self._refused = self.num_rollbacks + 1, 0
            return
        self._best, self._refused = max(self._best, found), 0
        self.live, self.version, self._kept = candidate, self.version + 1, self._capture()

    def _capture(self) -> Checkpoint:
        """All of it copied: later steps change the tensors in place."""
        held = self._learner.capture(TrainerState(), None)
        return copy.deepcopy(held)


def run(arm: str, *, steps: int, hour: int, seed: int) -> dict[str, Any]:
    """Train once; `hour` steps are poisoned, from the middle of the run on or, early, from step EARLY on."""
    torch.set_num_threads(1)
    random, users, model = np.random.default_rng(seed), Users(seed), tiny_policy(seed)
    is_guarded = not arm.endswith("unguarded")
    settings = TrainingSettings(learning_rate=4e-3, mismatch_samples=0, guard_spread=15.0 if is_guarded else 1e30)
    learner = Learner(WholeModel(model, settings), settings)
    gate = Gate(learner, users, seed, is_on=is_guarded)
    watch = RewardWatch(0.0, 1.0, settings.guard_hold_seconds if is_guarded else 0.0)
    fates: Counter[str] = Counter()
    lowest, slowest, served = 1.0, 0.0, list[float]()
    first = EARLY if "early" in arm else steps // 2
    poisoned = range(first, first + hour)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(learner, Attempts(Path(folder) / "attempt.json"), "p", dict)
        for step in range(steps):
            batch = users.ask(gate.live, BATCH, gate.version)
            if arm == "extreme ratios" and step in poisoned:
                batch = [forged(item, random) if random.random() < FORGED_SHARE else item for item in batch]
            elif arm.startswith("flipped") and step in poisoned:
                batch = [flipped(item) for item in batch]
            elif arm.startswith("lost") and step in poisoned:
                batch = []
            began = time.monotonic()
            _learn(trial, watch, batch, step, fates)
            slowest = max(slowest, time.monotonic() - began)
            if step % PER_VERSION == PER_VERSION - 1:
                gate.offer()
            served.append(users.accuracy(gate.live))
            if step in poisoned:
                lowest = min(lowest, served[-1])
    return {
        "final": fmean(served[-max(steps // LAST, 1) :]),
        "seconds_until_recovered": _recovery(served, poisoned),
        "lowest_served_while_poisoned": lowest,
        "slowest_step_seconds": round(slowest, 3),
        "rollbacks": gate.num_rollbacks,
        "fates": dict(fates),
    }


def _recovery(served: Sequence[float], poisoned: range) -> float | None:
    """From the end of the hour until what is served is as good as it was before; None if that never happens."""
    before = served[poisoned.start - 1] - POINT
    later = served[poisoned.stop :]
    return next((number * STEP_SECONDS for number, found in enumerate(later) if found >= before), None)


def _learn(trial: Trial, watch: RewardWatch, items: Sequence[Experience], step: int, fates: Counter[str]) -> None:
    turned = of_tasks(items, watch.suspicions(items, step * STEP_SECONDS))
    fates[REWARD_SPIKE] += len(turned)
    batch = Batch(sorted((item for item in items if item.key not in turned), key=lambda item: item.key), [])
    if not batch.samples:
        return
    tried = trial.step(batch, dict.fromkeys(batch.keys, 1.0), epoch=1, step=step)
    for part, failure in tried.culprits:
        fates[failure.reason] += len(part.keys)
    fates["stale(divergence)"] += len(tried.left.everything)
    if tried.result is not None and not tried.result.skipped:
        fates["trained"] += len(tried.learned.samples)
        watch.learned(tried.learned.samples)


def main(arguments: Sequence[str]) -> int:
    """Train, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poison")
    parser.add_argument("--steps", type=int, default=1440)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one seed, 240 steps, no file")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    steps, seeds = (QUICK_STEPS, 1) if options.quick else (options.steps, options.seeds)
    hour = min(HOUR_STEPS, steps // 4)
    runs = {arm: [run(arm, steps=steps, hour=hour, seed=seed) for seed in range(seeds)] for arm in ARMS}
    final = {arm: fmean(run["final"] for run in runs[arm]) for arm in ARMS}
    kept = all(final[arm] >= final["clean"] - POINT for arm in POISONED)
    figures = {"steps": steps, "poisoned_steps": hour, "batch": BATCH, "kept": kept, "final": final, "runs": runs}
    return end_with(figures, options, _show, "poison") or (0 if kept else 1)


def _show(figures: Any) -> None:
    rows = [
        [arm, seed, f"{found['final']:.4f}", f"{found['lowest_served_while_poisoned']:.4f}", str(found["fates"])]
        for arm, runs in figures["runs"].items()
        for seed, found in enumerate(runs)
    ]
    title = f"{figures['steps']} steps of {figures['batch']}, {figures['poisoned_steps']} of them poisoned"
    print_table(title, ["run", "seed", "final accuracy", "lowest served meanwhile", "fates"], rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
