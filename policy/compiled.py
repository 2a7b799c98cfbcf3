"""The layers of a model compiled: norms, rotary positions and activations run in few kernels, whatever the length of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from policy.routing import is_mixture

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger()

MOST_VARIANTS = 16
"""Of a layer's code: with and without gradients, packed or padded, two dtypes. What comes after them runs as it is."""


def compiled_layers(
    model: Any, backend: str | Callable[..., Any] = "inductor", *, kept: float = 1.0
) -> dict[Any, Callable[..., Any]]:
    """The compiled forward of each layer; the model stays as it is. None, and the log says why, where nothing can be compiled.

    Layers of one kind share what was compiled, and lengths are variables of it. The first step of each kind takes seconds.

    Args:
        model: whose layers.
        backend: of torch.compile.
        kept: the share of the activations that is held for the backward pass. It computes the others again, the cheapest first: norms,
            activations and attention before products with weights.
    """
    if problem := _problem(model, backend):
        log.warning("layers are not compiled", reason=problem)
        return {}
    torch._dynamo.config.recompile_limit = MOST_VARIANTS  # noqa: SLF001 where torch documents the setting
    chosen = backend if kept == 1 else _keeping(kept, backend)  # layers share what one backend compiled
    return {
        module: torch.compile(module.forward, dynamic=True, backend=chosen)
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer)
    }


def _keeping(share: float, backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """The backend with another budget of activations, so that dynamo tells what it compiled from the plain one's."""
    compiler = torch._dynamo.lookup_backend(backend) if isinstance(backend, str) else backend  # noqa: SLF001 torch's only name for it

    def compile_within(graph: Any, inputs: Any) -> Any:
        with torch._functorch.config.patch(activation_memory_budget=share):  # noqa: SLF001 where torch documents the setting
            return compiler(graph, inputs)

    return compile_within


def _problem(model: Any, backend: str | Callable[..., Any]) -> str:
    """Why a model's layers cannot be compiled; found by compiling something small."""
    if is_mixture(model):
        return "the choices of its experts are replaced while it computes"
    parameter = next(model.parameters())
    try:
        torch.compile(torch.square, backend=backend)(parameter.detach().flatten()[:2])
    except Exception as error:  # noqa: BLE001 backends need compilers that a machine may not have, and each fails its own way
        return f"{type(error).__name__}: {' '.join(str(error).split()[:30])}"
    return ""
