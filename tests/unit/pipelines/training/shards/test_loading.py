"""A base policy out of its files in rows is the one that is loaded as a whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from contracts.errors import NotFound, WeightsRefused
from pipelines.training.shards.loading import BaseFiles, LocalPart, copy_rows
from policy.conversion import conversion_of
from policy.load import load_model
from policy.weights import ModelBits, tensors_of
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import tiny_model as tied_model
from tests.unit.pipelines.training.shards.ranks import group_of, saved
from weights.rows import rows_of
from weights.tensors import root_of

KINDS = ("tied", "llama", "qwen3_moe", "gemma3")


def model_of(kind: str) -> Any:
    return tied_model() if kind == "tied" else tiny_model(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_alone_has_the_model_and_its_root(kind: str, tmp_path: Path) -> None:
    base = saved(model_of(kind), tmp_path / "base")
    files, expected = BaseFiles(base), load_model(base, device="cpu", dtype=torch.bfloat16)
    with group_of(str(tmp_path / "store")) as group:
        assert files.root(group) == root_of(files) == root_of(ModelBits(expected))
        model = files.shards(group, device="cpu", dtype=torch.bfloat16, trained=False)
        found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wanted = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor.to_local() if isinstance(tensor, DTensor) else tensor, wanted[name]), name


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("kind", ["tied", "qwen3_moe"])
def test_the_rows_of_all_ranks_are_the_whole(kind: str, world: int) -> None:
    model = model_of(kind)
    bits, conversion = tensors_of(model), conversion_of(model)
    parameters: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
    for rank in range(world):
        own = {name: rows_of(rank, world, tuple(each.shape)) for name, each in parameters.items()}
        parts = {
            name: LocalPart(torch.full(part.local_shape, torch.nan), part.first, part.shape)
            for name, part in own.items()
        }
        copy_rows(parts, bits, conversion)
        for name, part in parts.items():
            rows[name].append(part.rows)
    for name in {view for view in parameters if not rows[view][0].isnan().any()}:
        assert torch.equal(torch.cat(rows[name]), parameters[name].to(torch.bfloat16).float()), name
    assert not any(torch.cat(each).isnan().any() for name, each in rows.items() if name != "lm_head.weight")


def test_files_of_another_model_are_refused(tmp_path: Path) -> None:
    base = saved(tied_model(), tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(WeightsRefused) as refused:
        BaseFiles(base)
    assert refused.value.code == "missing_tensor"
    with pytest.raises(NotFound):
        BaseFiles(str(tmp_path / "nothing"))
