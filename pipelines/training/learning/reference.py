"""Log-probs of policies that are not trained: of the base, for the KL; of a published version, for the mismatch between engine and trainer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import structlog
import torch

from pipelines.training.state import BASE_VERSION
from policy.frozen_copy import frozen_copy
from policy.logprobs import TokenScorer
from policy.weights import copy_tensors

if TYPE_CHECKING:
    from pipelines.training.learning.device import Precision
    from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch
    from pipelines.training.learning.trainee import PublishedBits
    from weights.tensors import Tensors

log = structlog.get_logger()


class ReferencePolicy(Protocol):
    """A copy of the model is one form. Where only an adapter is trained, the model without its adapter can be another."""

    def of_base(self, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """Log-probs [B, T] of a batch under the base policy."""

    def of_version(self, published: PublishedBits, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """Log-probs [B, T] of a batch under the bits of a version."""


class FrozenCopy:
    """A second copy of the model. It loads the bits that a call asks for."""

    def __init__(self, model: Any, base: Tensors, precision: Precision) -> None:
        """Copies `model`, at 2 bytes per parameter, or 4 where the model reads its weights outside the modules that hold them."""
        self.base, self._precision = base, precision
        try:
            self._model = frozen_copy(model, precision.device, widen_layers=not precision.is_reduced)
            with precision.computing():
                self._scorer = TokenScorer(self._model)
        except RuntimeError as error:
            log.info("the frozen policy takes 4 bytes per parameter", reason=str(error))
            self._model = copy.deepcopy(model).to(precision.device).requires_grad_(requires_grad=False).eval()
            self._scorer = TokenScorer(self._model)
        self._version: int | None = None

    def of_base(self, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """As in `ReferencePolicy`."""
        return self._log_probs(BASE_VERSION, self.base, batch)

    def of_version(self, published: PublishedBits, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """As in `ReferencePolicy`."""
        return self._log_probs(published.version, published.bits, batch)

    @torch.no_grad()
    def _log_probs(self, version: int, bits: Tensors, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        if version != self._version:
            self._version = None
            copy_tensors(self._model, bits)
            self._version = version
        with self._precision.computing():
            return batch.scored_by(self._scorer).log_probs_BT
