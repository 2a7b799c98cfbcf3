from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import WeightsRefused
from policy.weights import (
    Changes,
    ModelBits,
    apply_patches,
    changes_from,
    copy_tensors,
    merge_changes,
    stage_changes,
    tensors_of,
)
from tests.unit.policy.test_weights import make_model
from weights.codec.delta import TensorChange
from weights.tensors import Tensor, root_of

DTYPES = [torch.float32, torch.bfloat16]
DENSITIES = [0.01, 0.7]


def published(seed: int, dtype: torch.dtype) -> Any:
    """A model that holds bfloat16 values, in whatever type."""
    model = make_model(seed)
    copy_tensors(model, tensors_of(model))
    return model.to(dtype)


def steps_of(model: Any, density: float, seed: int = 0) -> Changes:
    """Some elements of every tensor, one unit in the last place away."""
    rng = np.random.default_rng(seed)
    changes = {}
    for name, tensor in ModelBits(model).items():
        words = tensor.data.view("<u2")
        places = np.flatnonzero(rng.random(words.size) < density).astype(np.uint32)
        changes[name] = TensorChange("BF16", tensor.shape, places, words[places] ^ np.uint16(1))
    return changes


def stepped(model: Any, *steps: Changes) -> dict[str, Tensor]:
    """What a model becomes, worked out without it."""
    tensors = tensors_of(model)
    for changes in steps:
        for name, change in changes.items():
            tensors[name].data.view("<u2")[change.places] = change.words
    return tensors


def root(model: Any) -> str:
    return root_of(tensors_of(model))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", DENSITIES)
def test_a_change_goes_in_and_back_in_place(dtype: torch.dtype, density: float) -> None:
    model = published(1, dtype)
    before, addresses = root(model), [parameter.data_ptr() for parameter in model.parameters()]
    changes = steps_of(model, density)
    patches = stage_changes(model, changes)
    assert root(model) == before, "staging changes nothing"
    wanted = root_of(stepped(model, changes))
    undo = apply_patches(patches)
    assert root(model) == wanted
    assert patches.num_changed == sum(change.words.size for change in changes.values())
    redo = apply_patches(stage_changes(model, undo))
    assert root(model) == before
    apply_patches(stage_changes(model, redo))
    assert root(model) == wanted
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_changes_are_scattered_and_undone_by_as_few(dtype: torch.dtype) -> None:
    model = published(1, dtype)
    sparse, dense = (stage_changes(model, steps_of(model, density)) for density in DENSITIES)
    wide = [write for write in sparse.writes if write.target.numel() > 1000]
    assert wide
    for write in wide:
        assert write.places is not None
        assert write.values.numel() < 0.1 * write.target.numel()
    assert sum(old.words.size for old in sparse.undo.values()) < 0.02 * sparse.num_weights
    assert {write.places for write in dense.writes} == {None}, "a copy is quicker there"


def test_an_undo_log_shows_the_version_before() -> None:
    model = published(1, torch.float32)
    before = root(model)
    undo = apply_patches(stage_changes(model, steps_of(model, 0.01)))
    assert root(model) != before
    assert root_of(dict(ModelBits(model, undo))) == before


def test_steps_that_follow_one_another_are_one() -> None:
    model, changed = published(1, torch.bfloat16), published(1, torch.bfloat16)
    steps = []
    for seed in range(3):
        steps.append(steps_of(changed, 0.2, seed))
        apply_patches(stage_changes(changed, steps[-1]))
    merged = merge_changes(steps)
    assert any(merged[name].words.size > steps[0][name].words.size for name in merged)
    apply_patches(stage_changes(model, merged))
    assert root(model) == root(changed)


def test_steps_after_a_full_copy_are_in_it() -> None:
    model, other = published(1, torch.float32), published(2, torch.float32)
    full = {
        name: TensorChange("BF16", bits.shape, None, bits.data.view("<u2")) for name, bits in tensors_of(other).items()
    }
    step = steps_of(other, 0.01)
    merged = merge_changes([steps_of(model, 0.01), full, step])
    apply_patches(stage_changes(model, merged, merged))
    assert root(model) == root_of(stepped(other, step))
    assert root_of(stepped(other)) == root(other), "the steps are not changed"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_becomes_what_another_would(dtype: torch.dtype) -> None:
    live = published(1, dtype)
    candidate = published(1, dtype)
    apply_patches(stage_changes(candidate, steps_of(candidate, 0.02, seed=1)))
    step, before = steps_of(live, 0.02, seed=2), root(live)
    changes = changes_from(candidate, ModelBits(live), step)
    apply_patches(stage_changes(candidate, changes))
    assert root(candidate) == root_of(stepped(live, step))
    assert root(live) == before
    num_changed = sum(change.words.size for change in changes.values())
    assert 0 < num_changed < 0.05 * sum(parameter.numel() for parameter in live.parameters())


def damaged(code: str, changes: dict[str, TensorChange]) -> None:
    name = list(changes)[-1]
    change = changes[name]
    assert change.places is not None
    if code == "unknown_tensor":
        changes["lm_head.weight"] = change
    if code == "wrong_shape":
        changes[name] = change._replace(shape=(*change.shape, 1))
    if code == "wrong_dtype":
        changes[name] = change._replace(dtype="F16")
    if code == "not_finite":
        changes[name] = change._replace(words=np.full_like(change.words, 0x7F80))


@pytest.mark.parametrize("code", ["unknown_tensor", "wrong_shape", "wrong_dtype", "not_finite"])
def test_a_change_that_does_not_fit_is_refused_by_name(code: str) -> None:
    model = published(1, torch.float32)
    before, changes = root(model), dict(steps_of(model, 0.5))
    damaged(code, changes)
    with pytest.raises(WeightsRefused) as caught:
        stage_changes(model, changes)
    assert caught.value.code == code
    assert root(model) == before


def test_a_place_beyond_the_tensor_is_refused() -> None:
    model = published(1, torch.float32)
    name, tensor = next(iter(ModelBits(model).items()))
    beyond = np.array([tensor.data.size // 2], dtype=np.uint32)
    with pytest.raises(WeightsRefused, match="beyond") as caught:
        stage_changes(model, {name: TensorChange("BF16", tensor.shape, beyond, np.zeros(1, dtype=np.uint16))})
    assert caught.value.code == "wrong_shape"


def test_a_version_without_one_of_ours_is_refused() -> None:
    model = published(1, torch.float32)
    names = set(ModelBits(model))
    names.remove("model.norm.weight")
    with pytest.raises(WeightsRefused, match=r"model\.norm\.weight") as caught:
        stage_changes(model, {}, names)
    assert caught.value.code == "missing_tensor"


def test_bits_come_one_tensor_at_a_time() -> None:
    model = published(1, torch.bfloat16)
    bits = ModelBits(model)
    name = next(iter(bits))
    with torch.no_grad():
        dict(model.named_parameters())[name].fill_(1.5)
    assert set(bits[name].data.view("<u2")) == {0x3FC0}, "read when asked for"
