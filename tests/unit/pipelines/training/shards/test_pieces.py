"""Checkpoints that several ranks write in pieces, and any number of ranks reads. Here a rank is a thread."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import WeightsRefused
from contracts.faults import FaultPoint, no_fault
from pipelines.training.checkpoints.checkpoint import CheckpointStore, PendingCheckpoint
from pipelines.training.checkpoints.checkpoint_names import INDEX, MOMENTS, WEIGHTS
from pipelines.training.checkpoints.tensor_files import open_tensors
from pipelines.training.learning.masters import Checkpoint, Masters
from pipelines.training.shards.pieces import LocalRows, PieceWriter
from pipelines.training.state import TrainerState
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
    found = [open_tensors(tmp_path / checkpoint.name, file) for file in (WEIGHTS, MOMENTS)]
    assert not refused
    for one, expected in zip(found, masters, strict=True):
        assert equal(one, expected), "in one process"
    for later in (1, 2, 3, 4):
        for rank in range(later):
            for file, expected in zip(found, held_by(rank, later, masters), strict=True):
                assert equal(LocalRows.of(file, rank, later), expected), (rank, later)
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
