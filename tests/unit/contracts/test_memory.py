"""What training takes of a card: the figures of known models, refusals."""

from __future__ import annotations

import pytest

from contracts.errors import InvalidSettings
from contracts.memory.shapes import ModelShape, shape_of
from contracts.memory.training import (
    GB,
    MAX_TOKENS,
    USUAL,
    WAYS,
    Passes,
    TrainingWay,
    memory_of,
    passes_of,
    require_card,
    settings_that_fit,
    ways_for,
    ways_of,
)
from pipelines.training.settings import TrainingSettings
from tests.each_case import each_case

DEVICE, HOST, RANK_8, RANK_32 = WAYS
WIDE = HOST._replace(is_tight=False)
LORA = {"adapter": {"rank": 8, "alpha": 32.0, "targets": ()}}


def dense(layers: int, width: int, *, inner: int, queries: int, keys: int, vocabulary: int) -> ModelShape:
    """A model like Llama and Qwen3 with an untied head."""
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "lm_head.weight": (vocabulary, width),
    }
    shapes = {
        "self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner), "input_layernorm": (width,), "post_attention_layernorm": (width,),
    }  # fmt: skip
    tensors |= {f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in shapes.items()}
    return shape_of({"num_hidden_layers": layers, "hidden_size": width, "vocab_size": vocabulary}, tensors)


QWEN3_8B = dense(36, 4096, inner=12_288, queries=4096, keys=1024, vocabulary=151_936)
LLAMA_70B = dense(80, 8192, inner=28_672, queries=8192, keys=1024, vocabulary=128_256)


@each_case(
    ("shape", "way", "millions", "megabytes", "gigabytes"),
    [
        (QWEN3_8B, RANK_8, 21.8, 44, 0.35),
        (QWEN3_8B, RANK_32, 87.3, 175, 1.4),
        (LLAMA_70B, RANK_8, 104, 207, 1.7),
        (LLAMA_70B, RANK_32, 414, 828, 6.6),
    ],
)
def test_an_adapter_weighs_what_its_linear_maps_say(
    shape: ModelShape, way: TrainingWay, millions: float, megabytes: float, gigabytes: float
) -> None:
    need = memory_of(shape, way)
    assert shape.adapter_weights(way.rank) / 1e6 == pytest.approx(millions, abs=0.5)
    assert need.adapter / 1e6 == pytest.approx(megabytes, abs=1)
    assert need.state / GB == pytest.approx(gigabytes, abs=0.05)
    assert (need.base + need.adapter + need.state) / shape.num_weights < 2.3


def test_one_card_holds_eight_billion_by_lora_and_whole_weights_only_with_masters_on_the_host() -> None:
    assert memory_of(QWEN3_8B, RANK_8, Passes(2048)).card < 24 * GB
    assert 24 * GB < memory_of(QWEN3_8B, RANK_8).card < 48 * GB
    assert memory_of(QWEN3_8B, DEVICE).card > 80 * GB > memory_of(QWEN3_8B, HOST).card
    whole, host = memory_of(QWEN3_8B, DEVICE), memory_of(QWEN3_8B, HOST)
    assert (whole.base + whole.state) / QWEN3_8B.num_weights == 20
    assert (host.base + host.state) / QWEN3_8B.num_weights == 6
    assert (host.host - whole.host) / QWEN3_8B.num_weights == 12 + 2
    assert memory_of(QWEN3_8B, RANK_8).activations / GB > 36 * 8192 * 4096 * 2 / GB == pytest.approx(2.4, abs=0.02)


def test_what_does_not_fit_is_refused_with_the_settings_that_would() -> None:
    with pytest.raises(
        InvalidSettings,
        match=r"takes 17\d\.\d GB, and cuda has 48\.0 GB; what fits: .* or \[training\] adapter = \{ rank = 8, ",
    ) as refused:
        require_card(QWEN3_8B, {"masters": "device", "max_tokens": 8192}, 48 * GB, "cuda")
    assert 'masters = "host", kl_coefficient = 0 and mismatch_samples = 0;' in refused.value.message
    assert require_card(QWEN3_8B, LORA, 48 * GB, "cuda") == (RANK_8, memory_of(QWEN3_8B, RANK_8))
    assert require_card(QWEN3_8B, {"masters": "auto"}, 80 * GB, "cuda")[0] == WIDE
    assert [*settings_that_fit(QWEN3_8B, USUAL, lambda _, need: need.card <= 23 * GB)] == [
        "adapter = { rank = 8, alpha = 32 } and max_tokens = 2048"
    ]
    with pytest.raises(InvalidSettings, match="no way of training fits: take a larger card"):
        require_card(LLAMA_70B, LORA, 80 * GB, "cuda")


def test_seventy_billion_train_by_lora_on_four_cards_of_80_gb() -> None:
    need = memory_of(LLAMA_70B, RANK_8, processes=4)
    assert need.card < 70 * GB
    assert need.base / GB == pytest.approx(141 / 4 + 4.2 + 2 * 1.7, abs=0.3), "rows; embedding and head; two layers"
    assert need.state == memory_of(LLAMA_70B, RANK_8).state
    assert memory_of(LLAMA_70B, RANK_8, processes=1).card > 141 * GB
    assert require_card(LLAMA_70B, LORA, 80 * GB, "cuda", processes=4) == (RANK_8, need)
    assert {way.is_host for way in ways_for(LLAMA_70B, 4)} == {False}
    with pytest.raises(InvalidSettings, match="in 2 processes takes"):
        require_card(LLAMA_70B, LORA, 80 * GB, "cuda", processes=2)


def test_each_process_has_its_share_of_masters_and_gathers_weights_that_compute() -> None:
    one, four = (memory_of(QWEN3_8B, DEVICE, processes=processes) for processes in (1, 4))
    assert four.state == pytest.approx(one.state / 4, rel=1e-6)
    assert four.base == 2 * QWEN3_8B.gathered_weights < one.base / 4
    assert four.card < 80 * GB < one.card
    wide = Passes(is_reduced=False)
    rows = memory_of(QWEN3_8B, DEVICE, wide, processes=4).base - 4 * QWEN3_8B.gathered_weights
    assert rows == pytest.approx(QWEN3_8B.num_weights, rel=1e-6), "float32 masters are the weights"


def test_the_section_says_how_it_is_trained() -> None:
    assert TrainingSettings().max_tokens == MAX_TOKENS
    assert ways_of(TrainingSettings().model_dump())[0] == DEVICE
    assert passes_of({}) == passes_of(TrainingSettings().model_dump()) == USUAL
    assert ways_of({"masters": "host"}) == (WIDE, HOST)
    assert ways_of({"masters": "auto", "adapter": None}) == (DEVICE, WIDE, HOST)
    assert ways_of({"masters": "auto", **LORA}) == ways_of({"adapter": {}}) == (RANK_8,)
    for adapter in (8, {"rank": 0}, {"rank": 1000}):
        with pytest.raises(InvalidSettings, match=r"adapter is .*; write adapter = \{ rank = 8 \}, with a rank from 1"):
            ways_of({"adapter": adapter})


def test_what_the_trainer_will_not_hold_is_not_counted() -> None:
    weights = QWEN3_8B.num_weights

    def per_weight(way: TrainingWay, **training: object) -> float:
        need = memory_of(QWEN3_8B, way, passes_of(training))
        return (need.base + need.state - 18 * QWEN3_8B.adapter_weights(way.rank) + need.adapter) / weights

    no_anchor = {"kl_coefficient": 0.0, "mismatch_samples": 0}
    assert (per_weight(DEVICE), per_weight(DEVICE, **no_anchor)) == (20, 18)
    assert per_weight(DEVICE, kl_coefficient=0.0) == per_weight(DEVICE, mismatch_samples=0) == 20, "either scores"
    assert (per_weight(WIDE), per_weight(HOST, **no_anchor)) == (8, 4)
    assert per_weight(DEVICE, precision="float32") == 18, "the weights are their own masters"
    assert per_weight(HOST, precision="float32") == 10
    wide = memory_of(QWEN3_8B, RANK_8, passes_of({"precision": "float32"}))
    assert (wide.base, memory_of(QWEN3_8B, RANK_8).base) == (4 * weights, 2 * weights)
    with pytest.raises(InvalidSettings, match=r"in float32 takes 4\d\.\d GB"):
        require_card(QWEN3_8B, {**LORA, "precision": "float32"}, 40 * GB, "cuda")


def mixture(*, is_fused: bool) -> ModelShape:
    """Two layers of Qwen3-30B-A3B: 128 experts, 8 for a token."""
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 2048,
        "vocab_size": 1000,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    }
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (1000, 2048)}
    for layer in ("model.layers.0", "model.layers.1"):
        tensors |= {f"{layer}.self_attn.q_proj.weight": (4096, 2048), f"{layer}.mlp.gate.weight": (128, 2048)}
        if is_fused:
            tensors |= {
                f"{layer}.mlp.experts.gate_up_proj": (128, 1536, 2048),
                f"{layer}.mlp.experts.down_proj": (128, 2048, 768),
            }
            continue
        for expert in range(128):
            parts = {"gate_proj": (768, 2048), "up_proj": (768, 2048), "down_proj": (2048, 768)}
            tensors |= {f"{layer}.mlp.experts.{expert}.{name}.weight": shape for name, shape in parts.items()}
    return shape_of({"text_config": config}, tensors)


def test_experts_and_their_router_have_no_adapter_and_a_token_goes_through_few() -> None:
    split, fused = mixture(is_fused=False), mixture(is_fused=True)
    assert split.num_weights == fused.num_weights
    assert split.adapter_weights(8) == fused.adapter_weights(8) == 2 * 8 * (4096 + 2048)
    assert (split.num_experts, split.num_active) == (128, 8)
    per_token = memory_of(split, DEVICE).activations / MAX_TOKENS
    assert per_token == 2 * 2048 * 2 + 4 * (4096 + 2048) + 8 * 3 * 4 * (2048 + 768)
    assert memory_of(fused, DEVICE).activations < per_token * MAX_TOKENS, "gate and up read one input"


def test_a_configuration_without_sizes_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="does not say hidden_size and vocab_size"):
        shape_of({"num_hidden_layers": 2}, {})
