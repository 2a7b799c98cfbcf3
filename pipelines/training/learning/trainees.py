"""The one place that makes a trainee: for a trainer that starts, and for a step that is taken again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch

from contracts.errors import WeightsRefused
from contracts.memory.training import CARD_BYTES, HOST_BYTES, TrainingWay, require_card
from engines.cards import free_memory, read_shape
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.device import precision_of
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.shards.adapter import ShardedAdapter
from pipelines.training.shards.loading import BaseFiles
from pipelines.training.shards.trainee import GroupTrainee
from pipelines.training.shards.whole import ShardedModel
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.memory.shapes import ModelShape
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.sharded import Share
    from weights.tensors import Tensors

log = structlog.get_logger()


def make_trainee(
    base: str,
    settings: TrainingSettings,
    device: str,
    bits: Tensors | None = None,
    *,
    group: Group | None = None,
    root: str = "",
) -> Trainee:
    """What these settings train, at its beginning.

    Args:
        base: folder or hub id of the base policy.
        settings: of training.
        device: such as `cpu` or `cuda:1`.
        bits: of version 0, which define the base policy even if its files have more precision; None: its files rounded, the same.
        group: the processes that share it, of which this is rank 0; the others call `make_share`, and `follow`.
        root: of version 0, if its bits are not given: the files must have it.

    Raises NotFound, WeightsRefused, InvalidSettings: see `load_model`, `BaseFiles`, `copy_tensors`, `require_card` and the trainee.
    """
    if group is not None:
        return GroupTrainee(make_share(base, settings, device, group, root), group)
    on = torch.device(device)
    is_reduced = precision_of(settings, on).is_reduced
    way = None
    if on.type == "cuda" and Path(base).is_dir():  # of a hub id nothing is here yet
        training = settings.model_dump() | {"precision": "bfloat16" if is_reduced else "float32"}
        held = sum(tensor.data.nbytes for tensor in (bits or {}).values())
        free = torch.cuda.mem_get_info(on)[0], free_memory() + held
        way = way_now(read_shape(Path(base)), training, *free, device)
        log.info("what the trainer holds fits", way=way.says, **way._asdict())
    # Float32 weights may fit into host memory alone: the trainee brings them to the device. A base that never changes needs no more than
    # its published bits.
    dtype = torch.bfloat16 if is_reduced and settings.adapter is not None else torch.float32
    model = load_model(base, device="cpu", dtype=dtype)
    copy_tensors(model, tensors_of(model) if bits is None else bits)
    return trainee_of(model, settings, device, way)


def make_share(base: str, settings: TrainingSettings, device: str, group: Group, root: str = "") -> Share:
    """This rank's part of what these settings train; arguments and errors are those of `make_trainee`."""
    files = BaseFiles(base)
    found = files.root(group)
    if root and found != root:
        raise WeightsRefused("other_model", f"the files of {base} are not what version 0 was published from")
    if settings.adapter is not None:
        return ShardedAdapter(files, found, settings, device, group)
    return ShardedModel(files, settings, device, group)


def trainee_of(
    model: Any, settings: TrainingSettings, device: str = "cpu", way: TrainingWay | None = None
) -> WholeModel:
    """What these settings train of a model that holds the published bits of the base policy. `way`: of a whole model."""
    if settings.adapter is not None:
        return AdapterModel(model, settings, device)
    return WholeModel(model, settings, device, way)


def way_now(
    shape: ModelShape, training: Mapping[str, Any], free_bytes: int, free_host_bytes: int, device: str
) -> TrainingWay:
    """As `require_card`, for a process that is there already: what it took of device and host for that is not free any more."""
    return require_card(shape, training, free_bytes + CARD_BYTES, device, host=free_host_bytes + HOST_BYTES)[0]
