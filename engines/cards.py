"""A machine and a policy before either is used: how much memory card and host have, which card a device means, what a checkpoint's headers say."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from contracts.errors import InvalidSettings
from contracts.files import read_small
from contracts.memory.shapes import ModelShape, shape_of
from weights.mapped import map_checkpoint

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def card_of(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """The card that `cuda` or `cuda:N` means, as CUDA_VISIBLE_DEVICES and nvidia-smi name it."""
    number = int(device.partition(":")[2] or 0)
    visible = [name for name in environment.get(VISIBLE, "").split(",") if name]
    return visible[number] if number < len(visible) else str(number)


def environment_on(device: str, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that shall see the card of a device alone."""
    return {**own, **({VISIBLE: card_of(device, own)} if ":" in device else {})}


def card_bytes(device: str) -> int | None:
    """All memory of a device's card; None if nvidia-smi cannot tell."""
    command = ["nvidia-smi", f"--id={card_of(device)}", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10.0)  # noqa: S603 a fixed command
        return int(ran.stdout) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def memory_limits(files: Iterable[Path] = _LIMITS) -> Iterator[int]:
    """Bytes of the host's memory that the container may take; nothing without a limit."""
    for file in files:
        with suppress(OSError, ValueError):  # `max`: no limit
            yield int(file.read_text())


def free_memory(limits: Iterable[int] | None = None) -> int:
    """Bytes of the host's memory that this process may still take. `limits`: of its container, where it is alone; by default this one's."""
    limits = memory_limits() if limits is None else limits
    left = [limit - int(psutil.Process().memory_info().rss) for limit in limits]
    return min([int(psutil.virtual_memory().available), *left])


def read_shape(folder: Path) -> ModelShape:
    """The shape of a checkpoint, from config.json and the headers of its safetensors files: no weight is read.

    Raises InvalidSettings: as `read_config`, or it lacks what is needed; as `weights.mapped.map_checkpoint`.
    """
    return shape_of(read_config(folder), {name: tensor.shape for name, tensor in map_checkpoint(folder).items()})


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's config.json. Raises InvalidSettings: it cannot be read, or is no object."""
    file = folder / "config.json"
    try:
        config = json.loads(read_small(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise InvalidSettings(f"{file} is a {type(config).__name__}, not an object")
    return config
