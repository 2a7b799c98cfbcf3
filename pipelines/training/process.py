"""What the process `training` does once it may: load the model, and learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from contracts.settings import load_section
from contracts.tasks.loading import load_tasks
from contracts.weights.key_files import keyring_of, signer_of
from contracts.weights.store import open_weight_store
from contracts.weights.warm_up import warm_up
from pipelines.training.learner import Learner
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import BASE_VERSION
from pipelines.training.worker import Trainer
from policy.load import load_model
from policy.weights import copy_tensors

if TYPE_CHECKING:
    import threading

    from contracts.database import Database
    from contracts.lease import Lease
    from contracts.settings import Settings


def learn(settings: Settings, database: Database, lease: Lease, stop: threading.Event) -> None:
    """Learn until `stop` is set."""
    tasks = load_tasks(settings.tasks)
    training = load_section(settings.home, "training", TrainingSettings).for_tasks(tasks.values())
    torch.set_num_threads(training.num_threads)
    warm_up()
    store = open_weight_store(settings)
    model = load_model(settings.base, device=settings.device, dtype=torch.float32)
    # The base policy is its published bits too, also where its files hold more precision.
    copy_tensors(model, store.load(settings.policy, BASE_VERSION))
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
