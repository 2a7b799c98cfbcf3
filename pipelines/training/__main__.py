"""The process `training`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from contracts.lease import Lease
from contracts.settings import load_section, load_settings
from contracts.tasks.loading import load_tasks
from contracts.weights.key_files import keyring_of, signer_of
from contracts.weights.store import open_weight_store
from contracts.weights.warm_up import warm_up
from pipelines.training.checkpoint_names import highest_epoch
from pipelines.training.learner import Learner
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import BASE_VERSION
from pipelines.training.worker import Trainer
from policy.load import load_model
from policy.weights import copy_tensors

if TYPE_CHECKING:
    import threading
    from pathlib import Path


def main(home: Path, stop: threading.Event) -> None:
    """Learn until `stop` is set."""
    settings = load_settings(home)
    training = load_section(home, "training", TrainingSettings).for_tasks(load_tasks(settings.tasks).values())
    # First of all, so that a second trainer hears within seconds that there is one already.
    database = settings.database()
    floor = highest_epoch(settings.checkpoints)
    lease = Lease.acquire(database, settings.policy, floor=floor)
    torch.set_num_threads(training.num_threads)
    warm_up()
    store = open_weight_store(settings)
    model = load_model(settings.base, device=settings.device, dtype=torch.float32)
    # The base policy is its published bits too, also where its files hold more precision.
    copy_tensors(model, store.load(settings.policy, BASE_VERSION))
    with lease.kept_alive():
        Trainer(
            Learner(model, training, settings.device),
            settings=settings,
            training=training,
            database=database,
            lease=lease,
            event_log=settings.event_log(),
            store=store,
            signer=signer_of(settings),
            keyring=keyring_of(settings),
        ).run(stop)
