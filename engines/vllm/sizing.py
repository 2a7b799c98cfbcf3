"""How much of a card each vLLM server takes, so that the trainer beside it has room. In: the policy, how it is trained, the card. Out: a share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from contracts.errors import InvalidSettings
from contracts.memory.shapes import ModelShape
from contracts.memory.training import GB, TrainingWay, require_card
from engines.cards import card_bytes, read_shape
from engines.vllm.settings import VllmSettings
from runtime.settings import Settings, read_home_settings

_LEAST_BYTES = 2 * GB
"""Of a server beside its weights: CUDA's context and graphs, and a cache that is worth having. Not measured."""
_log = structlog.get_logger(__name__)


def sized(settings: Settings, own: VllmSettings) -> VllmSettings:
    """The settings of a server that is started now: with `memory` on a GPU, which the log tells. Raises InvalidSettings: as `memory_for`."""
    if (memory := memory_for(settings, own)) is None:
        return own
    _log.info("vllm_memory", memory=memory, num_slots=len(own.slots), is_given=own.memory is not None)
    return own.model_copy(update={"memory": memory})


def memory_for(settings: Settings, own: VllmSettings) -> float | None:
    """The share of the card for each server; None: no card is used.

    Raises InvalidSettings: as `share_of`; or nobody can tell how much memory the card has.
    """
    if settings.device == "cpu" or own.memory is not None:
        return own.memory
    if (card := card_bytes(settings.device)) is None:
        raise InvalidSettings(
            f"nvidia-smi does not tell how much memory {settings.device} has: set [vllm] memory, the share of it for each server"
        )
    training = (read_home_settings(settings.home) or {}).get("training", {})
    return share_of(read_shape(Path(settings.base)), training, own, card, settings.device)


def share_of(shape: ModelShape, training: Mapping[str, Any], own: VllmSettings, card: int, device: str) -> float:
    """What the trainer leaves of a card, in equal parts: the `--gpu-memory-utilization` of each server.

    Args:
        shape: of the policy.
        training: the section [training], as plain values.
        own: the servers.
        card: all of its memory, in bytes.
        device: its name.

    Raises InvalidSettings: the trainer and the servers do not fit; names the settings that would.
    """

    def least(way: TrainingWay) -> int:
        return num_servers(own, way) * (2 * shape.num_weights + _LEAST_BYTES)

    way, trainer = require_card(shape, training, card, device, least)
    return math.floor(1000 * (card - trainer.card) / card / num_servers(own, way)) / 1000


def num_servers(own: VllmSettings, way: TrainingWay) -> int:
    """Servers on the card: one per slot; where an adapter is trained, each holds all arms, so as many as share one arm."""
    return max(own.slots.count(arm) for arm in own.slots) if way.rank else len(own.slots)
