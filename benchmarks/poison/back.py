"""How long the guard costs a trainer: from the step with a spike to the end of the next ordinary step.

usage: python -m benchmarks.poison.back [--seeds N] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if a time is 10 s or more, an innocent sample is not trained
in the end, or a replay of a bundle gives another number.

The trainer is the real one, in a home of its own with log, database, journal and background threads; the policy is the demo's, and its answers are
sampled from it. What is measured holds for a trainer that has samples to learn: the next batch waits already.

    one     one sample claims a logged log-prob that is 5 nats too low: it is quarantined, the others are trained in the same step
    all     every sample of a batch does: nobody is to blame, the batch is skipped and waits, until the guard is used to it
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from benchmarks.paths import BASE, EXAMPLE
from benchmarks.report import end_with, print_table, summarise
from benchmarks.virtual_demo.engine import VirtualEngine
from commands.home import prepare_home
from commands.up import make_settings
from contracts.records import Experience, pack_floats
from contracts.sampling import Sampling
from contracts.topics import EXPERIENCES
from examples.demo.command import DEMO_TRAINING
from examples.reservations.sentences import requests
from pipelines.training.checkpoints.bundle_replay import replay_bundle
from pipelines.training.process import background_threads, make_trainer
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Trainer
from runtime.lease import Lease
from runtime.log.outbox import message

GOAL_SECONDS = 10.0
WARM_STEPS, FORGED_NATS = 17, 5.0
KINDS, BATCHES = ("one", "all"), (16, 64)
_SAMPLING = Sampling(temperature=1.0, max_tokens=32)


class DemoUsers:
    """Ask the demo's base policy, and judge the answers."""

    def __init__(self, seed: int) -> None:
        self._engine, self._requests = VirtualEngine(seed), requests("users", seed)

    def batch(self, count: int) -> list[Experience]:
        """Scored answers with honest log-probs."""
        asked = [next(self._requests) for _ in range(count)]
        answers = self._engine.answer([item.sentence for item in asked], [_SAMPLING] * count)
        return [
            answer.experience(float(answer.text == request.booking.json()), time.time())
            for request, answer in zip(asked, answers, strict=True)
        ]


def forged(item: Experience) -> Experience:
    """The sample with one log-prob lowered: its ratio is e^5, and the mean log-ratio stays within the bound of divergence."""
    (part,) = item.segments
    *logged, last = np.frombuffer(part.logprobs, "<f4").tolist()
    lowered = pack_floats([*logged, last - FORGED_NATS])
    return msgspec.structs.replace(item, segments=(msgspec.structs.replace(part, logprobs=lowered),))


@contextmanager
def running(folder: Path, batch: int) -> Iterator[tuple[Trainer, Callable[[Sequence[Experience]], None]]]:
    """A trainer of a new home, and how samples come to it."""
    settings = make_settings(folder, name="demo", base=BASE, tasks=[EXAMPLE / "task.toml"], device="cpu", web_port=1)
    changes = DEMO_TRAINING | {"batch_size": batch, "publish_samples": 6 * batch}
    prepare_home(settings, {"training": TrainingSettings(**changes)})
    database, log = settings.database(), settings.event_log()
    lease = Lease.acquire(database, settings.policy)
    with lease.kept_alive(), background_threads() as background:
        trainer = make_trainer(settings, database, lease, threading.Event(), background)
        if trainer is None:
            raise RuntimeError("no trainer")
        yield trainer, lambda items: log.append([message(EXPERIENCES, item.key, item) for item in items])
    log.close()
    database.close()


def measure(kind: str, batch: int, seed: int) -> dict[str, Any]:
    """One spike."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "home", batch) as (trainer, send):
        users = DemoUsers(seed)
        for step in range(1, WARM_STEPS + 1):
            send(users.batch(batch))
            _until(trainer, partial(_has_taken, trainer, step))
        honest = users.batch(batch)
        spiking = [forged(item) if kind == "all" or number == 0 else item for number, item in enumerate(honest)]
        innocent = [item.key for number, item in enumerate(spiking) if kind == "all" or number > 0]
        following = users.batch(batch)
        after = [item.key for item in following]
        send(spiking)
        fates, began = trainer.state.fates, time.monotonic()
        trainer.turn()
        spiked = time.monotonic() - began
        skipped = sum(key not in fates for key in innocent)
        send(following)
        _until(trainer, lambda: any(key in fates and fates[key].state == "trained" for key in after))
        seconds = time.monotonic() - began
        _until(trainer, lambda: all(key in fates for key in [*innocent, *after]))
        found = [replay_bundle(place) for place in sorted((Path(folder) / "home" / "bundles").iterdir())]
        return {
            "back_seconds": seconds,
            "spike_step_seconds": spiked,
            "bundles": len(found),
            "queued_again": skipped,
            "innocents_trained": sum(fates[key].state == "trained" for key in innocent),
            "innocents": len(innocent),
            "culprits": sum(len(getattr(item.bundle, "culprits", ())) for item in found),
            "reasons": sorted({item.bundle.reason for item in found}),
            "replays_same": all(item.is_same for item in found),
        }


def _has_taken(trainer: Trainer, step: int) -> bool:
    return trainer.state.step >= step


def _until(trainer: Trainer, is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_over():
        if time.monotonic() > deadline:
            raise RuntimeError("the trainer does not come to it")
        trainer.attempt(0.0)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poison.back")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one seed, no file")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds = 1 if options.quick else options.seeds
    rows = []
    for kind in KINDS:
        for batch in BATCHES:
            runs = [measure(kind, batch, seed) for seed in range(1, seeds + 1)]
            back = summarise([run["back_seconds"] for run in runs])
            kept = all(
                run["back_seconds"] < GOAL_SECONDS
                and run["innocents_trained"] == run["innocents"]
                and run["replays_same"]
                and run["bundles"]
                for run in runs
            )
            rows.append({"kind": kind, "batch": batch, "kept": kept, "back_seconds": back, "runs": runs})
    figures = {"goal_seconds": GOAL_SECONDS, "rows": rows}
    return end_with(figures, options, _show, "guard-back") or (0 if all(row["kept"] for row in rows) else 1)


def _show(figures: Any) -> None:
    rows = [
        [
            row["kind"],
            row["batch"],
            f"{row['back_seconds']['median']:.2f}",
            f"{row['back_seconds']['max']:.2f}",
            sum(run["culprits"] for run in row["runs"]),
            " ".join(f"{run['innocents_trained']}/{run['innocents']}" for run in row["runs"]),
            " ".join(str(run["queued_again"]) for run in row["runs"]),
            all(run["replays_same"] for run in row["runs"]),
        ]
        for row in figures["rows"]
    ]
    title = "from a spike's step to the end of the next ordinary step, seconds"
    columns = [
        "forged", "batch", "median", "slowest", "culprits", "innocents trained", "queued again", "replays are the same"
    ]  # fmt: skip
    print_table(title, columns, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
