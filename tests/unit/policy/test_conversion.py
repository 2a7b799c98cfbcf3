"""What is published is what the checkpoint holds, whatever transformers made of it in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ConversionOps,
    Interleave,
    MergeModulelist,
    PermuteForRope,
    Transpose,
    WeightConverter,
    WeightRenaming,
    revert_weight_conversion,
)

from contracts.errors import WeightsRefused
from policy.conversion import JoinedViews, conversion_of, state_of, views_of
from policy.load import load_model
from policy.weights import ModelBits, apply_patches, changes_from, copy_tensors, stage_changes, tensors_of
from tests.each_case import each_case
from tests.models import KINDS, build_model, tiny_model
from tests.unit.policy.test_patches import steps_of
from weights.tensors import read_safetensors, root_of


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_has_the_names_shapes_and_bits_of_its_checkpoint(kind: str, tmp_path: Path) -> None:
    """Whole and in shards, in the type of the checkpoint and in another."""
    for name, dtype in (("whole", torch.bfloat16), ("sharded", torch.float32)):
        on_disk = read_safetensors(build_model(kind, tmp_path / name, sharded=name == "sharded"))
        held = tensors_of(load_model(str(tmp_path / name), device="cpu", dtype=dtype))
        assert held.keys() == on_disk.keys()
        assert root_of(held) == root_of(on_disk)


@pytest.mark.parametrize("kind", KINDS)
def test_published_bits_make_the_model_that_transformers_loads(kind: str, tmp_path: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(build_model(kind, tmp_path, seed=2), dtype=torch.float32)
    ours = tiny_model(kind, seed=1)
    copy_tensors(ours, read_safetensors(tmp_path))
    wanted = state_of(theirs)
    assert state_of(ours).keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in state_of(ours).items())


def test_float32_and_float16_of_a_checkpoint_are_published_as_their_rounding(tmp_path: Path) -> None:
    model = load_model(str(build_model("mamba2", tmp_path, dtype=torch.float32)), device="cpu", dtype=torch.float32)
    with torch.no_grad():
        model.backbone.layers[0].mixer.A_log.fill_(1.00390625)  # half way between two values of bfloat16
    bits = ModelBits(model)["backbone.layers.0.mixer.A_log"]
    assert bits.dtype == "BF16"
    assert set(bits.data.view("<u2").tolist()) == {0x3F80}, "to nearest even"


@cache
def pair_of(kind: str) -> tuple[Any, Any]:
    """Two models that hold published bits; whoever changes the first puts it back."""
    pair = tiny_model(kind, seed=1), tiny_model(kind, seed=2)
    for model in pair:
        copy_tensors(model, tensors_of(model))
    return pair


@pytest.mark.parametrize("kind", ["qwen3_moe", "mamba2"])
@settings(max_examples=5, deadline=None)
@given(density=st.floats(0.0005, 0.3), seed=st.integers(0, 1000))
def test_sparse_changes_equal_a_full_load_and_their_undo_is_exact(kind: str, density: float, seed: int) -> None:
    model, other = pair_of(kind)
    before = tensors_of(model)
    changes = steps_of(model, density, seed)
    wanted = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in before.items()}
    for name, change in changes.items():
        wanted[name].data.view("<u2")[change.places] = change.words

    undo = apply_patches(stage_changes(model, changes))
    assert root_of(tensors_of(model)) == root_of(wanted)
    copy_tensors(other, wanted)
    assert all(torch.equal(tensor, state_of(other)[name]) for name, tensor in state_of(model).items())
    assert root_of(dict(ModelBits(model, undo))) == root_of(before)
    apply_patches(stage_changes(model, changes_from(model, before, {})))
    assert root_of(tensors_of(model)) == root_of(before)


def test_hundreds_of_experts_are_one_write_and_no_index_is_kept() -> None:
    model = tiny_model("qwen3_moe")
    patches = stage_changes(model, steps_of(model, 0.01, 3))
    fused = [write for write in patches.writes if write.target.numel() == 4 * 64 * 64]
    assert len(fused) == 2, "one per layer, for four experts with gate and up"
    assert all(write.places is not None for write in fused)
    assert all(view.is_contiguous for held in conversion_of(model).values() for view in views_of(held.place))


class Module(nn.Module):
    """A module with given parameters and conversions, as `from_pretrained` leaves it."""

    config = type("Config", (), {"num_attention_heads": 2})()

    def __init__(self, conversions: list[Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        self._weight_conversions = conversions
        for name, value in parameters.items():
            holder = nn.Module()
            holder.weight = nn.Parameter(value)
            self.add_module(name, holder)


def numbered(*shape: int, start: int = 0) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(start, start + count, dtype=torch.int32) << 16).view(torch.float32).reshape(shape)


def converter(sources: list[str] | str, targets: list[str] | str, *operations: ConversionOps) -> WeightConverter:
    return WeightConverter(sources, targets, list(operations))


MODULES: dict[str, Callable[[], Module]] = {
    "renamed": lambda: Module([WeightRenaming("old", "new")], new=numbered(3, 4)),
    "transposed": lambda: Module([converter("a.weight", "b.weight", Transpose(0, 1))], b=numbered(3, 4)),
    "fused_on_the_last_axis": lambda: Module(
        [converter(["q.weight", "k.weight"], "qk.weight", Concatenate(dim=1))], qk=numbered(3, 8)
    ),
    "stacked_then_fused": lambda: Module(
        [converter(["e.*.g.weight", "e.*.u.weight"], "gu.weight", MergeModulelist(0), Concatenate(1))],
        gu=numbered(3, 4, 5),
    ),
    "stacked_fused_and_transposed": lambda: Module(
        [
            converter(
                ["e.*.g.weight", "e.*.u.weight"], "gu.weight", MergeModulelist(0), Concatenate(1), Transpose(1, 2)
            )
        ],
        gu=numbered(3, 5, 4),
    ),
    "split_on_load": lambda: Module(
        [converter("qk.weight", ["q.weight", "k.weight"], Chunk(dim=0))],
        q=numbered(3, 4), k=numbered(3, 4, start=12),
    ),
    "split_on_load_along_the_second_axis": lambda: Module(
        [converter("qk.weight", ["q.weight", "k.weight"], Chunk(dim=1))],
        q=numbered(3, 4), k=numbered(3, 4, start=12),
    ),
    "interleaved": lambda: Module([converter("a.weight", "b.weight", Interleave(dim=0))], b=numbered(6, 4)),
    "permuted_for_rotary": lambda: Module([converter("a.weight", "b.weight", PermuteForRope())], b=numbered(8, 4)),
    "fused_with_permuted_parts": lambda: Module(
        [converter(["q.weight", "k.weight"], "qk.weight", PermuteForRope(), Concatenate(dim=0))],
        qk=numbered(16, 4),
    ),
}  # fmt: skip


@each_case("name", MODULES)
def test_every_rearrangement_of_transformers_is_followed_to_the_element(name: str) -> None:
    model = MODULES[name]()
    reference = revert_weight_conversion(model, {key: value.detach().clone() for key, value in state_of(model).items()})
    bits = ModelBits(model)
    assert bits.keys() == reference.keys()
    for key, tensor in bits.items():
        assert tensor.shape == tuple(reference[key].shape)
        assert np.array_equal(tensor.data.view("<u2"), reference[key].to(torch.bfloat16).view(torch.int16).numpy().view("<u2").ravel())  # fmt: skip

    before = {key: value.detach().clone() for key, value in state_of(model).items()}
    for density in (0.08, 0.5, 1.0):
        changes = steps_of(model, density, 5)
        wanted = {key: tensor.data.copy() for key, tensor in bits.items()}
        for key, change in changes.items():
            wanted[key].view("<u2")[change.places] = change.words
        undo = apply_patches(stage_changes(model, changes))
        assert all(np.array_equal(tensor.data, wanted[key]) for key, tensor in bits.items())
        apply_patches(stage_changes(model, undo))
        assert all(torch.equal(value, before[key]) for key, value in state_of(model).items())


class Computing(ConversionOps):  # type: ignore[misc] # transformers is untyped
    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._compute = compute

    def convert(self, input_dict: dict[str, Any], target_patterns: list[str], **_: object) -> dict[str, Any]:
        (tensors,) = input_dict.values()
        return {target_patterns[0]: self._compute(tensors[0])}

    @property
    def reverse_op(self) -> ConversionOps:
        return self


@each_case(
    ("what", "compute"),
    [
        ("folds a scale into the weight", lambda tensor: tensor * 2),
        ("computes in place: the storage stays the parameter's", lambda tensor: tensor.add_(1)),
        ("loses half of the tensor", lambda tensor: tensor.chunk(2)[0]),
    ],
)
def test_a_conversion_that_computes_or_loses_is_refused(
    what: str, compute: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    model = Module([converter("a.weight", "b.weight", Computing(compute))], b=numbered(4, 4))
    with pytest.raises(WeightsRefused) as caught:
        conversion_of(model)
    assert caught.value.code == "conversion", what


def test_a_persistent_buffer_is_published_and_one_that_is_computed_is_not() -> None:
    model = Module([], a=numbered(2, 2))
    model.register_buffer("bias", torch.ones(3))
    model.register_buffer("frequencies", torch.ones(3), persistent=False)
    assert set(ModelBits(model)) == {"a.weight", "bias"}
    other = Module([], a=numbered(2, 2))
    other.register_buffer("bias", torch.zeros(3))
    copy_tensors(other, tensors_of(model))
    assert torch.equal(other.get_buffer("bias"), torch.ones(3))


def test_a_buffer_of_integers_is_refused_by_name() -> None:
    model = Module([], a=numbered(2, 2))
    model.register_buffer("table", torch.ones(3, dtype=torch.int64))
    with pytest.raises(WeightsRefused, match="table is torch\\.int64") as caught:
        conversion_of(model)
    assert caught.value.code == "wrong_dtype"


def test_joined_tensors_hold_views_of_several_parameters() -> None:
    place = conversion_of(MODULES["split_on_load"]())["qk.weight"].place
    assert isinstance(place, JoinedViews)
    assert [view.parameter for view in views_of(place)] == ["q.weight", "k.weight"]
