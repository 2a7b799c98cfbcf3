"""Whether this machine has room for a policy: memory, memory of the GPU, disk. In: a report. Out: what is needed, or a refusal.

Formulas, compared with the trainer's real memory on CPU (docs/models.md, Memory); activations come on top.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings

_CACHE_TOKENS, _BATCH_TOKENS, SLOTS = 16_384, 1024, 2
"""The defaults of the section [engine]. Slots: live and candidate."""
_PROCESS_BYTES = 700 * 2**20
"""A process with torch and transformers and without a model."""
_OTHERS_BYTES = 600 * 2**20
"""All processes but engine and trainer, without what they share."""
_GPU_TRAINER = 20
"""Bytes per weight on a GPU: float32 master, gradient and two moments, a frozen copy."""
_GPU_HOST = 16
"""Bytes per weight that engine and trainer hold beside a GPU: 7 while a version is loaded, 9 for three versions and a save."""
_DISK_WEIGHT, _DISK_BYTES = 2 + 2 * 12, 2**28
"""Version 0, two checkpoints of master and moments; and room for log and database to grow."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_GIB = 2**30


class MemoryNeed(NamedTuple):
    """Bytes of host and device memory together."""

    engine: int
    """With two slots, while a version is loaded whole; `slot` of these are each slot's."""
    trainer: int
    """Between steps; `trainer_peak` while a checkpoint is saved."""
    trainer_peak: int
    slot: int


class MachineRoom(NamedTuple):
    """Bytes that this machine has. `memory`: in all, or the container's limit; `gpu`: None if nobody can tell."""

    memory: int
    disk: int
    gpu: int | None = None


def memory_need(report: CheckpointReport, device: str) -> MemoryNeed:
    """What engine and trainer need for this policy with their default settings.

    Bytes per weight: the engine holds each arm in float32 on CPU and in bfloat16 on a GPU, one byte of history, and 6 more while a version
    is loaded whole; the trainer holds master, gradient and two moments (16), a frozen copy in bfloat16 (2) and the bits of three versions
    (6), and copies at most a quarter of master and moments (3) while it saves. tests/unit/commands/test_room.py compares the trainer's.
    """
    width = 4 if device == "cpu" else 2
    pages = 4 * _BATCH_TOKENS * _CACHE_TOKENS if device == "cpu" and report.is_paged else 0
    cache = _CACHE_TOKENS * report.cache_elements_per_token * width + pages
    slot = report.num_weights * width + cache
    engine = SLOTS * slot + 7 * report.num_weights
    trainer, peak = 24 * report.num_weights, 27 * report.num_weights
    return MemoryNeed(_PROCESS_BYTES + engine, _PROCESS_BYTES + trainer, _PROCESS_BYTES + peak, slot)


def room_here(home: Path, device: str) -> MachineRoom:
    """What this machine has. `home`: its disk counts, which is that of the nearest folder above it if it does not exist yet."""
    existing = next(path for path in (home, *home.resolve().parents) if path.exists())
    memory = min([psutil.virtual_memory().total, *_limits()])
    return MachineRoom(memory, shutil.disk_usage(existing).free, None if device == "cpu" else _gpu_bytes(device))


def shortage(
    report: CheckpointReport, device: str, room: MachineRoom, *, num_engines: int = 1, num_slots: int = SLOTS
) -> str:
    """What this machine lacks for a policy, and what to do; empty if it has everything.

    `num_engines`: how many of our engines run here, with `num_slots` each; vLLM's servers are not counted.
    """
    need, weights = memory_need(report, device), report.num_weights
    engines = num_engines * (need.engine + (num_slots - SLOTS) * need.slot)
    if device == "cpu":
        memory = engines + need.trainer_peak + _OTHERS_BYTES
        parts = f"engine {gib(engines)}, trainer {gib(need.trainer_peak)} while it saves, the other processes {gib(_OTHERS_BYTES)}"
    else:
        memory = (1 + num_engines) * _PROCESS_BYTES + _GPU_HOST * weights + _OTHERS_BYTES
        parts = "what engine and trainer keep beside the GPU, and the other processes"
        gpu = _GPU_TRAINER * weights + num_engines * num_slots * need.slot
        if room.gpu is not None and gpu > room.gpu:
            lack = f"it needs {gib(gpu)} of GPU memory, without activations, and {device} has {gib(room.gpu)}"
            remedy = (
                "take a smaller policy or a larger GPU, or give engine and trainer a GPU each (docs/models.md, Memory)"
            )
            return f"{lack}: {remedy}"
    if memory > room.memory:
        lack = f"it needs {gib(memory)} of memory ({parts}), and there are {gib(room.memory)}"
        remedy = "take a smaller policy or more memory, or run engine and trainer on machines of their own"
        return f"{lack}: {remedy} (docs/operating.md, Deploy)"
    disk = _DISK_WEIGHT * weights + _DISK_BYTES
    if disk > room.disk:
        parts = "version 0, two checkpoints of the trainer, log and database"
        lack = f"its home needs {gib(disk)} of disk at the start ({parts}), and {gib(room.disk)} are free"
        return f"{lack}: free space, or name a --home on another disk"
    return ""


def require_room(
    report: CheckpointReport, policy: Path, home: Path, device: str, *, num_engines: int, num_slots: int
) -> None:
    """Raises InvalidSettings if this machine lacks memory or disk for a policy: see `shortage`."""
    if lack := shortage(report, device, room_here(home, device), num_engines=num_engines, num_slots=num_slots):
        raise InvalidSettings(f"{policy} does not fit into this machine: {lack}")


def _gpu_bytes(device: str) -> int | None:
    number = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    chosen = visible[number] if number < len(visible) else str(number)
    command = ["nvidia-smi", f"--id={chosen}", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10.0)  # noqa: S603 a fixed command
        return int(ran.stdout) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _limits() -> Iterator[int]:
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # `max`: no limit
            yield int(Path(path).read_text())


def gib(count: float) -> str:
    """A number of bytes for a person."""
    return f"{count / _GIB:.1f} GiB"
