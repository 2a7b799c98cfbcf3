"""Several processes that are the ranks of one trainer, and what a learner finds with them."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]  # its stub forgets it

from contracts.records import Experience
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.trainee import Trainee
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.group import Group
from pipelines.training.shards.hands import follow
from pipelines.training.shards.making import make_share
from pipelines.training.shards.trainee import GroupTrainee
from tests.unit.pipelines.training.builders import random_experience

DEADLINE = 20.0

Work = Callable[..., Any]


class Ranks:
    """Processes that stay; each call of `run` is another group of them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._pool = ProcessPoolExecutor(world, multiprocessing.get_context("spawn"))

    def run(self, work: Work, *arguments: Any, deadline: float = DEADLINE) -> list[Any]:
        """What `work(group, *arguments)` returned in each rank, or the exception that it raised."""
        with tempfile.TemporaryDirectory() as folder:
            store = f"{folder}/store"
            started = [
                self._pool.submit(_in_group, (store, rank, self._world, deadline), work, arguments)
                for rank in range(self._world)
            ]
            return [each.exception() or each.result() for each in started]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _in_group(place: tuple[str, int, int, float], work: Work, arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    with group_of(*place) as group:
        return work(group, *arguments)


@contextmanager
def group_of(store: str, rank: int = 0, world: int = 1, deadline: float = DEADLINE) -> Iterator[Group]:
    """A group whose store is a new file."""
    group = Group(FileStore(store, world), rank, world, deadline=deadline)
    try:
        yield group
    finally:
        group.close()


def learned(group: Group, base: str, settings: TrainingSettings, num_steps: int) -> list[dict[str, Any]]:
    """The figures of some steps, on rank 0; the others are its hands."""
    if group.rank:
        follow(make_share(base, settings, "cpu", group), group)
        return []
    trainee = GroupTrainee(make_share(base, settings, "cpu", group), group)
    found = steps(trainee, settings, num_steps)
    trainee.close()
    return found


def steps(trainee: Trainee, settings: TrainingSettings, num_steps: int) -> list[dict[str, Any]]:
    """The figures of some steps over the same samples as always. Some have a single row."""
    learner, random = Learner(trainee, settings), np.random.default_rng(1)
    found = []
    for number in range(num_steps):
        items = samples(random, 8 if number % 7 else 1)
        result = learner.step(items, [1.0] * len(items), {0: None})
        found.append({name: result.metrics[name] for name in ("loss", "gradient_norm")} | {"skipped": result.skipped})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it was made


def samples(random: np.random.Generator, count: int) -> list[Experience]:
    """Random rows, half of them with a reward."""
    return [random_experience(random, reward=float(number % 2)) for number in range(count)]


def saved(model: Any, folder: Path) -> str:
    """A model as the files of a base policy."""
    model.save_pretrained(folder)
    return str(folder)
