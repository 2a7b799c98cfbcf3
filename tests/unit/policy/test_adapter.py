"""A LoRA adapter beside a model: what it computes, and that peft computes the same from its files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from contracts.errors import InvalidSettings, WeightsRefused
from policy.adapter import Adapter, AdapterBits, all_linear, another_tree
from policy.weights import copied, copy_tensors, tensors_of
from tests.models import tiny_model
from weights.adapters import (
    CONFIG,
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterConfig,
    config_of,
    merged,
    weights_in,
    write_adapter,
)
from weights.tensors import Tensors, root_of

IDS = torch.arange(3, 15)[None]


def adapted(model: Any, seed: int = 0) -> Adapter:
    """An adapter that was trained a little."""
    config = AdapterConfig(rank=4, alpha=32.0, targets=all_linear(model), base_root=root_of(tensors_of(model)))
    adapter = Adapter(model, config, dtype=torch.float32)
    drawn = torch.Generator().manual_seed(seed)
    for name, weight in adapter.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=drawn).mul_(0.1).bfloat16().float()
        else:
            weight.data = weight.data.bfloat16().float()
    return adapter


def bits_of(adapter: Adapter) -> Tensors:
    return copied(AdapterBits(adapter))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits
    return found


def test_an_untrained_adapter_and_one_that_is_off_are_the_base_to_the_bit() -> None:
    model, untrained = tiny_model("qwen3"), tiny_model("qwen3")
    base = logits(model)
    adapter = adapted(model)
    Adapter(untrained, adapter.config, dtype=torch.float32)
    assert torch.equal(logits(untrained), base)
    assert not torch.allclose(logits(model), base, atol=1e-3)
    with adapter.off():
        assert torch.equal(logits(model), base)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks a name that left
def test_peft_computes_the_same_from_the_files(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = tiny_model("qwen3")
    model.save_pretrained(tmp_path / "base")
    adapter = adapted(model)
    write_adapter(tmp_path / "adapter", bits_of(adapter), str(tmp_path / "base"))
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {CONFIG_FILE, WEIGHTS_FILE}
    found = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    torch.testing.assert_close(logits(found.eval()), logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # as above
def test_a_merged_policy_is_what_peft_merges_and_is_for_one_base_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = tiny_model("qwen3")
    copy_tensors(model, base := tensors_of(model))
    model.save_pretrained(tmp_path / "base")
    adapter = adapted(model)
    bits = bits_of(adapter)
    whole = tiny_model("qwen3")
    copy_tensors(whole, merged(base, bits))
    torch.testing.assert_close(logits(whole), logits(model), atol=0.02, rtol=0.02)  # bf16's rounding of W + BA
    write_adapter(tmp_path / "adapter", bits, str(tmp_path / "base"))
    beside = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    theirs = tensors_of(beside.merge_and_unload())
    assert root_of(merged(base, bits)) == root_of(theirs)
    with pytest.raises(WeightsRefused, match="for the base"):
        merged(theirs, bits)


def test_another_tree_has_the_same_parameters_and_an_adapter_of_its_own() -> None:
    model = tiny_model("qwen3")
    base = logits(model)
    adapter, other = adapted(model), another_tree(model)
    assert torch.equal(logits(other), base)
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert all(theirs[name] is each for name, each in ours.items())
    second = Adapter(other, adapter.config, dtype=torch.float32)
    copy_tensors(second, weights_in(bits_of(adapter), adapter.config))
    assert torch.equal(logits(other), logits(model))
    with adapter.off():
        assert not torch.equal(logits(other), logits(model))


def test_the_bits_say_what_they_are_for_and_lead_back() -> None:
    adapter = adapted(tiny_model("qwen3"))
    bits = bits_of(adapter)
    assert config_of(bits) == adapter.config
    other = adapted(tiny_model("qwen3"), seed=1)
    assert root_of(bits_of(other)) != root_of(bits)
    copy_tensors(other, weights_in(bits, other.config))
    assert root_of(bits_of(other)) == root_of(bits)


def test_what_is_no_adapter_or_another_one_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    adapter, whole = adapted(model), tensors_of(tiny_model("qwen3"))
    for tensors, code in (
        (whole, "other_adapter"),
        (
            {**bits_of(adapter), CONFIG: bits_of(adapter)[CONFIG]._replace(data=whole["model.norm.weight"].data)},
            "corrupt_adapter",
        ),
    ):
        with pytest.raises(WeightsRefused) as refused:
            weights_in(tensors, adapter.config)
        assert refused.value.code == code
    with pytest.raises(WeightsRefused, match="whole policy"):
        write_adapter(tmp_path, whole, "base")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InvalidSettings, match="the model has down_proj"):
        Adapter(model, AdapterConfig(rank=1, alpha=1.0, targets=("c_attn",), base_root=""), dtype=torch.float32)


def test_a_model_without_linear_layers_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    with pytest.raises(InvalidSettings, match="no linear layer that could have one"):
        Adapter(model, AdapterConfig(rank=1, alpha=1.0, targets=all_linear(model), base_root=""), dtype=torch.float32)


def test_what_a_model_computes_with_for_a_while_is_not_what_is_saved() -> None:
    model = tiny_model("qwen3")
    adapter = adapted(model)
    bits, other = bits_of(adapter), {name: torch.zeros_like(each) for name, each in adapter.named_parameters()}
    with adapter.holding(other):
        assert root_of(bits_of(adapter)) == root_of(bits)
        held = logits(model)
    with adapter.off():
        assert torch.equal(held, logits(model))
