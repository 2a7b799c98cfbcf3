"""What the trainer computes with: float32, or bfloat16 with float32 masters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from contracts.errors import InvalidSettings

if TYPE_CHECKING:
    from pipelines.training.settings import TrainingSettings


@dataclass(frozen=True)
class Precision:
    """Of forward and backward passes on a device. Masters, moments, log-probs and loss are float32 in either."""

    device: torch.device
    is_reduced: bool
    """bfloat16, by autocast."""

    def computing(self) -> AbstractContextManager[object]:
        """The block of a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_reduced)


def precision_of(settings: TrainingSettings, device: torch.device) -> Precision:
    """As the settings say; by default bfloat16 on a GPU that computes with it, float32 elsewhere.

    Raises:
        InvalidSettings: the device has no bfloat16.
    """
    can_reduce = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not can_reduce:
        raise InvalidSettings(f'[training] precision: {device} does not compute in "bfloat16"; use "float32"')
    is_reduced = settings.precision == "bfloat16" or (
        settings.precision == "auto" and device.type == "cuda" and can_reduce
    )
    if is_reduced and device.type == "cuda":
        # The head stays float32. Its products are of numbers that bfloat16 already rounded, so TF32 takes little from them.
        torch.set_float32_matmul_precision("high")
    return Precision(device, is_reduced)
