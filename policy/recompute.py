"""Activation checkpointing for a model in eval mode: the backward pass computes each block again.

transformers' own switch works in train mode only, where layers also drop activations at random. Only the inputs of blocks are held:
D floats per token and block instead of about 20 D.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """A block in which forward passes hold only the inputs of the model's layers. What the layers read must stay until the backward pass."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
