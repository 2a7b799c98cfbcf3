from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from contracts.errors import NotFound, WeightsRefused
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of
from tests.models import llama_config
from weights.tensors import Tensor, Tensors, read_safetensors, root_of


def make_model(seed: int = 0, *, tied: bool = True) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(llama_config(tie_word_embeddings=tied))


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_are_those_of_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    model = make_model(tied=tied).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ours, theirs = tensors_of(model), read_safetensors(tmp_path)
    assert ours.keys() == theirs.keys()
    assert ("lm_head.weight" in ours) is not tied
    assert root_of(ours) == root_of(theirs)


def test_published_bits_survive_a_float32_model() -> None:
    published = tensors_of(make_model(1))
    model = make_model(2)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    copy_tensors(model, published)
    assert root_of(tensors_of(model)) == root_of(published)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses, "in place"


def test_tensors_are_a_copy() -> None:
    model = make_model().to(torch.bfloat16)
    before = tensors_of(model)
    root = root_of(before)
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert root_of(before) == root
    assert root_of(tensors_of(model)) != root


def damaged(code: str, tensors: Tensors) -> Tensors:
    name = list(tensors)[-1]
    dtype, shape, data = tensors[name]
    if code == "missing_tensor":
        del tensors[name]
    if code == "unknown_tensor":
        tensors["lm_head.weight"] = tensors[name]
    if code == "wrong_shape":
        tensors[name] = Tensor(dtype, (*shape, 1), data)
    if code == "wrong_dtype":
        tensors[name] = Tensor("F16", shape, data)
    if code == "not_finite":
        tensors[name] = Tensor(dtype, shape, np.full_like(data, 0xFF))
    return tensors


@pytest.mark.parametrize("code", ["missing_tensor", "unknown_tensor", "wrong_shape", "wrong_dtype", "not_finite"])
def test_a_refusal_changes_nothing(code: str) -> None:
    model = make_model(1)
    root = root_of(tensors_of(model))
    with pytest.raises(WeightsRefused) as caught:
        copy_tensors(model, damaged(code, tensors_of(make_model(2))))
    assert caught.value.code == code
    assert root_of(tensors_of(model)) == root


def test_a_checkpoint_loads_for_serving(tmp_path: Path) -> None:
    saved = make_model(3).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    assert root_of(tensors_of(model)) == root_of(tensors_of(saved))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.dtype == torch.float32


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        load_model(str(tmp_path / "nowhere"), device="cpu", dtype=torch.float32)
    make_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(WeightsRefused) as caught:
        load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    assert caught.value.code == "unreadable_checkpoint"
