"""LoRA over a base that no rank holds as a whole.

The base is frozen and in shards. Adapter, moments and what is published of them are whole on every rank, and the same: nothing large is gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.device import precision_of
from pipelines.training.shards.sharded import Share

if TYPE_CHECKING:
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.loading import BaseFiles


class ShardedAdapter(Share, AdapterModel):
    """A rank's rows of the base, and the adapter. A `Trainee`, if all ranks do the same."""

    def __init__(self, files: BaseFiles, root: str, settings: TrainingSettings, device: str, group: Group) -> None:
        """`root`: of the base."""
        self._root, self._is_summed = root, False
        """The gradient is that of all ranks."""
        is_reduced = precision_of(settings, torch.device(device)).is_reduced
        dtype = torch.bfloat16 if is_reduced else torch.float32
        super().__init__(files.shards(group, device=device, dtype=dtype, trained=False), settings, device, group)

    def _bring(self, model: Any) -> str:  # noqa: ARG002 it is there
        return self._root

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        self._sum_gradient()
        return super().clip(max_norm)

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        self._sum_gradient()
        return super().take_step(scale)

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        super().forget_gradient()
        self._is_summed = False

    def _differentiate(self, loss: torch.Tensor, share: float) -> None:
        if self._is_summed and self._group.rank:
            self.optimizer.zero_grad()  # rank 0 has it
        self._is_summed = False
        super()._differentiate(loss, share)

    def _sum_gradient(self) -> None:
        if self._is_summed:
            return
        weights = [weight for _, weight in self.adapter.named_parameters()]
        has_one = torch.tensor([float(weight.grad is not None) for weight in weights], device=self.device)
        self._group.sum(has_one)
        for weight, number in zip(weights, has_one.tolist(), strict=True):
            if number:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                self._group.sum(weight.grad)
        self._is_summed = True
