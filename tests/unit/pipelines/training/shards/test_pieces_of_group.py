"""A group that trains all weights saves and goes on, in as many processes or in others."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

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
from tests.unit.pipelines.training.shards.ranks import Ranks, Work, saved
from tests.unit.weights.examples import same

pytestmark = pytest.mark.slow
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
    done = saver.finished(wait=True)
    assert done is not None
    assert done.bits is not None
    assert same(done.bits, bits)
    store.close()


def on_rank_0(group: Group, what: Work, base: str, folder: Path, first: int) -> None:
    """Let a learner of all ranks do `what`."""
    share = make_share(base, SETTINGS, "cpu", group)
    if group.rank:
        follow(share, group)
        return
    trainee = GroupTrainee(share, group)
    what(Learner(trainee, SETTINGS), folder, first)
    trainee.close()


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, Ranks]]:
    made = {world: Ranks(world) for world in (2, 3)}
    yield made
    for ranks in made.values():
        ranks.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tiny_model(tied=False), tmp_path_factory.mktemp("base"))


def trained(groups: dict[int, Ranks], base: str, folder: Path, *worlds: int) -> Checkpoint:
    """Train in so many processes, then in so many, and so on; returns the last checkpoint."""
    for number, world in enumerate(worlds):
        if world == 1:
            train(Learner(make_trainee(base, SETTINGS, "cpu"), SETTINGS), folder, 2 * number)
        else:
            assert groups[world].run(on_rank_0, train, base, folder, 2 * number) == [None] * world
    found, refused = CheckpointStore(folder, 9).load_newest()
    assert found is not None
    assert not refused
    return found


def difference(one: Checkpoint, other: Checkpoint) -> float:
    pairs = ((one.weights, other.weights), (one.optimizer, other.optimizer))
    assert all(held.keys() == wanted.keys() for held, wanted in pairs)
    return max(float((held[name] - wanted[name]).abs().max()) for held, wanted in pairs for name in wanted)


def test_a_group_goes_on_from_its_checkpoint_as_if_it_had_not_ended_and_so_does_another_number(
    tmp_path: Path, groups: dict[int, Ranks], base: str
) -> None:
    alone = trained(groups, base, tmp_path / "alone", 1, 1)
    pair = trained(groups, base, tmp_path / "pair", 2, 2)
    again = trained(groups, base, tmp_path / "again", 2, 2)
    fewer = trained(groups, base, tmp_path / "fewer", 3, 1)
    more = trained(groups, base, tmp_path / "more", 1, 3)
    assert difference(pair, again) == 0.0, "the same number of processes: the same bits"
    for found in (pair, fewer, more):
        assert difference(found, alone) < 1e-4


def test_a_group_starts_again_from_the_bits_of_a_version(tmp_path: Path, groups: dict[int, Ranks], base: str) -> None:
    before = trained(groups, base, tmp_path, 1)
    assert groups[3].run(on_rank_0, start_again, base, tmp_path, 2) == [None] * 3
    found = CheckpointStore(tmp_path, 9).load_version(9)
    for name, tensor in found.weights.items():
        assert torch.equal(tensor, before.weights[name].bfloat16().float()), name
    assert not any(tensor.any() for tensor in found.optimizer.values()), "the moments are lost"
