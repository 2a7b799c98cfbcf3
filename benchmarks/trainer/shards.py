"""A trainer of several processes: its losses beside those of one process, and what is left of it when any rank is killed or hangs.

usage: python -m benchmarks.trainer.shards [--processes N] [--kills N] [--hangs N] [--rank N] [--seed N] [--json]

In: homes whose logs hold the same samples. Out: the largest relative difference of the loss of a step from one process, over the first 50
steps, for each number of processes, and for one process whose micro-batches are cut otherwise (`cut`), which changes nothing but the order
of sums; and, of real `millrace training --processes N` whose ranks are killed with SIGKILL at random moments, or
stopped with SIGSTOP: `lost` samples without an outcome, samples and versions that count `twice`, and `seconds_to_next_step` from the signal to
the first new step in the database. `bit_identical`: weights, moments and baselines at the end are those of a run of as many processes without
kills. With --json a dated file too; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
from sqlalchemy import func, select

from benchmarks.report import print_table, write_report
from contracts.tables import training_step
from runtime.settings import Settings
from tests.adversary.kills.trainer_child import accept
from tests.adversary.kills.trainer_home import decided_in, digests, make_home, problems_of
from tests.worlds.paths import ROOT
from weights.stores.opening import open_weight_store

COMPARED_STEPS, STEPS_PER_KILL = 50, 6
DEADLINE_SECONDS = 20.0
_LONGEST_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_LAST_WORDS = 2000
_CUT_TOKENS = 256
"""Of a forward pass of the run `cut`: a batch has about 800."""
_DECIDED = {"trained", "quarantined"}


class RankEnd(NamedTuple):
    """A signal to a rank, and what it cost."""

    rank: int
    signal: str
    after_step: int
    seconds_to_next_step: float | None
    """None: the next signal came before a step."""


class TrainerGroup:
    """A running `millrace training` over a home, as an operator starts it."""

    def __init__(self, settings: Settings, processes: int, agent: Sequence[str] = ()) -> None:
        """`agent`: what starts the ranks, with the arguments of Python; by default our own launcher."""
        self.settings, self.database = settings, settings.database()
        more = ["--processes", str(processes)] if processes > 1 and not agent else []
        command = [
            sys.executable,
            *(agent or [str(ROOT / "millrace.py")]),
            "training",
            "--home",
            str(settings.home),
            *more,
        ]
        with (settings.home / "trainer.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)  # noqa: S603 our own program

    def losses(self) -> dict[int, float]:
        """The loss of each step so far."""
        with self.database.snapshot() as connection:
            rows = connection.execute(select(training_step.c.step, training_step.c.metrics)).all()
        return {row.step: row.metrics["loss"] for row in rows}

    def newest(self) -> tuple[int, int]:
        """Epoch and number of the newest step; each start of the trainer begins an epoch."""
        with self.database.snapshot() as connection:
            row = connection.execute(select(func.max(training_step.c.epoch), func.max(training_step.c.step))).one()
        return row[0] or 0, row[1] or 0

    def until(self, step: int, epoch: int = 0) -> None:
        """Wait for a step, of at least this epoch, and accept candidates as a release would. Raises RuntimeError: the trainer ended, or is slow."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while True:
            found = self.newest()
            if found[0] >= epoch and found[1] >= step:
                break
            if time.monotonic() > deadline or self.process.poll() is not None:
                said = (self.settings.home / "trainer.log").read_text()[-_LAST_WORDS:]
                raise RuntimeError(f"no step {step}; the trainer said last: {said}")
            accept(self.database, self.settings.policy)
            time.sleep(_LOOK_SECONDS)

    def send(self, rank: int, number: signal.Signals) -> bool:
        """A signal to a rank; False if it is not there at this moment."""
        for child in psutil.Process(self.process.pid).children():
            try:
                if child.environ().get("RANK") == str(rank):
                    child.send_signal(number)
                    return True
            except psutil.Error:
                continue
        return False

    def end(self) -> None:
        """As an operator ends it: in order, with a checkpoint. Raises RuntimeError: it did not."""
        self.process.terminate()
        if status := self.process.wait(_LONGEST_SECONDS):
            raise RuntimeError(f"the trainer ended with status {status}: see {self.settings.home / 'trainer.log'}")


@contextmanager
def trainer_group(settings: Settings, processes: int, agent: Sequence[str] = ()) -> Iterator[TrainerGroup]:
    """A group over a home; killed if the body fails."""
    group = TrainerGroup(settings, processes, agent)
    try:
        yield group
        group.end()
    finally:
        if group.process.poll() is None:
            group.process.kill()
            group.process.wait()
        group.database.close()


def run_straight(settings: Settings, processes: int, num_steps: int) -> dict[int, float]:
    """Losses of a run without kills."""
    with trainer_group(settings, processes) as group:
        group.until(num_steps)
        found = group.losses()
    _say(f"{processes} processes: {num_steps} steps")
    return found


def run_killed(settings: Settings, processes: int, num_steps: int, signals: Sequence[str], seed: int) -> list[RankEnd]:
    """Take the steps while one rank after another gets a signal of this name, at random moments."""
    # Every third kill comes while the group starts after the one before it; the others, and all stops, behind some steps.
    early = [bool(number) and number % 3 == 0 and name == "SIGKILL" for number, name in enumerate(signals)] + [False]
    draw, ends = random.Random(seed), list[RankEnd]()  # noqa: S311 reproducible, not secret
    with trainer_group(settings, processes) as group:
        group.until(1)
        for number, name in enumerate(signals):
            if not early[number]:
                group.until(min(group.newest()[1] + draw.randint(1, STEPS_PER_KILL - 1), num_steps - 1))
            time.sleep(draw.uniform(0.0, 8.0 if early[number] else 0.3))
            rank, (epoch, step), began = draw.randrange(processes), group.newest(), time.monotonic()
            while not group.send(rank, signal.Signals[name]):
                time.sleep(_LOOK_SECONDS)
            if not early[number + 1]:
                group.until(step + 1, epoch + 1)
            ends.append(RankEnd(rank, name, step, None if early[number + 1] else time.monotonic() - began))
            _say(f"{number + 1} of {len(signals)}: {ends[-1]}")
        group.until(num_steps)
    return ends


def counted(settings: Settings) -> dict[str, int]:
    """Samples without an outcome that stays; and how many samples and versions the store holds more often than the outcomes say."""
    found, store = decided_in(settings), open_weight_store(settings)
    versions = list(store.versions(settings.policy))
    said = sum(store.manifest(settings.policy, version).num_samples for version in versions)
    held = sum(item is not None and item.state == "trained" and item.version in versions for item in found.values())
    return {
        "lost": sum(item is None or item.state not in _DECIDED for item in found.values()),
        "twice": max(0, said - held) + len(versions) - len(set(versions)),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write a file if asked to; status 1 if a sample was lost or counted twice, or bits differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.shards")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hangs", type=int, default=2)
    parser.add_argument("--rank", type=int, default=8, help="of the adapter that is trained; 0: whole weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    signals = ["SIGKILL"] * options.kills + ["SIGSTOP"] * options.hangs
    num_steps = max(COMPARED_STEPS, (len(signals) + 2) * STEPS_PER_KILL)
    figures = _measure(options, signals, num_steps)
    print_table(
        "a trainer of several processes",
        ("figure", "value"),
        [(name, json.dumps(value)) for name, value in figures.items()],
    )
    if options.json:
        print(f"written: {write_report('trainer-shards' if options.rank else 'trainer-shards-whole', figures)}")
    return 0 if figures["good"] else 1


def _measure(options: argparse.Namespace, signals: Sequence[str], num_steps: int) -> dict[str, Any]:
    more: dict[str, Any] = {"group_seconds": DEADLINE_SECONDS, "learning_rate": 1e-4}
    if options.rank:
        more |= {"adapter": {"rank": options.rank}, "learning_rate": 1e-3}
    with tempfile.TemporaryDirectory(prefix="millrace-shards-") as folder:
        cut = make_home(Path(folder) / "cut", num_steps, options.seed, **more, max_tokens=_CUT_TOKENS)
        losses, homes = {"cut": run_straight(cut, 1, num_steps)}, {}
        for processes in sorted({1, 2, 4, options.processes}):
            homes[processes] = make_home(Path(folder) / f"straight-{processes}", num_steps, options.seed, **more)
            losses[str(processes)] = run_straight(homes[processes], processes, num_steps)
        killed = make_home(Path(folder) / "killed", num_steps, options.seed, **more)
        ends = run_killed(killed, options.processes, num_steps, signals, options.seed)
        count, problems = counted(killed), problems_of(killed, num_steps)
        is_same = digests(homes[options.processes]) == digests(killed)
    kills, hangs = (
        [end.seconds_to_next_step or 0.0 for end in ends if end.signal == name] or [0.0]
        for name in ("SIGKILL", "SIGSTOP")
    )
    differences = {
        name: max(_difference(losses["1"][step], found[step]) for step in range(1, COMPARED_STEPS + 1))
        for name, found in losses.items()
    }
    of_groups = [value for name, value in differences.items() if name != "cut"]
    return {
        "good": not problems and is_same and not any(count.values()),
        "steps": num_steps,
        "processes": options.processes,
        "adapter_rank": options.rank,
        "loss_difference": differences,
        "largest_loss_difference": max(of_groups),
        "kills": options.kills,
        "hangs": options.hangs,
        **count,
        "bit_identical": is_same,
        "seconds_to_next_step": max(kills),
        "seconds_to_next_step_median": median(seconds for seconds in kills if seconds),
        "seconds_to_next_step_after_a_hang": max(hangs),
        "deadline_seconds": DEADLINE_SECONDS,
        "problems": problems,
        "ends": [end._asdict() for end in ends],
    }


def _difference(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), 1.0)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
