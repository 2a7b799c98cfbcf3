"""A home with the real database, log and weight store, a release that accepts everything, and crashes on demand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import Unavailable
from contracts.faults import FaultPoint, no_fault
from contracts.outbox import message
from contracts.records import Experience, Outcome, decode
from contracts.settings import Settings
from contracts.topics import EXPERIENCES, OUTCOMES
from contracts.weights.manifest import Manifest
from contracts.weights.publish import publish_version
from contracts.weights.store import FolderWeightStore
from pipelines.training.learner import Learner
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Trainer
from policy.weights import tensors_of
from tests.databases import write_migrated
from tests.unit.pipelines.training.builders import random_experience, tiny_model

NOW = 2000.0
POLICY = "tiny"


class CrashError(Exception):
    """Stands for kill -9."""


class CrashAt:
    """Dies at the nth fault point."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.place = ""

    def __call__(self, place: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.place = place
            raise CrashError(place)


class World:
    def __init__(self, home: Path, **training: Any) -> None:
        torch.set_num_threads(1)
        self.settings = Settings(home=home, run="test", policy=POLICY, base="none", tasks=(Path("none"),))
        defaults = {
            "batch_size": 4,
            "max_wait_seconds": 0.0,
            "publish_samples": 8,
            "publish_seconds": 1e9,
            "checkpoint_seconds": 1e9,
            "checkpoint_keep": 3,
            "learning_rate": 1e-2,
        }
        self.training = TrainingSettings(**(defaults | training))
        self.now = NOW
        self.database = self.settings.database()
        self.log = self.settings.event_log()
        self.store = FolderWeightStore(self.settings.weights)

    @classmethod
    def new(cls, home: Path, **training: Any) -> "World":
        world = cls(home, **training)
        write_migrated(home / "millrace.db")
        publish_version(
            world.store, policy=POLICY, run="test", version=0, parent=None, base=None, target=tensors_of(tiny_model()),
            step=0, epoch=0, num_samples=0, created_at=0.0,
        )  # fmt: skip
        world.point(LIVE, 0)
        return world

    def close(self) -> None:
        self.database.close()
        self.log.close()

    def start(self, fault: FaultPoint = no_fault) -> Trainer:
        return Trainer(
            Learner(tiny_model(), self.training),
            settings=self.settings,
            training=self.training,
            database=self.database,
            event_log=self.log,
            store=self.store,
            clock=lambda: self.now,
            fault=fault,
        )

    def add(self, *experiences: Experience) -> None:
        self.log.append([message(EXPERIENCES, item.key, item) for item in experiences])

    def add_random(self, count: int, seed: int = 0, **changes: Any) -> list[Experience]:
        random = np.random.default_rng(seed)
        experiences = [random_experience(random, **changes) for _ in range(count)]
        self.add(*experiences)
        return experiences

    def point(self, arm: str, version: int | None) -> None:
        with self.database.transaction() as connection:
            held = assignments.read(connection, POLICY).get(arm)
            assignments.move(
                connection, policy=POLICY, arm=arm, version=version, writer="test", reason="",
                expected_epoch=held.epoch if held else 0,
            )  # fmt: skip

    def arm(self, arm: str) -> int | None:
        with self.database.snapshot() as connection:
            held = assignments.read(connection, POLICY).get(arm)
        return held.version if held else None

    def accept(self) -> None:
        """What release does with a good candidate."""
        if (version := self.arm(CANDIDATE)) is not None:
            self.point(CANDIDATE, None)
            self.point(LIVE, version)

    def roll_back_to(self, version: int) -> None:
        self.point(TRAINING, version)

    def turns(self, trainer: Trainer, count: int) -> None:
        for _ in range(count):
            trainer.turn()
            self.accept()

    def outcomes(self) -> list[Outcome]:
        return [
            decode(Outcome, record.value)
            for partition in range(self.log.num_partitions)
            for record in self.log.read(OUTCOMES, partition, 0, 100_000)
        ]

    def ledger(self) -> dict[str, tuple[str, str, int | None]]:
        """Rule 2 of decision 0001: what the newest epoch does not repeat is void."""
        outcomes = self.outcomes()
        newest = max(outcome.epoch for outcome in outcomes)
        return {
            outcome.key: (outcome.state, outcome.reason, outcome.version)
            for outcome in sorted(outcomes, key=lambda outcome: outcome.revision)
            if outcome.epoch == newest and outcome.state not in {"late", "epoch_started"}
        }


def survive(world: World, run: Callable[[Trainer], None], fault: FaultPoint) -> Trainer:
    """Start and run; after the one crash, start and run again."""
    try:
        trainer = world.start(fault)
        run(trainer)
    except CrashError:
        trainer = world.start()
        run(trainer)
    return trainer


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer._learner.capture(trainer.state, None).weights


class AwayStore(FolderWeightStore):
    """A weight store that can be away for writing, as an object store can."""

    is_away = False
    num_refused = 0

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        if self.is_away:
            self.num_refused += 1
            raise Unavailable("the weight store does not answer")
        super().publish(manifest, payload)
