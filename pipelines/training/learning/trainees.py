"""The one place that makes a trainee: for a trainer that starts, and for a step that is taken again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.whole_model import WholeModel
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.settings import TrainingSettings
    from weights.tensors import Tensors


def make_trainee(base: str, settings: TrainingSettings, device: str, bits: Tensors | None = None) -> Trainee:
    """What these settings train, at its beginning.

    Args:
        base: folder or hub id of the base policy.
        settings: of training.
        device: such as `cpu` or `cuda:1`.
        bits: of version 0, which define the base policy even if its files have more precision; None: its files rounded, the same.

    Raises NotFound, WeightsRefused, InvalidSettings: see `load_model`, `copy_tensors` and the trainee.
    """
    model = load_model(base, device=device, dtype=torch.float32)
    copy_tensors(model, tensors_of(model) if bits is None else bits)
    return trainee_of(model, settings, device)


def trainee_of(model: Any, settings: TrainingSettings, device: str = "cpu") -> WholeModel:
    """What these settings train of a model that holds the published bits of the base policy."""
    return WholeModel(model, settings, device) if settings.adapter is None else AdapterModel(model, settings, device)
