"""The process `training` after it got the lease: load the model, and learn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog
import torch

from contracts.faults import FaultPoint, no_fault
from contracts.tasks.loading import load_tasks
from engines.card_users import WaitingUsers, budget_seconds
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.recovery import Recovery
from pipelines.training.learning.device import check_card
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.short_batches import keep_short
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.learning.users_first import UsersFirst
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.lost_positions import described
from pipelines.training.samples.reading import ExperienceReader
from pipelines.training.saving import Saver, Settling
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.hands import dismiss, follow
from pipelines.training.shards.making import make_share
from pipelines.training.shards.parts import OwnPart, publishing_beside
from pipelines.training.shards.trainee import GroupTrainee
from pipelines.training.shards.whole import ShardedModel
from pipelines.training.state import BASE_VERSION
from pipelines.training.steps import Steps
from pipelines.training.surroundings import Surroundings, retried
from pipelines.training.versions.publisher import Publisher
from pipelines.training.versions.publishing import Publishing
from pipelines.training.worker import Trainer
from runtime.operations import WeightStoreMetrics
from runtime.settings import load_section
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of, signer_of
from weights.warm_up import warm_up

if TYPE_CHECKING:
    import threading

    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.samples.lost_positions import SkipTo
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.parts import PartsOfAll
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings
    from weights.stores.store import WeightStore

_BEGIN = b"begin"

log = structlog.get_logger()


def learn(
    settings: Settings, database: Database, lease: Lease, stop: threading.Event, group: Group | None = None
) -> None:
    """Learn until `stop` is set. `group`: with its other ranks, which end then."""
    with background_threads() as background:
        trainer = make_trainer(settings, database, lease, stop, background, group=group)
        if trainer is not None:
            trainer.run(stop)
    if trainer is not None and group is not None:  # the last version may need the other ranks until now
        dismiss(group)


def lend_hands(settings: Settings, group: Group) -> None:
    """Compute what rank 0 of the group asks, until it trains no more. Raises StepsBroken: the group is at its end."""
    training = _training_of(settings, group)
    group.receive()  # rank 0 may wait for its lease, and for servers
    check_card(torch.device(settings.device))
    share = make_share(settings.base, training, settings.device, group)
    if not isinstance(share, ShardedModel):
        follow(share, group)
        return
    warm_up()
    store = open_weight_store(settings, publishes=True, measures=WeightStoreMetrics())
    with publishing_beside(OwnPart(share.files, store, group.rank, group.world), group):
        follow(share, group)


def skip(
    settings: Settings,
    database: Database,
    lease: Lease,
    stop: threading.Event,
    where: SkipTo,
    *,
    group: Group | None = None,
) -> None:
    """Skip records that the log no longer holds (`earliest`), or all unread records (`now`), and print them."""
    with background_threads() as background:
        trainer = make_trainer(settings, database, lease, stop, background, group=group)
        skipped = retried(stop, lambda: trainer.skip(where)) if trainer else None
    for item in skipped or ():
        print(f"skipped: {described(item)}")  # noqa: T201 the purpose of the command
    if skipped is not None:
        print(  # noqa: T201 as above
            "samples that can no longer be read are stale(position_lost); start the trainer as usual"
            if skipped
            else "the log holds every position: nothing was skipped"
        )
    if group is not None:
        dismiss(group)


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
    training: TrainingSettings | None = None,
    fault: FaultPoint = no_fault,
    group: Group | None = None,
) -> Trainer | None:
    """A trainer, as soon as every server answers; None if `stop` is set first.

    `training`: None: as the home says. `fault`: see `contracts.faults`. `group`: this process is its rank 0.
    """
    training = _training_of(settings, group, training)
    warm_up()
    store = open_weight_store(settings, publishes=True, measures=WeightStoreMetrics())
    trainee = retried(stop, lambda: _trainee_of(settings, training, store, lease.policy, group))
    if trainee is None:
        return None
    learner = Learner(trainee, training)
    keys = signer_of(settings), keyring_of(settings)
    around = Surroundings(settings, training, database, lease, settings.event_log(), store, *keys, fault=fault)
    if (seconds := budget_seconds(settings)) is not None:
        users = learner.trainee.users = UsersFirst(WaitingUsers(settings).num, stop, learner.trainee.device)
    parts = trainee.publishes(store, around.signer, stop) if isinstance(trainee, GroupTrainee) else None
    trainer = retried(stop, lambda: compose(learner, around, background, parts))
    if trainer is not None and seconds is not None:
        keep_short(learner, users, seconds)  # after the journal's steps, which are taken as they were
    return trainer


def _training_of(settings: Settings, group: Group | None, training: TrainingSettings | None = None) -> TrainingSettings:
    training = training or load_section(settings.home, "training", TrainingSettings)
    if group is not None and training.adapter is None and training.mismatch_samples:
        log.warning("the mismatch of versions is not measured: no rank holds a whole model")
        training = training.model_copy(update={"mismatch_samples": 0})
    torch.set_num_threads(training.num_threads)
    return training.for_tasks(load_tasks(settings.tasks).values())


def _trainee_of(
    settings: Settings, training: TrainingSettings, store: WeightStore, policy: str, group: Group | None
) -> Trainee:
    check_card(torch.device(settings.device))
    if group is None:
        return make_trainee(settings.base, training, settings.device, store.load(policy, BASE_VERSION))
    root = store.manifest(policy, BASE_VERSION).target_root
    group.send(_BEGIN)
    return GroupTrainee(make_share(settings.base, training, settings.device, group, root), group)


def compose(
    learner: Learner,
    around: Surroundings,
    background: tuple[Executor, Executor],
    parts: PartsOfAll | None = None,
) -> Trainer:
    """Restore the newest checkpoint, or the live version if all are lost.

    `learner` holds the base policy. The executors of `background` save and publish: each has one
    thread, or runs calls at once. Raises WeightsRefused: the checkpoints are lost, and there is no live version to
    continue from. Unavailable: a server is away.
    """
    settings, training = around.settings, around.training
    saving, publishing = background
    fence = CheckpointFence(around.lease, around.database)
    checkpoints = CheckpointStore(settings.checkpoints, training.checkpoint_keep, around.fault, fence=fence)
    publisher = Publisher(
        settings, around.database, around.store, lease=around.lease, fault=around.fault, signer=around.signer,
        keyring=around.keyring, keep_anchors=training.keep_anchors, clock=around.clock,
        publish_parts=None if parts is None else parts.publish,
    )  # fmt: skip
    journal = Journal(settings.checkpoints, around.fault)
    recovery = Recovery(around, learner, checkpoints, journal, publisher)
    restored = recovery.restore()
    intake = Intake(restored.state)
    steps = Steps(around, restored, intake, recovery)
    saver = Saver(learner, checkpoints, saving, around.monotonic, journal)
    settling = Settling(around, intake, steps, saver, publisher)
    reader = ExperienceReader(around, intake, lambda: steps.num_missing, steps.read)
    restored = restored._replace(unfinished=None, taught=())  # batches and a plan that only `steps` needed
    return Trainer(around, restored, intake, reader, steps, settling, recovery, Publishing(publisher, publishing))
