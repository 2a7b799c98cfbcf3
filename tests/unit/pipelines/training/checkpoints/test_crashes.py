"""Crashes between any two durable effects: nothing is lost or trained twice, and the weights are bit-identical."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from contracts.records import Experience, decode
from contracts.topics import EXPERIENCES
from pipelines.training.checkpoints.pieces import LocalRows, PieceWriter
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Masters
from pipelines.training.learning.step_bound import Taken
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Trainer
from tests.executors import Threads
from tests.fakes import everything
from tests.unit.pipelines.training.builders import tiny_model
from tests.unit.pipelines.training.world import CrashAt, World, named, some, survive, weights_of
from weights.rows import rows_of

NUM_SAMPLES = 8
NUM_TURNS = 4
# Two steps make a version, and a smaller third one follows it.
RHYTHM = {"batch_size": 3, "publish_samples": 6}

Ledger = dict[str, tuple[str, str, int | None]]
Straight = tuple[dict[str, torch.Tensor], Ledger, list[str]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template") / "home"
    world = World.new(home)
    world.add_random(NUM_SAMPLES)
    world.close()
    return home


@pytest.fixture(scope="module")
def uninterrupted(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    home = shutil.copytree(template, tmp_path_factory.mktemp("straight") / "home")
    world, counter = World(home, **RHYTHM), CrashAt(10**9)
    trainer = world.start(counter)
    finish(world, trainer)
    weights, ledger = weights_of(trainer), world.ledger()
    world.close()
    return weights, ledger, counter.places


def finish(world: World, trainer: Trainer) -> None:
    world.turns(trainer, NUM_TURNS)
    trainer.checkpoint()


def by_rank(ledger: Ledger) -> Ledger:
    """Compare versions by their order: a number claimed before a crash is never used again."""
    order = sorted({version for _, _, version in ledger.values() if version is not None})
    return {
        key: (state, reason, None if version is None else order.index(version))
        for key, (state, reason, version) in ledger.items()
    }


def trained(*versions: int) -> list[tuple[str, str, int]]:
    return [("trained", "", version) for version in versions]


def test_the_uninterrupted_run_trains_everything_once(uninterrupted: Straight) -> None:
    _, ledger, places = uninterrupted
    assert sorted(ledger.values()) == trained(1, 1, 1, 1, 1, 1, 2, 2)
    assert set(places) == {
        "journal: before the plan", "journal: plan durable", "journal: before the state", "journal: state durable",
        "checkpoint: before samples", "checkpoint: before samples.mark", "checkpoint: before weights.safetensors", "checkpoint: before optimizer.safetensors",
        "checkpoint: before state.json", "checkpoint: before MANIFEST.json", "checkpoint: durable",
        "training: step taken", "training: outcomes told", "training: bytes published", "training: candidate assigned",
        "training: version claimed", "training: before outcomes", "publisher: before bytes", "publisher: before the offer",
        "publisher: before the pointer",
    }  # fmt: skip


@pytest.mark.slow
def test_a_crash_anywhere_changes_nothing(template: Path, tmp_path: Path, uninterrupted: Straight) -> None:
    weights, ledger, places = uninterrupted
    for number in some(range(1, len(places) + 1)):
        world, fault = World(shutil.copytree(template, tmp_path / str(number)), **RHYTHM), CrashAt(number)
        with named((number, places[number - 1])):
            trainer = survive(world, lambda trainer, world=world: finish(world, trainer), fault)  # type: ignore[misc]
            assert fault.place == places[number - 1]
            assert by_rank(world.ledger()) == by_rank(ledger)
            base, version = world.store.versions("tiny")
            assert (base, world.arm("live")) == (0, version)
            for name, value in weights_of(trainer).items():
                assert torch.equal(value, weights[name]), name
        world.close()


def correct(world: World, trainer: Trainer) -> None:
    """Two samples get another reward later, one of them twice; new samples fill those batches.

    What is appended stays, so whoever comes back after a crash appends only what is missing.
    """
    world.turns(trainer, NUM_TURNS)
    trainer.checkpoint()
    for revision, num_changed in ((1, 2), (2, 1)):
        samples = sorted(read_all(world), key=lambda item: item.key)
        if not any(item.revision == revision for item in samples):
            base = [item for item in samples if item.revision == 0 and item.generated_at == 1000.0][:num_changed]
            world.add(*(replace(item, revision=revision, reward=item.reward / 2 + revision / 4) for item in base))
            world.add_random(3 - num_changed, seed=revision, generated_at=1500.0)
        world.turns(trainer, NUM_TURNS)
        trainer.checkpoint()


def read_all(world: World) -> list[Any]:
    return [decode(Experience, record.value) for record in everything(world.log, EXPERIENCES)]


def late(world: World) -> set[tuple[str, int, str, int | None]]:
    """Check over all epochs that a kept outcome is not told again."""
    return {
        (outcome.key, outcome.revision, outcome.reason, outcome.version)
        for outcome in world.outcomes()
        if outcome.state == "late"
    }


@pytest.mark.slow
def test_a_crash_anywhere_applies_a_correction_once(template: Path, tmp_path: Path) -> None:
    def play(number: int) -> tuple[dict[str, torch.Tensor], Ledger, dict[str, float | None], set[Any], CrashAt]:
        home = shutil.copytree(template, tmp_path / str(number))
        world, fault = World(home, **RHYTHM), CrashAt(number)
        trainer = survive(world, lambda trainer: correct(world, trainer), fault)
        applied = {key: fate.applied_now for key, fate in trainer.state.fates.items()}
        last = {(item.key, item.revision): item.reward for item in read_all(world)}
        assert applied == {key: reward for (key, _), reward in sorted(last.items())}
        found = weights_of(trainer), world.ledger(), applied, late(world), fault
        world.close()
        return found

    weights, ledger, applied, said, counter = play(10**9)
    assert sorted(item[1:] for item in said) == [(1, "corrected", 2), (1, "corrected", 2), (2, "corrected", 2)]
    # The first half is the story above, without corrections.
    for number in some(range(len(counter.places) // 2, len(counter.places) + 1)):
        with named((number, counter.places[number - 1])):
            found = play(number)
            assert (by_rank(found[1]), found[2]) == (by_rank(ledger), applied)
            assert {key for key, *_ in found[3]} == {key for key, *_ in said}
            assert all(torch.equal(value, weights[name]) for name, value in found[0].items())


@pytest.mark.slow
def test_a_truncated_checkpoint_is_refused_and_the_journal_of_the_one_before_leads_as_far(
    template: Path, tmp_path: Path
) -> None:
    world = World(shutil.copytree(template, tmp_path / "home"), batch_size=3, publish_samples=3)
    world.turns(world.start(), 2)
    assert sorted(world.ledger().values()) == trained(1, 1, 1, 2, 2, 2)
    newest = max(world.settings.checkpoints.glob("checkpoint-*"))
    file = newest / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-10])

    restarted = world.start()

    assert restarted.state.version == 1
    assert sorted(world.ledger().values()) == trained(1, 1, 1, 3, 3, 3)
    world.turns(restarted, NUM_TURNS)
    restarted.checkpoint()
    # Version 2 was published from what is lost: its number is never given to other weights.
    assert sorted(world.ledger().values()) == trained(1, 1, 1, 3, 3, 3, 4, 4)
    assert world.store.manifest("tiny", 3).parent == 1
    world.close()


class Ranks(WholeModel):
    """As if several ranks held the model: this is rank 0, and the others are threads that look at its memory."""

    def __init__(self, settings: TrainingSettings, world: int) -> None:
        super().__init__(tiny_model(), settings)
        self._world = world
        self._others = [PieceWriter(rank, ThreadPoolExecutor(1)) for rank in range(1, world)]

    def masters(self) -> Masters:
        return self._held(0)

    def _held(self, rank: int) -> Masters:
        whole = super().masters()
        shapes = {name: tuple(tensor.shape) for name, tensor in whole[0].items()}
        weights, moments = (
            {
                name: each[slice(*rows_of(rank, self._world, each.shape)[:2])] if each.ndim else each
                for name, each in held.items()
            }
            for held in whole
        )
        return LocalRows.masters(rank, self._world, shapes, (weights, moments))

    def begin_pieces(self, folder: Path, budget: float) -> None:
        for rank, writer in enumerate(self._others, start=1):
            writer.begin(folder, self._held(rank), budget)

    def take_step(self, scale: float) -> Taken:
        self._keep()
        return super().take_step(scale)

    def put(self, held: Masters) -> None:
        self._keep()
        super().put(held)

    def _keep(self) -> None:
        for writer in self._others:
            writer.keep()


class RanksWorld(World):
    """Each trainer has one rank less than the one before."""

    num_ranks = 3

    def make_learner(self) -> Learner:
        trainee = Ranks(self.training, self.num_ranks)
        self.num_ranks -= 1
        return Learner(trainee, self.training)


@pytest.mark.slow
def test_a_crash_while_ranks_save_changes_nothing_and_fewer_ranks_go_on(
    template: Path, tmp_path: Path, uninterrupted: Straight
) -> None:
    def play(number: int) -> tuple[RanksWorld, CrashAt]:
        world, fault = RanksWorld(shutil.copytree(template, tmp_path / str(number)), **RHYTHM), CrashAt(number)

        def run(trainer: Trainer) -> None:
            finish(world, trainer)
            trainer.checkpoint(wait=True, weights=True)

        trainer = survive(world, run, fault)
        assert by_rank(world.ledger()) == by_rank(uninterrupted[1])
        newest, refused = trainer.settling.saver.checkpoints.load_newest()
        assert newest is not None
        assert all(torch.equal(newest.weights[name], value) for name, value in uninterrupted[0].items())
        assert not [item for item in refused if "interrupted" not in item.reason]
        world.close()
        return world, fault

    world, counter = play(10**9)
    newest = max(world.settings.checkpoints.glob("checkpoint-*"))
    assert len([*newest.glob("*-of-00003.safetensors")]) == 6
    saves = [number for number, place in enumerate(counter.places, start=1) if place.startswith("checkpoint")]
    for number in some(saves):
        with named((number, counter.places[number - 1])):
            play(number)


@pytest.mark.slow
def test_a_crash_anywhere_while_threads_save_and_publish_changes_nothing(
    template: Path, tmp_path: Path, uninterrupted: Straight
) -> None:
    """As above with real threads: steps run ahead of checkpoints, so a crash rewinds steps that were taken meanwhile."""

    def play(number: int) -> tuple[World, CrashAt, Trainer]:
        world, fault = World(shutil.copytree(template, tmp_path / str(number)), **RHYTHM), CrashAt(number)
        saving, publishing = Threads(), Threads()
        world.saving, world.publishing = saving, publishing

        def finish_in_threads(trainer: Trainer) -> None:
            for _ in range(3 * NUM_TURNS):
                world.turns(trainer, 1)
                # Some turns find work under way, some find it done.
                if trainer.state.step != 1:
                    saving.settle()
                    publishing.settle()
            trainer.checkpoint(wait=True)

        trainer = survive(world, finish_in_threads, fault)
        saving.shutdown()
        publishing.shutdown()
        return world, fault, trainer

    world, counter, trainer = play(10**9)
    world.close()
    for number in some(range(1, len(counter.places) + 1)):
        with named((number, counter.places[number - 1])):
            world, fault, trainer = play(number)
            told = world.ledger()
            assert sorted(state for state, _, _ in told.values()) == ["trained"] * NUM_SAMPLES, fault.place
            fates = trainer.state.fates
            assert {key: fate.version or trainer.state.ordinal + 1 for key, fate in fates.items()} == {
                key: version for key, (_, _, version) in told.items()
            }, fault.place
            for name, value in weights_of(trainer).items():
                assert torch.equal(value, uninterrupted[0][name]), (fault.place, name)
            world.close()
