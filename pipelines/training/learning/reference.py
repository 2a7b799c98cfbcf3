"""Log-probs of policies that are not trained: of the base, for the KL; of a published version, for the mismatch between engine and trainer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import structlog
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from policy.logprobs import TokenScorer
from policy.weights import apply_patches, changes_from, stage_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipelines.training.learning.device import Precision
    from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch
    from policy.weights import Changes
    from weights.tensors import Tensor

log = structlog.get_logger()


class ReferencePolicy(Protocol):
    """Scores under policies that are not trained."""

    def log_probs(
        self, batches: Sequence[MicroBatch | PackedBatch], bits: Mapping[str, Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Log-probs [B, T] of each batch under the bits of a version; None: under the base policy."""


class FrozenCopy:
    """A second copy of the model, which holds the base policy. For a version, what differs is written over it, and later taken back."""

    def __init__(self, model: Any, precision: Precision) -> None:
        """Copies `model`, at 2 bytes per parameter, or 4 where a float32 model reads its weights outside the modules that hold them."""
        self._precision = precision
        self._bits: Mapping[str, Tensor] | None = None
        self._undo: Changes = {}
        """What makes it the base again: written any number of times, it does the same."""
        self._is_whole = True
        try:
            copied = copy.deepcopy if precision.is_reduced else frozen_copy
            self.model = copied(model).requires_grad_(requires_grad=False)
            self._scorer = TokenScorer(self.model)
        except RuntimeError as error:
            log.info("the frozen policy takes 4 bytes per parameter", reason=str(error))
            self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
            self._scorer = TokenScorer(self.model)

    @torch.no_grad()
    def log_probs(
        self, batches: Sequence[MicroBatch | PackedBatch], bits: Mapping[str, Tensor] | None = None
    ) -> list[torch.Tensor]:
        """As in `ReferencePolicy`."""
        self._hold(bits)
        with self._precision.computing():
            return [batch.scored_by(self._scorer).log_probs_BT for batch in batches]

    def _hold(self, bits: Mapping[str, Tensor] | None) -> None:
        """Hold the bits of a version, or those of the base again. If memory runs out half-way, the next call begins with the base."""
        if bits is self._bits and self._is_whole:
            return
        self._is_whole = False
        apply_patches(stage_changes(self.model, self._undo, with_undo=False))
        self._bits, self._undo = None, {}
        if bits is not None:
            patches = stage_changes(self.model, changes_from(self.model, bits, {}), names=bits)
            self._undo = patches.undo
            apply_patches(patches)
        self._bits, self._is_whole = bits, True


def frozen_copy(model: Any) -> Any:
    """A copy of a float32 model that is never trained. Its parameters rest as bfloat16; buffers stay as they are.

    The weights of a layer, and of each other module, become float32 while it computes, so results equal those of a float32 copy to the bit.
    """
    held = {
        id(parameter): torch.nn.Parameter(parameter.detach().to(torch.bfloat16, copy=True), requires_grad=False)
        for parameter in model.parameters()
    }
    found = copy.deepcopy(model, dict(held)).eval()
    layers = [module for module in found.modules() if isinstance(module, GradientCheckpointingLayer)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    for layer in layers:
        _widen(layer, [*layer.parameters()])
    for module in found.modules():
        if id(module) not in inside and (own := [*module.parameters(recurse=False)]):
            _widen(module, own)
    return found


def _widen(module: Any, parameters: list[torch.nn.Parameter]) -> None:
    """Float32 weights while the module's forward runs."""
    narrow: list[torch.Tensor] = []

    def before(_module: Any, _arguments: Any) -> None:
        narrow[:] = [parameter.data for parameter in parameters]
        for parameter, held in zip(parameters, narrow, strict=True):
            parameter.data = held.float()

    def after(_module: Any, _arguments: Any, _output: Any) -> None:
        for parameter, held in zip(parameters, narrow, strict=True):
            parameter.data = held
        narrow.clear()

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)
