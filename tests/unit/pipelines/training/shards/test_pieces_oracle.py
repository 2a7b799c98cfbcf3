"""torch's own format of checkpoints holds the same as ours, of the same two processes. It has a pickle, so only this test knows it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.learning.masters import Checkpoint, Masters
from pipelines.training.shards.pieces import LocalRows, PieceWriter
from pipelines.training.state import TrainerState

WORLD = 2


def a_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.Linear(3, 1))


def named(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights and moments under the names of a checkpoint."""
    found: dict[str, Any] = {name: parameter.detach() for name, parameter in model.named_parameters()}
    moments = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    return found | {f"{moment}/{name}": value for name, held in moments.items() for moment, value in held.items()}


def local(model: torch.nn.Module, state: dict[str, Any], rank: int) -> Masters:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    rows = {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in state.items()}
    weights, moments = ({n: t for n, t in rows.items() if ("/" in n) == is_moment} for is_moment in (False, True))
    return LocalRows.masters(rank, WORLD, shapes, (weights, moments))


def run(rank: int, folder: Path) -> None:
    """One of the processes: a step, and both checkpoints."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=WORLD)
    model = a_model()
    for layer in (*model.children(), model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for seed in (1, 2):
        torch.manual_seed(10 * seed + rank)
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = named(model, optimizer)
    save(dict(state), checkpoint_id=folder / "theirs")
    held, name = local(model, state, rank), [""]
    if rank == 0:
        store = CheckpointStore(folder / "ours", 2)
        pending = store.begin(Checkpoint(TrainerState(epoch=1), *held))
        name = [pending.name]
    dist.broadcast_object_list(name)
    with ThreadPoolExecutor(1) as saving:
        if rank == 0:
            store.write(pending)
            store.finish(pending)
            store.close()
        else:
            PieceWriter(rank, saving).begin(folder / "ours" / name[0], held, 1.0)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_pieces_hold_what_torchs_own_checkpoint_holds(tmp_path: Path) -> None:
    spawn(run, (tmp_path,), nprocs=WORLD)  # type: ignore[no-untyped-call]  # its stub carries no types
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    theirs = named(model, optimizer)
    before = {name: tensor.clone() for name, tensor in theirs.items()}
    load(theirs, checkpoint_id=tmp_path / "theirs", no_dist=True)
    found, refused = CheckpointStore(tmp_path / "ours", 2).load_newest()
    assert found is not None
    assert not refused
    ours = {**found.weights, **found.optimizer}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert not any(torch.equal(before[name], tensor) for name, tensor in theirs.items())
