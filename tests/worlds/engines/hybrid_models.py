"""Tiny random models of further architectures with recurrent states: what tests/models.py has, and more hybrids."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models import KINDS
from tests.worlds.engines.policies import SPREAD, sharp_model

_COMMON = {
    "vocab_size": 704,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 32}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **_ATTENTION,
        **_EXPERTS,
        "head_dim": 16,
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "granitemoehybrid": {
        **_ATTENTION,
        **_MAMBA,
        "shared_intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["mamba", "attention"],
    },
    "falcon_h1": {**_ATTENTION, **_MAMBA, "head_dim": 16, "mamba_d_ssm": 128},
    "jamba": {
        **_ATTENTION,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
    },
    "mamba": {"state_size": 16},
}


def any_model(kind: str, seed: int = 7) -> Any:
    """A model of one of tests/models.py's kinds or of `HYBRIDS`, that is not nearly uniform."""
    if kind in KINDS:
        return sharp_model(kind, seed)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_COMMON, **HYBRIDS[kind]})
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.requires_grad_(requires_grad=False)
    model.get_output_embeddings().weight.mul_(SPREAD)
    return model
