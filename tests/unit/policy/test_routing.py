# ruff: noqa: N806 - tensors carry the letters of their dimensions
"""Recorded and replayed experts, on tiny models of several families."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from contracts.errors import ExpertsNotReplayed
from policy.routing import ABSENT, ExpertRecorder, ExpertReplay, Routing, expert_layers, routing_of
from tests.models import tiny_model
from tests.tolerances import network_tolerance

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    "pad_token_id": 0,
}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
    "deepseek_v2": {**LATENT, **GROUPS, "topk_method": "group_limited_greedy", "mlp_layer_types": ["dense", "sparse"]},
    "deepseek_v3": {**LATENT, **GROUPS},
}
IDS_BL = torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(3))


def model_of(family: str) -> Any:
    if family == "qwen3_moe":
        return tiny_model("qwen3_moe")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)  # some routers are initialised with zeros, so that every choice is a tie
    return model


def logits_of(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=IDS_BL, use_cache=False).logits
    return logits.detach()


def recorded(model: Any) -> torch.Tensor:
    recorder = ExpertRecorder(model)
    logits_of(model)
    chosen = recorder.take()
    recorder.close()
    assert chosen is not None
    return chosen.view(*IDS_BL.shape, *chosen.shape[1:])


@pytest.mark.parametrize("family", ["qwen3_moe", *FAMILIES])
def test_a_models_own_choices_replayed_change_no_bit_and_others_do(family: str) -> None:
    model = model_of(family)
    routing = routing_of(model)
    before, own_BLMK = logits_of(model), recorded(model)

    assert routing.replayable, routing.problem
    assert own_BLMK.shape[2:] == (len(routing.layers), routing.num_chosen)
    replay = ExpertReplay(model)
    replay.use(own_BLMK)
    assert torch.equal(logits_of(model), before)

    replay.use((own_BLMK + 1) % routing.num_experts)
    assert torch.equal(recorded(model), (own_BLMK + 1) % routing.num_experts)
    assert not torch.equal(logits_of(model), before)

    replay.use(None)
    assert torch.equal(logits_of(model), before)
    replay.close()
    assert "forward" not in vars(expert_layers(model)[0].block)


def test_tokens_without_a_record_choose_themselves() -> None:
    model = tiny_model("qwen3_moe")
    own_BLMK, before = recorded(model), logits_of(model)
    given_BLMK = torch.full_like(own_BLMK, ABSENT)
    given_BLMK[1] = (own_BLMK[1] + 1) % 4
    ExpertReplay(model).use(given_BLMK)

    assert torch.equal(recorded(model)[0], own_BLMK[0])
    assert torch.equal(recorded(model)[1], given_BLMK[1])
    # An expert now computes other numbers of tokens at once, so it may sum in another order.
    torch.testing.assert_close(logits_of(model)[0], before[0], rtol=0, atol=network_tolerance(model.config))


def test_weights_of_given_experts_come_from_the_routers_own_scores_in_value_and_gradient() -> None:
    """R3: gates are the softmax over the router's own logits of the given experts (arXiv 2510.11370, section 3)."""
    model = tiny_model("qwen3_moe").requires_grad_(requires_grad=True)
    block = expert_layers(model)[0].block
    states_ND = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    given_NK = torch.tensor([[0, 1], [3, 0], [2, 1], [1, 2], [0, 3]])

    gate_NK = torch.nn.functional.linear(states_ND, block.gate.weight).gather(1, given_NK).softmax(-1)
    expected_ND = torch.stack([
        sum(
            weight * (block.experts.down_proj[expert] @ gated(block.experts.gate_up_proj[expert] @ state))
            for weight, expert in zip(weights, chosen, strict=True)
        )
        for state, weights, chosen in zip(states_ND, gate_NK, given_NK.tolist(), strict=True)
    ])  # fmt: skip
    expected = torch.autograd.grad(expected_ND.square().sum(), list(block.parameters()))

    replay = ExpertReplay(model)
    replay.use(given_NK[None, :, None].expand(1, 5, 2, 2))
    found_ND = block(states_ND[None])[0]
    found = torch.autograd.grad(found_ND.square().sum(), list(block.parameters()))

    # Qwen3 takes the softmax over all experts in float32, and normalises the chosen: equal to the softmax over the chosen.
    torch.testing.assert_close(found_ND, expected_ND, rtol=1e-4, atol=1e-5 * float(expected_ND.detach().abs().max()))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    assert (
        float(dict(zip([name for name, _ in block.named_parameters()], found, strict=True))["gate.weight"].norm()) > 0
    )


def gated(both: torch.Tensor) -> torch.Tensor:
    gate_F, up_F = both.chunk(2)
    return torch.nn.functional.silu(gate_F) * up_F


def test_a_dense_model_has_no_experts_and_a_family_that_cannot_be_replayed_is_named() -> None:
    assert routing_of(tiny_model("llama")) == Routing()
    config = AutoConfig.for_model("phimoe", **SIZES, num_local_experts=4)
    model = AutoModelForCausalLM.from_config(config).eval()
    routing = routing_of(model)

    assert not routing.replayable
    assert "PhimoeSparseMoeBlock does not take given experts" in routing.problem
    replay = ExpertReplay(model)
    replay.use((recorded(model) + 1) % 4)
    with pytest.raises(ExpertsNotReplayed, match="PhimoeSparseMoeBlock"):
        logits_of(model)


ROUTING = Routing(layers=(1, 3), num_hidden_layers=4, num_chosen=2, num_experts=4)
CHOICES = np.array([[[0, 1], [3, 2]], [[2, 0], [1, 3]]], np.uint16)
ALL_LAYERS = np.zeros((2, 4, 2), np.uint16)
ALL_LAYERS[:, [1, 3]] = CHOICES


@pytest.mark.parametrize("experts", [CHOICES, ALL_LAYERS])
def test_records_of_expert_layers_and_of_all_layers_are_read(experts: np.ndarray) -> None:
    found = ROUTING.choices(experts)
    assert found is not None
    np.testing.assert_array_equal(found, CHOICES)


@pytest.mark.parametrize(
    "experts", [CHOICES[:, :1], CHOICES[..., :1], CHOICES + 1, np.zeros_like(CHOICES), CHOICES.repeat(3, axis=1)]
)
def test_choices_that_the_model_cannot_have_made_are_none(experts: np.ndarray) -> None:
    assert ROUTING.choices(experts) is None
