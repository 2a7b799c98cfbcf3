"""Tiny random checkpoints of several architectures, with the tokenizer and template of the demo's base policy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

BASE = Path(__file__).parent.parent / "examples" / "reservations" / "base"
KINDS = ("llama", "qwen3", "gemma3", "qwen3_moe", "lfm2", "mamba2")
"""Served and trained in tests; `gpt2`, with absolute positions, is only trained."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_SHARD_SIZE = "150KB"

_COMMON = {
    "vocab_size": 704,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_ATTENTION, "intermediate_size": 128, "tie_word_embeddings": False}),
    "qwen3": ("qwen3", {**_ATTENTION, "intermediate_size": 128, "tie_word_embeddings": True}),
    "gemma3": (
        "gemma3_text",
        {
            **_ATTENTION,
            "intermediate_size": 128,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 16,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **_ATTENTION,
            "intermediate_size": 128,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("gpt2", {"n_head": 4, "n_layer": 2, "n_embd": 64, "n_positions": 512}),
    "lfm2": (
        "lfm2",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 128,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "mamba2": (
        "mamba2",
        {"state_size": 16, "num_heads": 4, "head_dim": 32, "expand": 2, "n_groups": 1, "chunk_size": 32},
    ),
}


Parameters = ParamSpec("Parameters")


def built_once(build: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """A builder that builds a model once for each choice of arguments and gives out copies, which takes a third of the time.

    torch's generator is left where building leaves it.
    """

    @cache
    def built(*args: Any, **named: Any) -> tuple[Any, torch.Tensor]:
        with torch.inference_mode(mode=False):
            return build(*args, **named), torch.get_rng_state()

    @wraps(build)
    def copy_of(*args: Parameters.args, **named: Parameters.kwargs) -> Any:
        model, state = built(*args, **named)  # type: ignore[arg-type]
        torch.set_rng_state(state)
        return deepcopy(model)

    return copy_of


def llama_config(**changes: Any) -> LlamaConfig:
    """Of a Llama with 2 layers of 32, 64 tokens and a context of 64; `changes` replaces or adds to that."""
    common = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True}  # fmt: skip
    return LlamaConfig(**{**common, **changes})


@built_once
def tiny_model(kind: str, *, dtype: torch.dtype = torch.float32, seed: int = 7, **more: Any) -> Any:
    """A random model of one of `KINDS`, in eval mode; `more` changes its configuration."""
    model_type, own = _CONFIGS[kind]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**_COMMON, **own, **more})
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def build_model(
    kind: str, folder: Path, *, sharded: bool = False, dtype: torch.dtype = torch.bfloat16, seed: int = 7, **more: Any
) -> Path:
    """Save a random model of one of `KINDS` as a checkpoint; returns `folder`.

    Args:
        kind: the architecture.
        folder: is created; it gets the weights, configuration, tokenizer, template and generation configuration.
        sharded: write several weight files and an index.
        dtype: of the saved tensors.
        seed: of the random weights.
        more: changes to the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model(kind, dtype=dtype, seed=seed, **more).save_pretrained(
        folder, max_shard_size=_SHARD_SIZE if sharded else "1GB"
    )
    for name in _TOKENIZER_FILES:
        shutil.copyfile(BASE / name, folder / name)
    return folder
