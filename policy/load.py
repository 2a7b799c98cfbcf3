"""A policy from its checkpoint: a folder in the layout of Hugging Face, or the id of one on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from contracts.errors import NotFound, WeightsRefused

_PAGED = {"full_attention", "sliding_attention"}


def load_model(path_or_hub_id: str, *, device: str, dtype: torch.dtype) -> Any:
    """The model of a checkpoint, in eval mode, no parameter requiring a gradient.

    `path_or_hub_id`: a folder with `config.json` and safetensors, or a hub id such as `Qwen/Qwen3-0.6B`. Parameters are cast to `dtype`.

    Raises NotFound: no such folder, or the hub has no such model (or cannot be reached); WeightsRefused: `unreadable_checkpoint`: a weight
    file is truncated or damaged.
    """
    if _is_path(path_or_hub_id) and not (Path(path_or_hub_id) / "config.json").is_file():
        raise NotFound(f"{path_or_hub_id} holds no model: expected a folder with config.json and safetensors files")
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path_or_hub_id, dtype=dtype)
    except SafetensorError as error:
        raise WeightsRefused("unreadable_checkpoint", f"{path_or_hub_id} is damaged: {error}") from error
    except OSError as error:
        raise NotFound(f"cannot load {path_or_hub_id}: {error}") from error
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # weights are changed by their place in the flat parameter
    avoid_planned_attention(device)
    return model.to(device).eval().requires_grad_(requires_grad=False)


def avoid_planned_attention(device: torch.device | str) -> None:
    """Keep cuDNN's attention out of this process: it plans anew for every shape, for longer than other kernels compute."""
    if torch.device(device).type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def context_of(config: Any) -> int | None:
    """The most tokens of prompt and answer together; None if the configuration names no limit."""
    for name in ("max_position_embeddings", "n_positions"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    return None


def is_paged(model: Any) -> bool:
    """True if transformers' continuous batching can keep this model's cache in pages: all of its layers are attention.

    Layers with a recurrent state (state spaces, convolutions, linear attention) are stepped with a cache of their own.
    """
    config = model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        return False
    return set(getattr(config, "layer_types", None) or ()) <= _PAGED


def _is_path(path_or_hub_id: str) -> bool:
    """Hub ids are `name` or `owner/name`; everything that exists here or looks absolute or relative is a path."""
    return path_or_hub_id.startswith(("/", ".", "~")) or path_or_hub_id.count("/") > 1 or Path(path_or_hub_id).exists()
