"""The process `training` after it got the lease: load the model, and learn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from contracts.faults import FaultPoint, no_fault
from contracts.tasks.loading import load_tasks
from pipelines.training.learning.learner import Learner
from pipelines.training.samples.lost_positions import described
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import BASE_VERSION
from pipelines.training.waiting import retried
from pipelines.training.worker import Trainer
from policy.load import load_model
from policy.weights import copy_tensors
from runtime.settings import load_section
from runtime.weight_metrics import WeightStoreMetrics
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of, signer_of
from weights.warm_up import warm_up

if TYPE_CHECKING:
    import threading

    from pipelines.training.samples.lost_positions import SkipTo
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings


def learn(settings: Settings, database: Database, lease: Lease, stop: threading.Event) -> None:
    """Learn until `stop` is set."""
    with background_threads() as background:
        trainer = make_trainer(settings, database, lease, stop, background)
        if trainer is not None:
            trainer.run(stop)


def skip(settings: Settings, database: Database, lease: Lease, stop: threading.Event, where: SkipTo) -> None:
    """Skip records that the log no longer holds (`earliest`), or all unread records (`now`), and print them."""
    with background_threads() as background:
        trainer = make_trainer(settings, database, lease, stop, background)
        skipped = retried(stop, lambda: trainer.skip(where)) if trainer else None
    for item in skipped or ():
        print(f"skipped: {described(item)}")  # noqa: T201 the purpose of the command
    if skipped is not None:
        print(  # noqa: T201 as above
            "samples that can no longer be read are stale(position_lost); start the trainer as usual"
            if skipped
            else "the log holds every position: nothing was skipped"
        )


@contextmanager
def background_threads() -> Iterator[tuple[Executor, Executor]]:
    """A thread that saves and one that publishes. At the end their calls have ended: the lease is not released before."""
    with ThreadPoolExecutor(1, "saving") as saving, ThreadPoolExecutor(1, "publishing") as publishing:
        yield saving, publishing


def make_trainer(
    settings: Settings,
    database: Database,
    lease: Lease,
    stop: threading.Event,
    background: tuple[Executor, Executor],
    *,
    fault: FaultPoint = no_fault,
) -> Trainer | None:
    """A trainer, as soon as every server answers; None if `stop` is set first. `fault`: see `contracts.faults`."""
    tasks = load_tasks(settings.tasks)
    training = load_section(settings.home, "training", TrainingSettings).for_tasks(tasks.values())
    torch.set_num_threads(training.num_threads)
    warm_up()
    store = open_weight_store(settings, publishes=True, measures=WeightStoreMetrics())
    model = load_model(settings.base, device=settings.device, dtype=torch.float32)
    # The published bits define the base policy too, even if its files have more precision.
    base = retried(stop, lambda: store.load(lease.policy, BASE_VERSION))
    if base is None:
        return None
    copy_tensors(model, base)
    learner, event_log = Learner(model, training, settings.device), settings.event_log()
    return retried(
        stop,
        lambda: Trainer(
            learner,
            settings=settings,
            training=training,
            database=database,
            lease=lease,
            event_log=event_log,
            store=store,
            signer=signer_of(settings),
            keyring=keyring_of(settings),
            saving=background[0],
            publishing=background[1],
            fault=fault,
        ),
    )
