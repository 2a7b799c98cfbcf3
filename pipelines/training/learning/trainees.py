"""The one place that makes a trainee of one process: for a trainer that starts, and for a step that is taken again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch

from contracts.memory.training import CARD_BYTES, HOST_BYTES, TrainingWay, require_card
from engines.cards import free_memory, read_shape
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.device import precision_of
from pipelines.training.learning.whole_model import WholeModel
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.memory.shapes import ModelShape
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.settings import TrainingSettings
    from weights.tensors import Tensor

log = structlog.get_logger()


def make_trainee(
    base: str, settings: TrainingSettings, device: str, bits: Mapping[str, Tensor] | None = None
) -> Trainee:
    """What these settings train, at its beginning.

    Args:
        base: folder or hub id of the base policy.
        settings: of training.
        device: such as `cpu` or `cuda:1`.
        bits: of version 0, which define the base policy even if its files have more precision; None: its files rounded, the same.

    Raises NotFound, WeightsRefused, InvalidSettings: see `load_model`, `copy_tensors`, `require_card` and the trainee.
    """
    on = torch.device(device)
    is_reduced = precision_of(settings, on).is_reduced
    held = sum(tensor.data.nbytes for tensor in (bits or {}).values())
    way = way_on(base, settings, device, held) if on.type == "cuda" else None
    # Float32 weights may fit into host memory alone: the trainee brings them to the device. A base that never changes needs no more than
    # its published bits.
    dtype = torch.bfloat16 if is_reduced and settings.adapter is not None else torch.float32
    model = load_model(base, device="cpu", dtype=dtype)
    copy_tensors(model, tensors_of(model) if bits is None else bits)
    return trainee_of(model, settings, device, way)


def way_on(base: str, settings: TrainingSettings, device: str, held: int = 0, processes: int = 1) -> TrainingWay | None:
    """What fits a GPU as it is now. None: of a hub id nothing is here yet. `held`: bytes of the host that are given back."""
    if not Path(base).is_dir():
        return None
    on = torch.device(device)
    is_reduced = precision_of(settings, on).is_reduced
    training = settings.model_dump() | {"precision": "bfloat16" if is_reduced else "float32"}
    training |= {} if processes == 1 else {"masters": "device"}
    free = torch.cuda.mem_get_info(on)[0], free_memory() + held
    way = way_now(read_shape(Path(base)), training, *free, device, processes=processes)
    log.info("what the trainer holds fits", way=way.says, **way._asdict())
    return way


def trainee_of(
    model: Any, settings: TrainingSettings, device: str = "cpu", way: TrainingWay | None = None
) -> WholeModel:
    """What these settings train of a model that holds the published bits of the base policy. `way`: of a whole model."""
    if settings.adapter is not None:
        return AdapterModel(model, settings, device)
    return WholeModel(model, settings, device, way)


def way_now(
    shape: ModelShape,
    training: Mapping[str, Any],
    free_bytes: int,
    free_host_bytes: int,
    device: str,
    *,
    processes: int = 1,
) -> TrainingWay:
    """As `require_card`, for a process that is there already: what it took of device and host for that is not free any more."""
    room = free_bytes + CARD_BYTES, device
    return require_card(shape, training, *room, host=free_host_bytes + HOST_BYTES, processes=processes)[0]
