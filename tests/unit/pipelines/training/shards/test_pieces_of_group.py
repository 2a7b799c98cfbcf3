"""A group that trains all weights saves and goes on, in as many processes or in others."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import FileStore
from torch.multiprocessing.spawn import spawn

from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.saving import Saver
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.group import Group
from pipelines.training.shards.hands import follow
from pipelines.training.shards.making import make_share
from pipelines.training.shards.trainee import GroupTrainee
from pipelines.training.state import TrainerState
from tests.executors import AtOnce
from tests.unit.pipelines.training.builders import random_experience, tiny_model
from tests.unit.weights.examples import same

SETTINGS = TrainingSettings(
    learning_rate=1e-2, mismatch_samples=0, kl_coefficient=0.0, divergence_bound=math.inf, step_bound=math.inf
)


def step(learner: Learner, number: int) -> None:
    random = np.random.default_rng(number)
    assert learner.step([random_experience(random) for _ in range(4)], [1.0] * 4, {}).skipped == ""


def train(learner: Learner, folder: Path, first: int) -> None:
    """Go on from the newest checkpoint; two steps, a save, and one more step while it is written."""
    store = CheckpointStore(folder, 9)
    found, refused = store.load_newest()
    assert not refused
    if found is not None:
        learner.restore(found)
    for number in (first, first + 1):
        step(learner, number)
    with ThreadPoolExecutor(1) as saving:
        saver = Saver(learner, store, saving, lambda: 0.0, Journal(folder), copied_share=1.0)
        saver.begin(TrainerState(epoch=1, step=first + 2), None, {0}, with_bits=False)
        step(learner, 1000)
        assert saver.finished(wait=True) is not None
    store.close()


def start_again(learner: Learner, folder: Path, first: int) -> None:
    """After steps, go on from the bits of an earlier version, of which only those are left; and save."""
    store = CheckpointStore(folder, 9)
    found, _ = store.load_newest()
    assert found is not None
    bits = learner.trainee.bits_of(found.weights)
    for number in range(first):
        step(learner, number)
    learner.restart_from(bits)()
    saver = Saver(learner, store, AtOnce(), lambda: 0.0, Journal(folder))
    saver.begin(TrainerState(epoch=1, step=9), 9, {9}, with_bits=True)
    saved = saver.finished(wait=True)
    assert saved is not None
    assert saved.bits is not None
    assert same(saved.bits, bits)
    store.close()


def run(rank: int, what: Callable[[Learner, Path, int], None], world: int, folder: Path, first: int) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    store = FileStore(f"{folder}-{first}", world)
    group = Group(store, rank, world, deadline=60.0)
    share = make_share(str(folder.parent / "base"), SETTINGS, "cpu", group)
    if rank:
        follow(share, group)
    else:
        trainee = GroupTrainee(share, group)
        what(Learner(trainee, SETTINGS), folder, first)
        trainee.close()
    group.close()


def trained(home: Path, folder: str, *worlds: int) -> Checkpoint:
    """Train in so many processes, then in so many, and so on; returns the last checkpoint."""
    for number, world in enumerate(worlds):
        if world == 1:
            train(Learner(make_trainee(str(home / "base"), SETTINGS, "cpu"), SETTINGS), home / folder, 2 * number)
        else:
            spawn(run, (train, world, home / folder, 2 * number), nprocs=world)  # type: ignore[no-untyped-call]  # its stub carries no types
    found, refused = CheckpointStore(home / folder, 9).load_newest()
    assert found is not None
    assert not refused
    return found


def difference(one: Checkpoint, other: Checkpoint) -> float:
    pairs = ((one.weights, other.weights), (one.optimizer, other.optimizer))
    assert all(held.keys() == wanted.keys() for held, wanted in pairs)
    return max(float((held[name] - wanted[name]).abs().max()) for held, wanted in pairs for name in wanted)


@pytest.mark.slow
def test_a_group_goes_on_from_its_checkpoint_as_if_it_had_not_ended_and_so_does_another_number(tmp_path: Path) -> None:
    tiny_model(tied=False).save_pretrained(tmp_path / "base")
    alone = trained(tmp_path, "alone", 1, 1)
    pair = trained(tmp_path, "pair", 2, 2)
    again = trained(tmp_path, "again", 2, 2)
    fewer = trained(tmp_path, "fewer", 3, 1)
    more = trained(tmp_path, "more", 1, 3)
    assert difference(pair, again) == 0.0, "the same number of processes: the same bits"
    for found in (pair, fewer, more):
        assert difference(found, alone) < 1e-4


@pytest.mark.slow
def test_a_group_starts_again_from_the_bits_of_a_version(tmp_path: Path) -> None:
    tiny_model(tied=False).save_pretrained(tmp_path / "base")
    before = trained(tmp_path, "home", 1)
    spawn(run, (start_again, 3, tmp_path / "home", 2), nprocs=3)  # type: ignore[no-untyped-call]  # its stub carries no types
    found = CheckpointStore(tmp_path / "home", 9).load_version(9)
    for name, tensor in found.weights.items():
        assert torch.equal(tensor, before.weights[name].bfloat16().float()), name
    assert not any(tensor.any() for tensor in found.optimizer.values()), "the moments are lost"
