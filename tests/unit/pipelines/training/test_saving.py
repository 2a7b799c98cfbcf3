"""Checkpoints that are written while steps go on."""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import Unavailable
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import MANIFEST, MOMENTS, WEIGHTS
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.learning.learner import Learner
from pipelines.training.saving import TIME_SHARE, Saver
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import Fate, TrainerState
from tests.executors import AtOnce
from tests.unit.pipelines.training.builders import (
    a_learner,
    bits_now,
    captured,
    newest_in,
    random_experience,
    tiny_model,
)
from tests.unit.pipelines.training.checkpoints.test_journal import room_for
from tests.unit.pipelines.training.world import Gate
from tests.unit.weights.examples import same

PLACES = ["samples", WEIGHTS, MOMENTS, "state.json", "samples.mark", MANIFEST]


@pytest.fixture
def learner() -> Learner:
    learner = a_learner(
        tiny_model(),
        TrainingSettings(learning_rate=1e-2, mismatch_samples=0, divergence_bound=math.inf, step_bound=math.inf),
    )
    step(learner, 0)
    return learner


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def step(learner: Learner, seed: int) -> None:
    random = np.random.default_rng(seed)
    learner.step([random_experience(random) for _ in range(4)], [1.0] * 4, {})


def begin(saver: Saver, state: TrainerState, version: int | None = None) -> None:
    saver.begin(state, version, {0}, with_bits=version is not None)


def a_state() -> TrainerState:
    return TrainerState(epoch=1, fates={"a": Fate(1, "trained")})


@pytest.mark.parametrize("place", PLACES)
def test_a_save_holds_the_weights_of_its_step_whatever_steps_are_taken_meanwhile(
    tmp_path: Path, learner: Learner, threads: ThreadPoolExecutor, place: str
) -> None:
    gate, state = Gate(f"checkpoint: before {place}"), a_state()
    store = CheckpointStore(tmp_path, 2, gate)
    saver = Saver(learner, store, threads, lambda: 0.0, Journal(tmp_path), copied_share=1.0)
    expected, bits = captured(learner), bits_now(learner)
    begin(saver, state, version=7)
    assert gate.reached.wait(60)
    for seed in (1, 2):
        step(learner, seed)
    state.fates["b"] = Fate(1, "stale", "age")
    assert saver.finished(wait=False) is None
    gate.open.set()
    saved = saver.finished(wait=True)

    assert saved is not None
    assert saved.bits is not None
    assert same(saved.bits, bits)
    found = CheckpointStore(tmp_path, 2).load(saved.name)
    for held, wanted in ((found.weights, expected.weights), (found.optimizer, expected.optimizer)):
        assert held.keys() == wanted.keys()
        assert all(torch.equal(held[name], tensor) for name, tensor in wanted.items())
    assert dict(found.state.fates) == {"a": Fate(1, "trained")}
    assert set(state.fates) == {"a", "b"}, "the new one is in the next save"
    begin(saver, state)
    later = saver.finished(wait=True)
    assert later is not None
    assert set(CheckpointStore(tmp_path, 2).load(later.name).state.fates) == {"a", "b"}


@pytest.mark.parametrize("place", PLACES)
def test_a_disk_that_fills_up_meanwhile_costs_only_that_save(
    tmp_path: Path, learner: Learner, threads: ThreadPoolExecutor, place: str
) -> None:
    state = a_state()
    first = CheckpointStore(tmp_path, 2).save(captured(learner, state))
    gate = Gate(f"checkpoint: before {place}", Unavailable("no space left"))
    store = CheckpointStore(tmp_path, 2, gate)
    saver = Saver(learner, store, threads, lambda: 0.0, Journal(tmp_path), copied_share=1.0)
    state.fates["b"] = Fate(1, "stale", "age")
    begin(saver, state)
    assert gate.reached.wait(60)
    step(learner, 1)
    gate.open.set()
    with pytest.raises(Unavailable):
        saver.finished(wait=True)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [first]
    step(learner, 2)  # waits for nobody
    expected = captured(learner)
    begin(saver, state)
    assert saver.finished(wait=True) is not None
    found = newest_in(tmp_path)
    assert set(found.state.fates) == {"a", "b"}
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())


def test_a_disk_that_is_full_when_a_save_begins_costs_only_that_save(tmp_path: Path, learner: Learner) -> None:
    state, store = a_state(), CheckpointStore(tmp_path, keep=2)
    saver = Saver(learner, store, AtOnce(), lambda: 0.0, Journal(tmp_path))
    with room_for(10), pytest.raises(Unavailable):
        begin(saver, state)
    assert store.names() == []
    step(learner, 1)  # waits for nobody
    begin(saver, state)
    saved = saver.finished(wait=True)
    assert saved is not None
    assert dict(store.load(saved.name).state.fates) == {"a": Fate(1, "trained")}


def inodes(folder: Path) -> tuple[int, int]:
    return (folder / WEIGHTS).stat().st_ino, (folder / MOMENTS).stat().st_ino


def test_weights_that_a_checkpoint_has_are_not_written_again(tmp_path: Path, learner: Learner) -> None:
    store, state = CheckpointStore(tmp_path, keep=9), a_state()
    saver = Saver(learner, store, AtOnce(), lambda: 0.0, Journal(tmp_path))

    def saved() -> Path:
        begin(saver, state)
        found = saver.finished(wait=True)
        assert found is not None
        return tmp_path / found.name

    first, second = saved(), saved()
    assert inodes(first) == inodes(second)
    step(learner, 1)
    third = saved()
    assert set(inodes(third)).isdisjoint(inodes(first))
    learner.restore(store.load(first.name))
    fourth = saved()
    assert inodes(fourth) == inodes(first)
    (fourth / WEIGHTS).unlink()
    fifth = saved()
    assert set(inodes(fifth)).isdisjoint(inodes(first)), "they are written again if the files are gone"
    for folder in (first, second, third, fifth):
        store.load(folder.name)
    learner.restart_from(bits_now(learner))()
    assert set(inodes(saved())).isdisjoint(inodes(fifth)), "published bits have no moments"


def test_the_pause_keeps_the_cost_within_its_share_of_time(
    tmp_path: Path, learner: Learner, threads: ThreadPoolExecutor
) -> None:
    seconds = itertools.count()
    gate, state = Gate("checkpoint: before state.json"), a_state()
    store = CheckpointStore(tmp_path, 2, gate)
    # Every look at the clock is a second later: what is measured costs a second each time.
    saver = Saver(learner, store, threads, lambda: float(next(seconds)), Journal(tmp_path), copied_share=1.0)
    assert saver.pause == 0.0
    begin(saver, state)
    assert gate.reached.wait(60)
    for seed in (1, 2):
        step(learner, seed)
    gate.open.set()
    assert saver.finished(wait=True) is not None
    assert saver.pause == pytest.approx((1.0 + 2.0) / TIME_SHARE)
    step(learner, 3)
    begin(saver, state)
    assert saver.finished(wait=True) is not None
    assert saver.pause == pytest.approx((3.0 + 1.0) / 2 / TIME_SHARE)
    begin(saver, state)
    assert saver.finished(wait=True) is not None
    assert saver.pause == pytest.approx((3.0 + 1.0) / 2 / TIME_SHARE), "a save without tensors says nothing about them"
