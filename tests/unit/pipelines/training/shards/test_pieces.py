"""Checkpoints that several ranks write in pieces, and any number of ranks reads. Here a rank is a thread."""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import StaleWrite, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from pipelines.training.checkpoints.checkpoint import CheckpointStore, PendingCheckpoint
from pipelines.training.checkpoints.checkpoint_names import INDEX, WEIGHTS, PieceIndex
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.tensor_files import open_tensors
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint, Masters
from pipelines.training.learning.step_bound import Taken
from pipelines.training.saving import Saver
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.pieces import LocalRows, PieceWriter
from pipelines.training.state import TrainerState
from tests.unit.pipelines.training.builders import random_experience
from tests.unit.pipelines.training.fake_trainee import NAME, UnigramTrainee
from weights.mapped import map_checkpoint
from weights.rows import rows_in, rows_of
from weights.tensors import SINGLE_FILE, Tensor, write_safetensors

SHAPES = {"matrix": (7, 5), "row": (3,), "experts": (2, 3, 4)}
TWO_RANKS = ("weights-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors")


class Died(BaseException):
    """A process that is killed."""


def whole(seed: int) -> Masters:
    """Weights and moments of a model, as one process holds them."""
    torch.manual_seed(seed)
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    moments = {
        f"{moment}/{name}": torch.rand(shape) for name, shape in SHAPES.items() for moment in ("exp_avg", "exp_avg_sq")
    }
    return weights, moments | {f"step/{name}": torch.tensor(float(seed)) for name in SHAPES}


def held_by(rank: int, world: int, masters: Masters) -> Masters:
    """What a rank holds of them: copies of its rows."""

    def local(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[slice(*rows_of(rank, world, tensor.shape)[:2])].clone() if tensor.ndim else tensor.clone()

    weights, moments = ({name: local(tensor) for name, tensor in each.items()} for each in masters)
    return LocalRows.masters(rank, world, SHAPES, (weights, moments))


class Ranks:
    """A store, and the ranks that write into it; rank 0 is the caller."""

    def __init__(self, folder: Path, world: int, fault: FaultPoint = no_fault, *, seconds: float = 60.0) -> None:
        self.store, self.world = CheckpointStore(folder, 2, fault, piece_seconds=seconds), world
        self._threads = ThreadPoolExecutor(max(world - 1, 1))
        self.others = {rank: PieceWriter(rank, self._threads) for rank in range(1, world)}

    def begin(self, masters: Masters, step: int = 1, same_as: str = "") -> PendingCheckpoint:
        held = masters if self.world == 1 else held_by(0, self.world, masters)
        pending = self.store.begin(Checkpoint(TrainerState(epoch=1, step=step), *held, step), same_as=same_as)
        for rank, writer in () if same_as else self.others.items():
            writer.begin(self.store.folder / pending.name, held_by(rank, self.world, masters), 1.0)
        return pending

    def save(self, masters: Masters, step: int = 1, same_as: str = "") -> Path:
        pending = self.begin(masters, step, same_as)
        try:
            self.store.write(pending)
        finally:
            self.store.finish(pending)
        return self.store.folder / pending.name


def newest(folder: Path) -> tuple[Checkpoint, list[str]]:
    found, refused = CheckpointStore(folder, 2).load_newest()
    assert found is not None
    return found, [item.reason for item in refused]


def equal(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 8, 9])
def test_rows_are_cut_as_torch_does(world: int, num_rows: int) -> None:
    parts = [*torch.arange(num_rows).chunk(world)]
    for rank in range(world):
        rows = rows_of(rank, world, (num_rows, 6))
        expected = parts[rank] if rank < len(parts) else torch.arange(0)
        assert [*range(rows.first, rows.last)] == expected.tolist()
        assert rows.local_shape == (len(expected), 6)


def test_rows_of_a_file_are_those_of_its_tensor(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.int16).reshape(8, 3)
    write_safetensors(tmp_path / SINGLE_FILE, {"w": Tensor("I16", (8, 3), values.view(np.uint8).reshape(-1))})
    found = rows_in(map_checkpoint(tmp_path)["w"], 2, 5)
    assert (found.dtype, found.shape) == ("I16", (3, 3))
    assert found.data.tobytes() == values[2:5].tobytes()
    for first, last in ((-1, 2), (3, 2), (0, 9)):
        with pytest.raises(WeightsRefused, match=f"rows {first} to {last} of a tensor with 8"):
            rows_in(map_checkpoint(tmp_path)["w"], first, last)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_what_some_ranks_wrote_any_number_of_ranks_reads(tmp_path: Path, world: int) -> None:
    masters = whole(world)
    Ranks(tmp_path, world).save(masters)
    checkpoint, refused = newest(tmp_path)
    assert not refused
    for found, expected in zip((checkpoint.weights, checkpoint.optimizer), masters, strict=True):
        assert equal(found, expected), "in one process"
    for later in (1, 2, 3, 4):
        for rank in range(later):
            local = LocalRows.read(tmp_path / checkpoint.name, rank, later)
            for held, expected in zip(local, held_by(rank, later, masters), strict=True):
                assert equal(held, expected), (rank, later)
            checkpoint.check(held_by(rank, later, masters)[0], "")
    names = {path.name for path in (tmp_path / checkpoint.name).iterdir()}
    assert (INDEX in names) == (world > 1)
    assert len([name for name in names if name.endswith(".safetensors")]) == 2 * world
    assert not [name for name in names if name.startswith("written")]


def test_a_step_meanwhile_changes_no_piece(tmp_path: Path) -> None:
    ranks, masters = Ranks(tmp_path, 2), whole(1)
    mine, others = held_by(0, 2, masters), held_by(1, 2, masters)
    pending = ranks.store.begin(Checkpoint(TrainerState(epoch=1), *mine))
    ranks.others[1].begin(tmp_path / pending.name, others, 1.0)
    for keep, held in ((pending.tensors.keep, mine), (ranks.others[1].keep, others)):
        keep()
        for tensor in held[0].values():
            tensor.fill_(0.0)
    ranks.store.write(pending)
    assert equal(newest(tmp_path)[0].weights, masters[0])


def raises(place: str, error: BaseException) -> FaultPoint:
    def fault(reached: str) -> None:
        if reached == f"checkpoint: before {place}":
            raise error

    return fault


@pytest.mark.parametrize(
    "place", ["weights-00002-of-00003.safetensors", "optimizer-00002-of-00003.safetensors", "written-00002.json"]
)
def test_a_rank_that_dies_costs_only_that_checkpoint(tmp_path: Path, place: str) -> None:
    first = Ranks(tmp_path, 3).save(whole(1))
    ranks = Ranks(tmp_path, 3, seconds=0.05)
    ranks.others[1] = PieceWriter(1, ThreadPoolExecutor(1), raises(place, Died()))
    with pytest.raises(Unavailable, match="rank 1 wrote no piece of checkpoint-000001-00000002 within"):
        ranks.save(whole(2))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [first.name]
    assert equal(newest(tmp_path)[0].weights, whole(1)[0])
    third = Ranks(tmp_path, 3).save(whole(3))
    assert equal(newest(tmp_path)[0].weights, whole(3)[0])
    assert third.name != first.name


def test_a_full_disk_of_one_rank_is_told_at_once_and_costs_only_that_checkpoint(tmp_path: Path) -> None:
    ranks, is_full = Ranks(tmp_path, 2), [True]

    def fault(place: str) -> None:
        if is_full and is_full.pop():
            raise Unavailable(f"no space left at {place}")

    ranks.others[1] = PieceWriter(1, ThreadPoolExecutor(1), fault)
    with pytest.raises(Unavailable, match="rank 1 cannot write its piece of checkpoint-000001-00000001: no space left"):
        ranks.save(whole(1))
    assert not [*tmp_path.glob("checkpoint-*")]
    assert ranks.save(whole(2)).name == "checkpoint-000001-00000002", (
        "a rank may still write into the one that was given up"
    )
    assert equal(newest(tmp_path)[0].weights, whole(2)[0])


@pytest.mark.parametrize(
    "place",
    [
        "weights-00001-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors",
        "state.json",
        INDEX,
        "MANIFEST.json",
    ],
)
def test_rank_0_that_dies_leaves_the_older_one_the_newest(tmp_path: Path, place: str) -> None:
    Ranks(tmp_path, 2).save(whole(1))
    with pytest.raises(Died):
        Ranks(tmp_path, 2, raises(place, Died())).save(whole(2))
    found, refused = newest(tmp_path)
    assert equal(found.weights, whole(1)[0])
    assert "was interrupted" in refused[0]
    Ranks(tmp_path, 4).save(whole(3))
    assert equal(newest(tmp_path)[0].optimizer, whole(3)[1])


def test_a_folder_that_another_trainer_removed_is_named(tmp_path: Path) -> None:
    def fault(place: str) -> None:
        if place == f"checkpoint: before {INDEX}":
            shutil.rmtree(tmp_path / "checkpoint-000001-00000001")

    ranks = Ranks(tmp_path, 2, fault)
    pending = ranks.store.begin(Checkpoint(TrainerState(epoch=1), *held_by(0, 2, whole(1))))
    with pytest.raises(StaleWrite, match="was removed: another trainer uses this folder"):
        ranks.store.write(pending)


@pytest.mark.parametrize("note", [b"{", b'{"checkpoint": "checkpoint-000001-00000009", "files": {}}'])
def test_a_piece_of_another_checkpoint_is_refused(tmp_path: Path, note: bytes) -> None:
    ranks = Ranks(tmp_path, 2)
    pending = ranks.store.begin(Checkpoint(TrainerState(epoch=1), *held_by(0, 2, whole(1))))
    (tmp_path / pending.name / "written-00002.json").write_bytes(note)
    with pytest.raises(WeightsRefused) as refused:
        ranks.store.write(pending)
    assert refused.value.code == "other_piece"
    assert ranks.store.load_newest()[0] is None


def test_a_rank_that_holds_other_rows_is_refused_before_the_checkpoint_counts(tmp_path: Path) -> None:
    ranks, masters = Ranks(tmp_path, 2), whole(1)
    pending = ranks.store.begin(Checkpoint(TrainerState(epoch=1), *held_by(0, 2, masters)))
    weights, moments = ({name: held[name] for name in held} for held in held_by(1, 2, masters))
    weights["matrix"] = weights["matrix"][1:]
    ranks.others[1].begin(tmp_path / pending.name, LocalRows.masters(1, 2, SHAPES, (weights, moments)), 1.0)
    with pytest.raises(WeightsRefused, match=f"matrix has other rows than {INDEX} says"):
        ranks.store.write(pending)
    assert ranks.store.load_newest()[0] is None


@pytest.mark.parametrize("file", [*TWO_RANKS, INDEX])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "of another version"])
def test_any_damage_to_pieces_is_refused_by_name(tmp_path: Path, file: str, damage: str) -> None:
    older = Ranks(tmp_path, 2).save(whole(1)) / file
    path = Ranks(tmp_path, 2 if file != INDEX else 3).save(whole(2)) / file
    content = path.read_bytes()
    path.unlink()
    if damage == "of another version":
        path.write_bytes(older.read_bytes())
    elif damage != "remove":
        path.write_bytes(content[:-1] + (b"" if damage == "truncate" else bytes([content[-1] ^ 1])))
    found, refused = newest(tmp_path)
    assert equal(found.weights, whole(1)[0])
    assert file in refused[0]


FORGED: dict[str, Callable[[PieceIndex], object]] = {
    "a piece is left out": lambda index: index.files.pop(TWO_RANKS[0]),
    "no piece is left": lambda index: index.files.clear(),
    "rows are there twice": lambda index: index.files[TWO_RANKS[0]].update(matrix=(3, 7)),
    "rows end early": lambda index: index.shapes.update(matrix=(9, 5)),
    "other columns": lambda index: index.shapes.update(matrix=(7, 4)),
    "a tensor is left out": lambda index: index.files[TWO_RANKS[0]].pop("matrix"),
    "an unknown shape": lambda index: index.shapes.pop("matrix"),
    "a file elsewhere": lambda index: index.files.update({"weights-/../../x.safetensors": {}}),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_an_index_that_does_not_fit_its_pieces_is_refused(
    tmp_path: Path, forge: Callable[[PieceIndex], object]
) -> None:
    folder = Ranks(tmp_path, 2).save(whole(1))
    index = msgspec.json.decode((folder / INDEX).read_bytes(), type=PieceIndex)
    forge(index)
    (folder / INDEX).write_bytes(msgspec.json.encode(index))
    with pytest.raises(WeightsRefused) as refused:
        open_tensors(folder, WEIGHTS)
    assert refused.value.code == "other_rows"


def test_the_same_weights_are_linked_by_rank_0_alone(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 3)
    first = ranks.save(whole(1))
    second = ranks.save(whole(1), step=2, same_as=first.name)
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}
    for path in first.glob("*-of-*"):
        assert path.stat().st_ino == (second / path.name).stat().st_ino
    assert equal(newest(tmp_path)[0].weights, whole(1)[0])
    (second / TWO_RANKS[0].replace("00002.", "00003.")).unlink()
    with pytest.raises(Unavailable, match=f"the pieces of {second.name} cannot be linked"):
        ranks.save(whole(1), step=3, same_as=second.name)


class TwoRanks(UnigramTrainee):
    """Rank 0 of two, which hold half of the logits each; the other one is a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.other = PieceWriter(1, ThreadPoolExecutor(1))
        self.begun: list[str] = []

    def held(self, rank: int) -> Masters:
        first, last, shape = rows_of(rank, 2, tuple(self.logits_V.shape))
        return LocalRows.masters(rank, 2, {NAME: shape}, ({NAME: self.logits_V.detach()[first:last]}, {}))

    def masters(self) -> Masters:
        return self.held(0)

    def begin_pieces(self, folder: Path, budget: float) -> None:
        self.begun.append(folder.name)
        self.other.begin(folder, self.held(1), budget)

    def take_step(self, scale: float) -> Taken:
        self.other.keep()
        return super().take_step(scale)


def test_a_trainer_saves_with_other_ranks_while_it_takes_steps(tmp_path: Path) -> None:
    trainee, state = TwoRanks(), TrainerState(epoch=1)
    learner, store = Learner(trainee, TrainingSettings(mismatch_samples=0)), CheckpointStore(tmp_path, 9)
    random = np.random.default_rng(0)

    def step() -> None:
        learner.step([random_experience(random) for _ in range(4)], [1.0] * 4, {})

    with ThreadPoolExecutor(1) as saving:
        saver = Saver(learner, store, saving, lambda: 0.0, Journal(tmp_path), copied_share=1.0)

        def begun() -> torch.Tensor:
            saver.begin(state, None, {0}, with_bits=False)
            return trainee.logits_V.detach().clone()

        def saved() -> Checkpoint:
            found = saver.finished(wait=True)
            assert found is not None
            return store.load(found.name)

        step()
        expected = begun()
        step()
        first = saved()
        assert torch.equal(first.weights[NAME], expected)
        assert not torch.equal(expected, trainee.logits_V)
        learner.restore(first)
        begun()
        assert saved().name not in trainee.begun, "what a checkpoint holds is linked"
        (tmp_path / learner.saved_as / INDEX).unlink()
        begun()
        with pytest.raises(Unavailable, match="cannot be linked"):
            saver.finished(wait=True)
        begun()
        assert torch.equal(saved().weights[NAME], expected), "then it is written again, by all"
        assert len(trainee.begun) == 2
