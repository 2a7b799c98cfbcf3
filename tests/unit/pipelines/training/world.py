"""A home with the real database, log and weight store, a release that accepts everything, and crashes on demand."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import Unavailable
from contracts.faults import FaultPoint, no_fault
from contracts.records import Experience, Outcome, decode
from contracts.revocations import Treatment
from contracts.rollback import roll_back
from contracts.tables import verdict
from contracts.tables.statements import insert_new
from contracts.topics import EXPERIENCES, OUTCOMES
from contracts.version_history import stored_parents
from pipelines.episodes.epochs.chain import Epochs, EpochStart, best, valid_through
from pipelines.training.checkpoints.checkpoint_names import highest_epoch
from pipelines.training.learning.learner import Learner
from pipelines.training.process import compose
from pipelines.training.settings import TrainingSettings
from pipelines.training.surroundings import Surroundings
from pipelines.training.worker import Trainer
from policy.weights import tensors_of
from runtime.lease import Lease
from runtime.log.outbox import message
from runtime.settings import Settings
from tests.databases import write_migrated
from tests.executors import AtOnce
from tests.unit.pipelines.training.builders import a_learner, captured, random_experience, tiny_model
from tests.worlds.servers.leases import a_lease
from weights.publish import publish_version
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.versions.manifest import Manifest
from weights.versions.signing import Keyring, Signer

T = TypeVar("T")

NOW = 2000.0
POLICY = "tiny"


def a_home(**training: Any) -> pytest.MarkDecorator:
    """Of a test whose `world` has these settings."""
    return pytest.mark.parametrize("world", [training], indirect=True, ids=["home"])


class CrashError(Exception):
    """Stands for kill -9."""


class CrashAt:
    """Crashes at the nth fault point. `places`: those that it came to, in order."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.place = ""
        self.places: list[str] = []

    def __call__(self, place: str) -> None:
        self.left -= 1
        self.places.append(place)
        if self.left == 0:
            self.place = place
            raise CrashError(place)


class Gate:
    """Stops a background thread at a place until a test opens it; there it may raise."""

    def __init__(self, place: str, error: Exception | None = None, *, is_armed: bool = True) -> None:
        self._place, self._error = place, error
        self.reached, self.open = threading.Event(), threading.Event()
        self.is_armed = is_armed

    def __call__(self, place: str) -> None:
        is_there = self.is_armed and place == self._place and threading.current_thread() != threading.main_thread()
        if is_there and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(60)
            if self._error is not None:
                raise self._error


def first_and_last(places: Sequence[str]) -> list[int]:
    """Numbers of fault points, counted from 1: where each place is come to for the first time and for the last.

    Between the two a story repeats itself: another step, another version.
    """
    found: dict[str, list[int]] = {}
    for number, place in enumerate(places, 1):
        found.setdefault(place, []).append(number)
    return sorted({number for numbers in found.values() for number in (numbers[0], numbers[-1])})


def some(items: Sequence[T], share: int = 3) -> list[T]:
    """The first, the last, and one of `share` of the others, which are drawn anew in each run."""
    between = SystemRandom().sample(range(1, len(items) - 1), len(items) // share)
    return [items[0], *(items[number] for number in sorted(between)), items[-1]]


@contextmanager
def named(item: object) -> Iterator[None]:
    """A failure inside says at which of many it was: that one alone repeats it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"this was at {item!r}")
        raise


class World:
    make_model: Callable[[], Any] = staticmethod(tiny_model)
    """Makes the model that a trainer starts with."""
    device = "cpu"

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
            "horizon_seconds": 604800.0,
            "divergence_bound": math.inf,
            "step_bound": math.inf,  # the logged log-probs of random samples are random
        }
        self.training = TrainingSettings(**(defaults | training))
        self.now = NOW
        self.wall_jump = 0.0
        """Seconds by which the machine's clock was set, apart from the time that passed."""
        self.database = self.settings.database()
        self.log = self.settings.event_log()
        self.store = open_store_at(self.settings.weights)
        self.signer: Signer | None = None
        self.keyring: Keyring | None = None
        self.saving: Executor = AtOnce()
        self.publishing: Executor = AtOnce()

    @classmethod
    def new(cls, home: Path, **training: Any) -> "World":
        world = cls(home, **training)
        write_migrated(home / "millrace.db")
        publish_version(
            world.store, policy=POLICY, run="test", version=0, parent=None, base=None, target=tensors_of(tiny_model()),
            step=0, epoch=0, num_samples=0, created_at=0.0, signer=world.signer,
        )  # fmt: skip
        world.point(LIVE, 0)
        return world

    def close(self) -> None:
        self.database.close()
        self.log.close()

    def start(self, fault: FaultPoint = no_fault) -> Trainer:
        trainer = self.make(fault)
        trainer.begin()
        return trainer

    def make(self, fault: FaultPoint = no_fault) -> Trainer:
        """A trainer that has restored its state and not begun an epoch."""
        around = Surroundings(
            self.settings, self.training, self.database, self.lease(), self.log, self.store, self.signer, self.keyring,
            clock=lambda: self.now + self.wall_jump, monotonic=lambda: self.now, fault=fault,
        )  # fmt: skip
        return compose(self.make_learner(), around, (self.saving, self.publishing))

    def make_learner(self) -> Learner:
        return a_learner(self.make_model(), self.training, self.device)

    def lease(self) -> Lease:
        """The lease of the next trainer; the previous one counts as dead."""
        return a_lease(self.database, POLICY, highest_epoch(self.settings.checkpoints))

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
        """Accept the candidate as release does."""
        if (version := self.arm(CANDIDATE)) is not None:
            self.point(CANDIDATE, None)
            self.point(LIVE, version)

    def roll_back_to(self, version: int) -> None:
        """Roll back as release does after several refusals: nothing is revoked."""
        self.point(TRAINING, version)

    def revoke_down_to(self, version: int, treatment: Treatment = "poison", **options: Any) -> None:
        """Revoke versions as an operator does."""
        with self.database.transaction() as connection:
            accepted = [{"policy": POLICY, "version": number, "accepted": True, "reason": "", "details": {}, "at": 0.0}
                        for number in self.store.versions(POLICY)]  # fmt: skip
            for row in accepted:
                insert_new(connection, verdict, row)
            roll_back(
                connection, policy=POLICY, writer="ann", reason="complaints", to=version, treatment=treatment,
                parents=stored_parents(self.store, POLICY, 0), **options,
            )  # fmt: skip

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
        """Rule 2 of decision 0001: the last valid outcome of the trainer per key; withdrawn ones do not count."""
        outcomes = [each for outcome in self.outcomes() for each in outcome.each()]
        started = [outcome for outcome in outcomes if outcome.state == "epoch_started"]
        epochs = Epochs(valid_through(EpochStart(item.epoch, item.previous, item.kept_sequence) for item in started))
        told: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.key:
                told.setdefault(outcome.key, []).append(outcome)
        found = {key: best(items, epochs, 0) for key, items in told.items()}
        return {
            key: (item.state, item.reason, item.version)
            for key, item in found.items()
            if item is not None and item.state != "pending"
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


def states(world: World) -> Counter[tuple[str, str]]:
    """State and reason of the samples in the ledger."""
    return Counter((state, reason) for state, reason, _ in world.ledger().values())


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(captured(trainer.learner, trainer.state).weights)


class AwayStore(WeightStore):
    """A weight store that can be away for writing, as an object store can."""

    is_away = False
    num_refused = 0

    def publish(self, manifest: Manifest, payload: bytes | None = None) -> None:
        if self.is_away:
            self.num_refused += 1
            raise Unavailable("the weight store does not answer")
        super().publish(manifest, payload)
