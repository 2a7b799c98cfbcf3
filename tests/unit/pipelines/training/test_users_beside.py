"""A trainer whose home shares its device with users: its micro-batches are short, and a restart takes its steps again as they were."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from commands.home import prepare_home
from engines.card_users import GpuSettings
from pipelines.training.learning.short_batches import FEWEST_TOKENS
from pipelines.training.learning.users_first import UsersFirst
from pipelines.training.process import background_threads, make_trainer
from pipelines.training.samples.attempts import survives
from pipelines.training.settings import TrainingSettings
from runtime.lease import Lease
from runtime.settings import Settings
from tests.unit.pipelines.training.world import World, a_home, weights_of
from tests.worlds.paths import BASE, EXAMPLE


@pytest.mark.parametrize(("added_p99_ms", "most"), [(None, 256), (0.001, FEWEST_TOKENS), (1e9, 256)])
def test_a_home_with_a_budget_gets_a_trainer_that_asks(tmp_path: Path, added_p99_ms: float | None, most: int) -> None:
    made = Settings(home=tmp_path, run="r", policy="reservations", base=str(BASE), tasks=(EXAMPLE / "task.toml",))
    gpu = GpuSettings(added_p99_ms=added_p99_ms)
    settings = prepare_home(made, {"training": TrainingSettings(max_tokens=256), "gpu": gpu}).settings
    database = settings.database()
    lease = Lease.acquire(database, settings.policy)
    with background_threads() as background:
        trainer = make_trainer(settings, database, lease, threading.Event(), background)
    assert trainer is not None
    assert (trainer.learner.trainee.users is not None) is (added_p99_ms is not None)
    assert trainer.learner.budget.current == most
    trainer.close()
    database.close()


@a_home(batch_size=4, publish_samples=100)
def test_a_restart_takes_short_micro_batches_again_as_they_were(world: World) -> None:
    trainer = world.start()
    busy = iter([1, 0] * 1000)
    trainer.learner.trainee.users = UsersFirst(lambda: next(busy), threading.Event(), torch.device("cpu"))
    trainer.learner.budget.limit(FEWEST_TOKENS)
    world.add_random(12)
    world.turns(trainer, 3)
    assert trainer.state.step == 3
    again = world.start()
    assert (again.restored.num_steps, again.restored.different) == (3, [])
    assert again.learner.budget.current == FEWEST_TOKENS
    before, after = weights_of(trainer), weights_of(again)
    assert all(torch.equal(before[name], after[name]) for name in before)


@a_home(batch_size=4)
def test_only_a_trainer_that_shares_a_cpu_with_users_has_the_lowest_priority(world: World) -> None:
    usual, stop = os.nice(0), threading.Event()
    stop.set()

    def run(users: UsersFirst | None, priority: int) -> None:
        found = -1
        try:
            trainer = world.start()
            trainer.learner.trainee.users = users
            trainer.run(stop)
            found = os.nice(0)
        finally:
            if found != priority:
                os.abort()

    # In copies of this process: a priority does not come back.
    assert survives(lambda: run(None, usual))
    assert survives(lambda: run(UsersFirst(lambda: 0, stop, torch.device("cpu")), 19))
