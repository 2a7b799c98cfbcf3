"""How much of a card each vLLM server takes, so that the trainer beside it has room. In: the policy, how it is trained, the card. Out: a share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from contracts.assignments import SLOTS
from contracts.errors import InvalidSettings
from contracts.memory.shapes import ModelShape
from contracts.memory.training import GB, TrainingWay, require_card
from engines.cards import card_bytes, read_shape
from engines.vllm.adapters import adapter_slots
from engines.vllm.settings import VllmSettings
from runtime.settings import Settings, read_home_settings

_LEAST_BYTES = 2 * GB
"""Of a server beside its weights: CUDA's context and graphs, and a cache that is worth having. Not measured."""
_SPARE_BYTES, _SPARE = 2 * GB, 0.03
"""What nobody is given, in bytes or as a part of the card, whichever is more: servers and trainer take more than is computed. Not measured."""
_log = structlog.get_logger(__name__)


def sized(settings: Settings, own: VllmSettings) -> VllmSettings:
    """The settings of a server that is started now: with `memory` on a GPU, which the log tells. Raises InvalidSettings: as `memory_for`."""
    training = (read_home_settings(settings.home) or {}).get("training", {})
    memory = memory_for(settings, own, training)[1]
    if memory is None:
        return own
    _log.info("vllm_memory", memory=memory, num_slots=len(own.slots), is_given=own.memory is not None)
    return own.model_copy(update={"memory": memory})


def memory_for(
    settings: Settings, own: VllmSettings, training: Mapping[str, Any]
) -> tuple[TrainingWay | None, float | None]:
    """How the policy is trained beside the servers, and the share of the card for each. None: nothing is computed; no card is used.

    Args:
        settings: of the home.
        own: the servers.
        training: the section [training], as plain values.

    Raises InvalidSettings: as `share_of`; or nobody can tell how much memory the card has.
    """
    if settings.device == "cpu" or own.memory is not None:
        return None, own.memory
    if (card := card_bytes(settings.device)) is None:
        raise InvalidSettings(
            f"nvidia-smi does not tell how much memory {settings.device} has: set [vllm] memory, the share of it for each server"
        )
    if (read_home_settings(settings.home) or {}).get("gpu", {}).get("pool"):  # the trainer has cards of its own
        spare = max(_SPARE_BYTES, math.ceil(_SPARE * card))
        return None, math.floor(
            1000 * (card - spare) / card / num_servers(own, (training.get("adapter") or {}).get("rank", 0))
        ) / 1000
    return share_of(read_shape(Path(settings.base)), training, own, card, settings.device)


def share_of(
    shape: ModelShape, training: Mapping[str, Any], own: VllmSettings, card: int, device: str
) -> tuple[TrainingWay, float]:
    """How the policy is trained, and what the trainer leaves of a card, in equal parts: the `--gpu-memory-utilization` of each server.

    Args:
        shape: of the policy.
        training: the section [training], as plain values.
        own: the servers.
        card: all of its memory, in bytes.
        device: its name.

    Raises InvalidSettings: the trainer and the servers do not fit; names the settings that would.
    """

    def spare(way: TrainingWay) -> int:
        # A trainer that starts before the servers has room for float32 gradients, though bfloat16 would do, and takes it.
        return max(_SPARE_BYTES, math.ceil(_SPARE * card)) + (2 * shape.num_weights if way.is_tight else 0)

    def least(way: TrainingWay) -> int:
        each = 2 * shape.num_weights + adapter_bytes(shape, way.rank) + _LEAST_BYTES
        return spare(way) + num_servers(own, way.rank) * each

    way, trainer = require_card(shape, training, card, device, beside=least)
    return way, math.floor(1000 * (card - trainer.card - spare(way)) / card / num_servers(own, way.rank)) / 1000


def adapter_bytes(shape: ModelShape, rank: int) -> int:
    """What vLLM takes at its start for adapters of a rank, in bfloat16; 0: there are none.

    It makes room in all linear maps, those of experts too, in embedding and head, whatever the targets are (read in vLLM 0.32.0).
    """
    if not rank:
        return 0
    largest, num = adapter_slots(rank, len(SLOTS))
    numbers = sum(linear.num_in + linear.num_out for linear in shape.linears) + 2 * (shape.vocabulary + shape.width)
    return 2 * num * largest * numbers


def num_servers(own: VllmSettings, rank: int) -> int:
    """Servers on the card: one per slot; where an adapter is trained, each holds all arms, so as many as share one arm."""
    return max(own.slots.count(arm) for arm in own.slots) if rank else len(own.slots)
