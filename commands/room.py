"""Whether this machine has room for a policy: memory, memory of the GPU, disk. In: a report. Out: what is needed, or a refusal.

Formulas, compared with the trainer's real memory on CPU (docs/models.md, Memory); activations come on top.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings
from contracts.memory.shapes import NO_LAYER, ModelShape
from contracts.memory.training import (
    CARD_BYTES,
    GB,
    HOST_BYTES,
    SAVED,
    Passes,
    TrainerMemory,
    TrainingWay,
    memory_of,
    require_card,
    settings_that_fit,
    ways_for,
    ways_of,
)
from engines.cards import card_bytes, memory_limits, read_shape

_CACHE_TOKENS, _BATCH_TOKENS, SLOTS = 16_384, 1024, 2
"""The defaults of the section [engine]. Slots: live and candidate."""
_OTHERS_BYTES = 600 * 2**20
"""All processes but engine and trainer, without what they share."""
_LOADING = 7
"""Bytes per weight while an engine loads a version whole: its bits, its values and one byte of history. On the host also beside a GPU."""
_DISK_WEIGHT, _DISK_BYTES = 2 + 2 * 12, 2**28
"""Version 0, two checkpoints of master and moments; and room for log and database to grow."""
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

    The engine holds each arm in float32 on CPU and in bfloat16 on a GPU. tests/unit/commands/test_room.py compares the trainer's with its process.
    """
    peak, width = _trainer(report, device).kept, 4 if device == "cpu" else 2
    pages = 4 * _BATCH_TOKENS * _CACHE_TOKENS if device == "cpu" and report.is_paged else 0
    cache = _CACHE_TOKENS * report.cache_elements_per_token * width + pages
    slot = report.num_weights * width + cache
    engine = HOST_BYTES + SLOTS * slot + _LOADING * report.num_weights
    return MemoryNeed(engine, peak - SAVED * report.num_weights, peak, slot)


def _trainer(report: CheckpointReport, device: str) -> TrainerMemory:
    """Without activations, of whole weights with masters on the device."""
    shape = ModelShape(report.num_weights, (), num_layers=0, width=0, vocabulary=0, num_experts=0, num_active=0)
    return memory_of(shape, TrainingWay(), Passes(0, is_reduced=device != "cpu"))


def room_here(home: Path, device: str) -> MachineRoom:
    """What this machine has. `home`: its disk counts, which is that of the nearest folder above it if it does not exist yet."""
    existing = next(path for path in (home, *home.resolve().parents) if path.exists())
    memory = min([psutil.virtual_memory().total, *memory_limits()])
    return MachineRoom(memory, shutil.disk_usage(existing).free, None if device == "cpu" else card_bytes(device))


def shortage(
    report: CheckpointReport,
    device: str,
    room: MachineRoom,
    *,
    num_engines: int = 1,
    num_slots: int = SLOTS,
    trainer: int | None = None,
) -> str:
    """What this machine lacks for a policy beside memory of a GPU, and what to do; empty if it has everything.

    Args:
        report: of the policy.
        device: of engine and trainer.
        room: of this machine.
        num_engines: how many of our engines run here, with `num_slots` each; vLLM's servers are not counted.
        num_slots: of each of them.
        trainer: bytes that it takes here, beside a GPU or without one; None: as with whole weights and masters on the device.
    """
    need, weights = memory_need(report, device), report.num_weights
    engines = num_engines * (need.engine + (num_slots - SLOTS) * need.slot)
    if device == "cpu":
        trainer = trainer or need.trainer_peak
        memory = engines + trainer + _OTHERS_BYTES
        parts = (
            f"engine {gib(engines)}, trainer {gib(trainer)} while it saves, the other processes {gib(_OTHERS_BYTES)}"
        )
    else:
        trainer = trainer or _trainer(report, device).host
        memory = trainer + num_engines * HOST_BYTES + _LOADING * weights + _OTHERS_BYTES
        parts = "what engine and trainer keep beside the GPU, and the other processes"
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
    report: CheckpointReport,
    policy: Path,
    home: Path,
    device: str,
    *,
    num_engines: int,
    num_slots: int,
    training: Mapping[str, Any],
) -> None:
    """Raises InvalidSettings if this machine lacks memory or disk for a policy: see `shortage`; or if the GPU lacks memory for the trainer.

    `training`: the section [training]. It says how the policy is trained, so what the trainer takes, of a GPU beside our engines on it.
    """
    room, trainer = room_here(home, device), None
    if device != "cpu":
        engines = num_engines * (CARD_BYTES + num_slots * memory_need(report, device).slot)
        card = sys.maxsize if room.gpu is None else room.gpu
        trainer = require_card(read_shape(policy), training, card, device, beside=lambda _: engines)[1].host
    elif (way := ways_of(training)[0]).rank:
        trainer = memory_of(read_shape(policy), way, Passes(0, is_reduced=False)).kept
    if lack := shortage(report, device, room, num_engines=num_engines, num_slots=num_slots, trainer=trainer):
        raise InvalidSettings(f"{policy} does not fit into this machine: {lack}")


def described_shape(shape: ModelShape) -> str:
    """What of a policy decides how much memory its training takes, for a person."""
    kinds = Counter((linear.kind, linear.num_in, linear.num_out) for linear in shape.linears)
    linears = ", ".join(f"{count} x {kind} {num_in} to {num_out}" for (kind, num_in, num_out), count in kinds.items())
    experts = (
        f"{shape.num_experts} experts a layer, {shape.num_active} for a token" if shape.num_experts else "no experts"
    )
    size = f"{shape.num_weights / 1e9:.2f} billion parameters, {shape.num_layers} layers, width {shape.width}, vocabulary {shape.vocabulary}"
    return f"{size}, {experts}; {len(shape.linears)} linear maps: {linears}"


def fit_table(shape: ModelShape, passes: Passes, cards: Sequence[float], processes: int = 1) -> Iterator[str]:
    """Lines of a table: each way of training, what it takes in GB (10^9 bytes), and which cards of so many GB it fits.

    `processes`: that share it, each with such a card.
    """
    parts = (*TrainerMemory._fields[:-1], "card", "host")
    sizes = [f"{card:g} GB" for card in cards]
    ways, ranks = ways_for(shape, processes), "trainer alone, GB" if processes == 1 else f"each of {processes}, GB"
    longest = max(len(way.says) for way in ways)
    yield " ".join(
        [
            f"{ranks:<{longest}}",
            *(f"{name:>11}" for name in parts),
            *map("{:>6}".format, sizes),
            " [training]",
        ]
    )
    for way in ways:
        need = memory_of(shape, way, passes, processes)
        numbers = (f"{getattr(need, name) / GB:>11.2f}" for name in parts)
        fits = (f"{'fits' if need.card <= card * GB else 'no':>6}" for card in cards)
        yield " ".join([f"{way.says:<{longest}}", *numbers, *fits, f" {way.settings}"])
    if not shape.adapted:
        yield NO_LAYER
    for card in cards:
        found = "; ".join(settings_on(shape, passes, card, processes))
        yield f"{card:g} GB: {found or 'no way of training fits, not even in pieces of 2,048 tokens'}"


def settings_on(shape: ModelShape, passes: Passes, card: float, processes: int = 1) -> Iterator[str]:
    """As `settings_that_fit`, on a card of so many GB for the trainer alone, or for each of its processes."""
    return settings_that_fit(shape, passes, lambda _, need: need.card <= card * GB, processes)


def gib(count: float) -> str:
    """A number of bytes for a person."""
    return f"{count / _GIB:.1f} GiB"
