"""What saving and publishing cost the step loop: stalls, share of time, and peak of memory over what is resident.

usage: python -m benchmarks.trainer.saving [--millions 10 100] [--steps N] [--threads N] [--json]

In: a home with as many samples as are needed. Out: a table, a row per model size; with --json a dated file too. Each size is a process
of its own, which runs the real trainer with its two background threads, in float32 on CPU. Memory is the kernel's high-water mark
(`VmHWM`) less what the process had before the model: `resident` over forward and backward passes with two versions in memory and
nothing under way, the peak over all turns after that.

A stall is the time of a turn less its forward, backward and optimizer passes; reading, what is written for each step and its figures
are in it, and are what is left in turns with nothing under way (`quiet`). `stall_publishing_ms` is the longest one without
what a step waits for a save: what publishing, and taking a checkpoint, may cost at most.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import percentile, print_table, write_report
from benchmarks.trainer.throughput import VOCABULARY
from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE
from contracts.ids import new_completion_id, sample_key
from contracts.records import Experience, Score, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.topics import EXPERIENCES
from pipelines.training.learning.figures import StepResult
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.process import compose
from pipelines.training.settings import TrainingSettings
from pipelines.training.surroundings import Surroundings
from pipelines.training.worker import Trainer
from policy.weights import tensors_of
from runtime.database import Database
from runtime.days import migrate
from runtime.lease import Lease
from runtime.log.outbox import message
from runtime.settings import Settings
from tests.worlds.paths import ROOT
from weights.publish import publish_version
from weights.stores.opening import open_store_at
from weights.warm_up import warm_up

POLICY = "bench"
SHAPES = {10: (256, 8), 30: (512, 8), 100: (768, 12), 500: (1536, 16), 1500: (2048, 28)}
"""Millions of parameters, roughly, to width and depth."""
ROWS, TOKENS = 4, 24
SAMPLES_OF_A_VERSION = 4 * ROWS
WAIT_SECONDS = 0.05
WARM_VERSIONS = 2
"""As many as the publisher keeps in memory."""
COLUMNS = (
    "million", "turns", "saves", "versions", "step_s", "step_busy_s", "stall_quiet_ms", "stall_median_ms", "stall_p99_ms",
    "stall_longest_ms", "stall_publishing_ms", "lost_share", "peak_over_resident", "resident_mib",
)  # fmt: skip


class SavingTurn(NamedTuple):
    """Seconds of one turn. `computed`: of them in the passes of the step; `kept`: waiting for a save, or copying for it."""

    seconds: float
    computed: float
    kept: float
    is_busy: bool

    @property
    def stall(self) -> float:
        """Seconds that were no computation."""
        return self.seconds - self.computed


class TimedLearner(Learner):
    """Measures its passes, and what it waits for before it changes weights."""

    computed = kept = 0.0

    def step(self, *arguments: Any, **options: Any) -> StepResult:
        """As the learner's."""
        began = time.perf_counter()
        keep = self.before_change

        def timed_keep() -> None:
            waited = time.perf_counter()
            keep()
            self.kept += time.perf_counter() - waited

        self.before_change = timed_keep
        try:
            return super().step(*arguments, **options)
        finally:
            self.before_change = keep
            self.computed += time.perf_counter() - began - self.kept


class SavingHome:
    """A home with a trainer, and a release that accepts everything."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.settings = Settings(home=folder, run="bench", policy=POLICY, base="none", tasks=(Path("none"),))
        self.database: Database = self.settings.database()
        migrate(self.database)
        self.log = self.settings.event_log()
        self.store = open_store_at(self.settings.weights)
        publish_version(
            self.store, policy=POLICY, run="bench", version=0, parent=None, base=None, target=tensors_of(model),
            step=0, epoch=0, num_samples=0, created_at=0.0,
        )  # fmt: skip
        self._point(LIVE, 0)

    def add(self, count: int) -> None:
        """Samples to learn from."""
        random = np.random.default_rng(0)
        items = [_sample(random, number) for number in range(count)]
        self.log.append([message(EXPERIENCES, item.key, item) for item in items])

    def accept(self) -> None:
        """Make the candidate live."""
        with self.database.snapshot() as connection:
            candidate = assignments.read(connection, POLICY).get(CANDIDATE)
        if candidate is not None and candidate.version is not None:
            self._point(CANDIDATE, None)
            self._point(LIVE, candidate.version)

    def _point(self, arm: str, version: int | None) -> None:
        with self.database.transaction() as connection:
            held = assignments.read(connection, POLICY).get(arm)
            assignments.move(
                connection, policy=POLICY, arm=arm, version=version, writer="bench", reason="",
                expected_epoch=held.epoch if held else 0,
            )  # fmt: skip


def measure(million: int, num_turns: int, threads: int) -> dict[str, Any]:
    """One row of the table, in this process."""
    torch.set_num_threads(threads)
    warm_up()
    bare = _memory("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        model = _model(million)
        home = SavingHome(Path(folder), model)
        training = TrainingSettings(
            batch_size=ROWS, max_wait_seconds=0.0, publish_samples=SAMPLES_OF_A_VERSION, publish_seconds=1e9,
            learning_rate=1e-5, divergence_bound=math.inf,
        )  # fmt: skip
        with ThreadPoolExecutor(1) as saving, ThreadPoolExecutor(1) as publishing:
            learner = TimedLearner(WholeModel(model, training), training)
            lease = Lease.acquire(home.database, POLICY)
            around = Surroundings(home.settings, training, home.database, lease, home.log, home.store)
            trainer = compose(learner, around, (saving, publishing))
            while trainer.state.version < WARM_VERSIONS:
                home.add(ROWS)
                _turn(home, trainer, learner)
            while not trainer.is_settled:
                _turn(home, trainer, learner)
            _forget_peak()
            random = np.random.default_rng(1)
            samples = [_sample(random, number) for number in range(ROWS)]
            learner.step(samples, [1.0] * ROWS, {}, dry_run=True)
            resident = _memory("VmHWM") - bare
            _forget_peak()
            first_version, first_names = trainer.state.version, _checkpoints(home)
            home.add(num_turns * ROWS)
            began = time.perf_counter()
            turns = [_turn(home, trainer, learner) for _ in range(num_turns)]
            elapsed, peak = time.perf_counter() - began, _memory("VmHWM") - bare
            versions, names = trainer.state.version - first_version, _checkpoints(home)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return {
        "million": round(num_weights / 1e6, 1),
        "turns": num_turns,
        "saves": names - first_names,
        "versions": versions,
        **_figures(turns, elapsed),
        "peak_over_resident": peak / resident,
        "resident_mib": resident / 1024,
        "resident_bytes_per_parameter": resident * 1024 / num_weights,
        "threads": threads,
    }


def _turn(home: SavingHome, trainer: Trainer, learner: TimedLearner) -> SavingTurn:
    is_busy, learner.computed, learner.kept = not trainer.is_settled, 0.0, 0.0
    began = time.perf_counter()
    trainer.turn(WAIT_SECONDS)
    seconds = time.perf_counter() - began
    turn = SavingTurn(seconds, learner.computed, learner.kept, is_busy or not trainer.is_settled)
    home.accept()
    return turn


def _figures(turns: Sequence[SavingTurn], elapsed: float) -> dict[str, float]:
    quiet = [turn for turn in turns if not turn.is_busy] or turns
    busy = [turn for turn in turns if turn.is_busy] or turns
    stalls = [turn.stall for turn in turns]
    usual = median(turn.stall for turn in quiet)
    return {
        "step_s": median(turn.computed for turn in quiet),
        "step_busy_s": median(turn.computed for turn in busy),
        "stall_quiet_ms": 1000 * usual,
        "stall_median_ms": 1000 * median(stalls),
        "stall_p99_ms": 1000 * percentile(stalls, 0.99),
        "stall_longest_ms": 1000 * max(stalls),
        "stall_publishing_ms": 1000 * max(turn.stall - turn.kept for turn in turns),
        "lost_share": sum(max(stall - usual, 0.0) for stall in stalls) / elapsed,
    }


def _model(million: int) -> Any:
    width, depth = SHAPES[million]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=depth,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, max_position_embeddings=512,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


def _sample(random: np.random.Generator, number: int) -> Experience:
    ids, half = random.integers(1, VOCABULARY, TOKENS).tolist(), TOKENS // 2
    segment = Segment(
        token_ids=pack_ids(ids),
        loss_mask=bytes([0] * half + [1] * (TOKENS - half)),
        logprobs=pack_floats([0.0] * half + [-9.0] * (TOKENS - half)),
        spans=(Span(0, 0),),
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=32),
    )
    now = time.time()
    return Experience(
        key=sample_key(new_completion_id(), 0), revision=0, policy=POLICY, task="task", task_hash="hash", tenant="default",
        purpose="user", baseline_key="task", segments=(segment,),
        scores=(Score(name="accepted", grader="signal/1#hash", value=float(number % 2)),), reward=float(number % 2),
        status="scored", generated_at=now, scored_at=now, engine="ours", dtype="float32",
    )  # fmt: skip


def _checkpoints(home: SavingHome) -> int:
    """The serial of the newest checkpoint."""
    return max(
        (int(path.name.rpartition("-")[2]) for path in home.settings.checkpoints.glob("checkpoint-*")), default=0
    )


def _memory(name: str) -> int:
    """KiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _in_a_child(million: int, options: argparse.Namespace) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "benchmarks.trainer.saving", "--one", "--millions", str(million)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 this very module
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.saving")
    parser.add_argument("--millions", type=int, nargs="+", choices=sorted(SHAPES), default=[10, 100])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.millions[0], options.steps, options.threads)))
        return
    rows = [_in_a_child(million, options) for million in options.millions]
    print_table(
        "saving and publishing beside the step loop", COLUMNS, [[row[name] for name in COLUMNS] for row in rows]
    )
    if options.json:
        print(f"written: {write_report('trainer-saving', {'rows': rows})}")


if __name__ == "__main__":
    main(sys.argv[1:])
