"""What one signal costs the join, about an answer that has 1, 100 or 10,000 signals already."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.log.run import LogArm, LogWorld, a_world
from benchmarks.report import summarise
from contracts.ledger import signal_counts
from contracts.tasks.loading import load_tasks
from pipelines.episodes.handler import EpisodesHandler
from runtime.settings import load_settings
from runtime.worker import Worker
from tests.worlds.signals import an_answer, answer_message, signal_message, signals_about

SIZES = (1, 100, 10_000)
_BATCH, _TIMES = 50, 5
_LOOK_SECONDS = 0.01


def cost_of_one(arm: LogArm, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Milliseconds of the join for one more signal, at each size; batches of 50 about one answer."""
    result = {}
    with a_world(arm) as world:
        worker = Worker(
            EpisodesHandler(load_tasks(load_settings(world.settings.home).tasks)), world.database, world.log
        )
        for size in sizes:
            about = an_answer(size)
            world.append([answer_message(about)])
            world.append([signal_message(said) for said in signals_about(about, size)])
            filled = _drain(worker, size + 1)
            samples = []
            for turn in range(_TIMES):
                world.append([signal_message(said) for said in signals_about(about, _BATCH, size + turn * _BATCH)])
                samples.append(_drain(worker, _BATCH) * 1000 / _BATCH)
            cost = summarise(samples)
            result[str(size)] = {"ms_per_signal": cost, "seconds_to_fill": filled}
            print(f"{arm.name}, {size:,} signals about the answer: {cost['median']:.3f} ms")
        _check(world)
    return result


def _drain(worker: Worker[Any], num: int) -> float:
    """Step until so many records were handled; returns the seconds of the steps that found some."""
    seconds = 0.0
    while num > 0:
        started = time.perf_counter()
        found = worker.step(_LOOK_SECONDS)
        seconds += time.perf_counter() - started if found else 0.0
        num -= found
    return seconds


def _check(world: LogWorld) -> None:
    with world.database.snapshot() as connection:
        counts = signal_counts(connection).states
    print(f"  states: { ({name: num for name, num in counts.items() if num}) }")
