"""The process `training` after it got the lease: load the model, and learn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from contracts import assignments
from contracts.faults import FaultPoint, no_fault
from contracts.tasks.loading import load_tasks
from pipelines.training import repository
from pipelines.training.checkpoints.bundles import bundles_of
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.restoring import Restoring, Rollback
from pipelines.training.checkpoints.saving import Saver
from pipelines.training.clocks import retried, rising, wall_for_ages
from pipelines.training.known.lineage import VersionBranches
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.lost_positions import described
from pipelines.training.samples.reading import ExperienceReader, TrainingLag
from pipelines.training.samples.reporting import OutcomeReporter
from pipelines.training.settings import TrainingSettings
from pipelines.training.settling import Settling
from pipelines.training.state import BASE_VERSION
from pipelines.training.steps import Steps
from pipelines.training.versions.publisher import Publisher
from pipelines.training.versions.publishing import Publishing
from pipelines.training.worker import Trainer
from policy.load import load_model
from policy.weights import copy_tensors
from runtime.log.loss_acceptance import begin_no_later
from runtime.settings import load_section
from runtime.weight_store import WeightStoreMetrics
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of, signer_of
from weights.warm_up import warm_up

if TYPE_CHECKING:
    import threading

    from contracts.assignments import Assignment
    from contracts.event_log import EventLog
    from pipelines.training.samples.lost_positions import SkipTo
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings
    from weights.stores.store import WeightStore
    from weights.tensors import Tensors
    from weights.versions.signing import Keyring, Signer


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
    learner = Learner(WholeModel(model, training, settings.device, base=base), training)
    keys = signer_of(settings), keyring_of(settings)
    around = Surroundings(settings, training, database, lease, settings.event_log(), store, *keys, fault=fault)
    return retried(stop, lambda: compose(learner, base, around, background))


class Surroundings(NamedTuple):
    """What a trainer works with. `clock` gives UTC epoch seconds, `monotonic` seconds for timers."""

    settings: Settings
    training: TrainingSettings
    database: Database
    lease: Lease
    event_log: EventLog
    store: WeightStore
    signer: Signer | None = None
    keyring: Keyring | None = None
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = rising
    fault: FaultPoint = no_fault

    def arms(self) -> dict[str, Assignment]:
        """The assignments of the lease's policy, read now."""
        with self.database.snapshot() as connection:
            return assignments.read(connection, self.lease.policy)


def compose(learner: Learner, base: Tensors, around: Surroundings, background: tuple[Executor, Executor]) -> Trainer:
    """Restore the newest checkpoint, or the live version if all are lost. The lease says which policy is trained.

    `learner` holds the base policy, whose bits are `base`. The executors of `background` save and publish: each has one thread, or runs
    calls at once.

    Raises:
        WeightsRefused: the checkpoints are lost, and there is no live version to continue from.
        Unavailable: a server is away.
    """
    settings, training, database, lease, event_log, store, signer, keyring, clock, monotonic, fault = around
    saving, publishing = background
    fence = CheckpointFence(lease, database)
    checkpoints = CheckpointStore(settings.checkpoints, training.checkpoint_keep, fault, fence=fence)
    publisher = Publisher(
        settings, database, store, base, lease=lease, fault=fault, signer=signer, keyring=keyring,
        keep_anchors=training.keep_anchors, clock=clock,
    )  # fmt: skip
    journal = Journal(settings.checkpoints, fault)
    restored = Restoring(learner, checkpoints, journal, publisher, database, event_log, lease, clock()).restore()
    state = restored.state
    with database.snapshot() as connection:
        begin_no_later(connection, state.positions)
    publisher.adopt()
    with database.snapshot() as connection:
        parents = repository.parents(connection, lease.policy)
    intake = Intake(state)
    rollback = Rollback(
        learner, state, intake, policy=lease.policy, database=database, event_log=event_log, checkpoints=checkpoints,
        publisher=publisher,
    )  # fmt: skip
    branches = VersionBranches(lambda: state.lineage, parents, lambda: rollback.revoked)
    steps = Steps(
        learner, state, intake, home=settings.home, training=training, lease=lease, held=lambda: publisher.held,
        clock=clock, age_clock=wall_for_ages(clock, monotonic), fault=fault, tree=branches.tree, journal=journal,
        bundles=bundles_of(settings.home, settings.checkpoints, settings.base, training, learner.device),
        unfinished=restored.unfinished, replayed=restored.replayed,
    )  # fmt: skip
    lag = TrainingLag(event_log, intake.position, clock=clock, monotonic=monotonic)
    reader = ExperienceReader(
        state, intake, lease, lag, num_missing=lambda: steps.num_missing, was_read=steps.was_read, event_log=event_log,
        database=database, clock=clock, monotonic=monotonic,
    )  # fmt: skip
    settling = Settling(
        state, Saver(learner, checkpoints, saving, monotonic, journal), OutcomeReporter(state, event_log, clock, fault),
        steps=steps, intake=intake, publisher=publisher, arms=around.arms, clock=clock, monotonic=monotonic, fault=fault,
    )  # fmt: skip
    return Trainer(
        home=settings.home, settings=training, database=database, lease=lease, event_log=event_log, learner=learner,
        state=state, intake=intake, reader=reader, steps=steps, settling=settling, rollback=rollback, branches=branches,
        checkpoints=checkpoints, journal=journal, publisher=publisher, publishing=Publishing(publisher, publishing),
        arms=around.arms, clock=clock, monotonic=monotonic, fault=fault, restored=restored.version,
        reported_ordinal=restored.reported_ordinal,
    )  # fmt: skip
