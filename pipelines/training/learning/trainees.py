"""The one place that makes a trainee: for a trainer that starts, and for a step that is taken again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import structlog
import torch

from contracts.memory.training import CARD_BYTES, require_card
from engines.cards import read_shape
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.device import precision_of
from pipelines.training.learning.placement import Placement, placement
from pipelines.training.learning.whole_model import WholeModel
from policy.load import empty_model, load_model
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from contracts.memory.shapes import ModelShape
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.settings import TrainingSettings
    from weights.tensors import Tensors

log = structlog.get_logger()


def make_trainee(base: str, settings: TrainingSettings, device: str, bits: Tensors | None = None) -> Trainee:
    """What these settings train, at its beginning.

    Args:
        base: folder or hub id of the base policy.
        settings: of training.
        device: such as `cpu` or `cuda:1`.
        bits: of version 0, which define the base policy even if its files have more precision; None: its files rounded, the same.

    Raises NotFound, WeightsRefused, InvalidSettings: see `load_model`, `copy_tensors`, `placement` and the trainee.
    """
    on = torch.device(device)
    place = _placed(base, settings, on)
    # Float32 weights may fit into host memory alone: the trainee brings them to the device. A base that never changes needs no more than
    # its published bits.
    is_narrow = settings.adapter is not None and precision_of(settings, on).is_reduced
    model = load_model(base, device="cpu", dtype=torch.bfloat16 if is_narrow else torch.float32)
    copy_tensors(model, tensors_of(model) if bits is None else bits)
    return trainee_of(model, settings, device, place)


def trainee_of(
    model: Any, settings: TrainingSettings, device: str = "cpu", place: Placement | None = None
) -> WholeModel:
    """What these settings train of a model that holds the published bits of the base policy. `place`: of the masters of a whole model."""
    if settings.adapter is not None:
        return AdapterModel(model, settings, device)
    return WholeModel(model, settings, device, place)


def _placed(base: str, settings: TrainingSettings, device: torch.device) -> Placement | None:
    """What fits into a GPU's free memory, before anything is loaded; None on a CPU, where the settings decide, and beside an adapter."""
    if device.type != "cuda":
        return None
    if settings.adapter is not None:
        if Path(base).is_dir():  # of a hub id nothing is here yet
            require_free(read_shape(Path(base)), settings, torch.cuda.mem_get_info(device)[0], str(device))
        return None
    free = torch.cuda.mem_get_info(device)[0], psutil.virtual_memory().available
    found = fitting(base, settings, *free, is_reduced=precision_of(settings, device).is_reduced)
    log.info("float32 masters have their place", **found._asdict())
    return found


def require_free(shape: ModelShape, settings: TrainingSettings, free_bytes: int, device: str) -> None:
    """As `require_card`, for a process that has its context already: what CUDA took for that is not free any more."""
    require_card(shape, settings.model_dump(), free_bytes + CARD_BYTES, device)


def fitting(
    base: str, settings: TrainingSettings, free_device_bytes: int, free_host_bytes: int, *, is_reduced: bool
) -> Placement:
    """As `placement`, for a checkpoint of which only the configuration is read."""
    model = empty_model(base)
    config = model.config.get_text_config()
    # Recomputed layers keep their inputs; the one that computes, and the head, fifty times as much (`benchmarks.trainer.sizes`).
    elements = (config.num_hidden_layers + 50) * config.hidden_size * settings.max_tokens
    return placement(
        sum(parameter.numel() for parameter in model.parameters()),
        free_device_bytes,
        free_host_bytes,
        settings.masters,
        activation_bytes=elements * (2 if is_reduced else 4),
        is_reduced=is_reduced,
        has_reference=settings.kl_coefficient > 0 or settings.mismatch_samples > 0,
    )
