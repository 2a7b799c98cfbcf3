"""A version on its way off one card and onto another: bits, codec by cores, pauses of a swap at 1% changed, and an adapter's swap."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu.machine import SIZES, device_ms, model_of, timed
from policy.weights import Patch, Patches, apply_patches, stage_changes, tensors_of
from weights import cores
from weights.codec.delta import CODEC, Staged, encode, stage
from weights.tensors import Tensors, root_of
from weights.versions.manifest import NO_HISTORY, Manifest
from weights.warm_up import warm_up

EVERY = 100
"""One weight of so many changes."""
CORES = (1, 4, 8, 16)
WEIGHTS = {"1.5B": 1_520_000_000, "8B": 8_190_000_000}
PARTS = 200
"""Tensors of such a model, roughly: each is a write of its own."""
RANK = 32


def pauses(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """A swap's writes with the change on the card, the copies onto it from pinned and other memory, and finding the changed places there."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    for size, number in WEIGHTS.items():
        held = torch.zeros(100_000 if rehearse else number, dtype=torch.int16, device=device)
        other, parts = held.clone(), held.chunk(PARTS)
        places = [_places(part) for part in parts]
        values = [torch.ones_like(each, dtype=torch.int16) for each in places]
        patches = Patches(tuple(map(Patch, parts, places, values)), {}, sum(map(len, places)), len(held))
        row: dict[str, Any] = {"scatter_ms": device_ms(partial(apply_patches, patches), device)}
        row["find_changed_ms"] = device_ms(partial(_changed, parts, other.chunk(PARTS)), device)
        hosts = {"pageable": [each.cpu() for each in (*places, *values)]}
        if device == "cuda":
            hosts["pinned"] = [each.pin_memory() for each in hosts["pageable"]]
        for name, host in hosts.items():
            row[f"copy_{name}_ms"] = device_ms(partial(_copy, [*places, *values], host), device)
        yield {size: row | {"gb_of_change": sum(each.nbytes for each in (*places, *values)) / 1e9}}


def codec(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Bits off the card, encode and decode by cores, staging and the pause of our engine's swap, with the product's own functions."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    model = model_of("tiny" if rehearse else "1.5B", device)
    serving, base = copy.deepcopy(model).bfloat16(), tensors_of(model)
    for parameter in model.parameters():
        _move(parameter)
    found: list[Tensors] = []
    off = timed(lambda: found.append(tensors_of(model)), device)
    yield {"gb": sum(tensor.data.size for tensor in base.values()) / 1e9, "bits_off_the_card_seconds": off}
    warm_up()
    for number in (1, 2) if rehearse else CORES:
        if number > (os.cpu_count() or 1):
            yield {f"on_{number}_cores": "not run: fewer cores here"}
            continue
        with cores.limited_to(number):
            yield {f"on_{number}_cores": _travel(base, found[0])[0]}
    speed, staged = _travel(base, found[0])
    began = perf_counter()
    patches = stage_changes(serving, staged.changes)
    prepared = perf_counter() - began
    pause = device_ms(partial(apply_patches, patches), device)
    yield {"on_all_cores": speed, "stage_on_card_seconds": prepared, "pause_ms": pause}
    yield {"cut_to_encoded_seconds": off + speed["encode_seconds"]}
    yield {"encoded_to_swapped_seconds": speed["decode_seconds"] + prepared + pause["median"] / 1000}


def adapter_swap(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Another adapter's A and B onto the card from pinned memory, layer by layer; 8 B, rank 32, bfloat16."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    shape = SIZES["tiny" if rehearse else "8B"]
    width, inside = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = (shape["head_dim"] * shape[f"num_{name}_heads"] for name in ("attention", "key_value"))
    linears = [
        (width, queries),
        (width, keys),
        (width, keys),
        (queries, width),
        (width, inside),
        (width, inside),
        (inside, width),
    ]
    sizes = [part for into, out in linears for part in ((RANK, into), (out, RANK))] * shape["num_hidden_layers"]
    here = [torch.zeros(size, dtype=torch.bfloat16, device=device) for size in sizes]
    host = [torch.zeros(size, dtype=torch.bfloat16, pin_memory=device == "cuda") for size in sizes]
    megabytes = sum(each.nbytes for each in here) / 1e6
    yield {"mb": megabytes, "tensors": len(here), "swap_ms": device_ms(partial(_copy, here, host), device)}


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def _changed(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [(old != new).nonzero() for old, new in zip(before, after, strict=True)]


def _places(weights: torch.Tensor) -> torch.Tensor:
    """One place of each `EVERY`, ascending."""
    start = torch.arange(0, weights.numel() - EVERY, EVERY, device=weights.device)
    return start + torch.randint(0, EVERY, start.shape, device=weights.device)


def _move(parameter: torch.Tensor) -> None:
    """One weight of a hundred goes one unit of bfloat16 up or down, as a step moves it."""
    if parameter.numel() > EVERY:
        places = _places(parameter)
        words = parameter.data.view(torch.int32).view(-1)
        words[places] += (torch.randint_like(places, 2).int() * 2 - 1) << 16


def _travel(base: Tensors, target: Tensors) -> tuple[dict[str, float], Staged]:
    began = perf_counter()
    encoded = encode(base, target)
    encoding, root = perf_counter() - began, root_of(base)
    manifest = Manifest(
        policy="gpu", run="gpu", version=1, parent=0, base_version=0, base_root=root, target_root=encoded.target_root, codec=CODEC,
        history=None, history_after=NO_HISTORY, chunks=encoded.chunks, full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed, num_weights=encoded.num_weights, created_at=0.0, step=1, epoch=0, num_samples=1,
    )  # fmt: skip
    began = perf_counter()
    staged = stage(base, manifest, encoded.payload, base_root=root)
    decoding, gigabytes = perf_counter() - began, encoded.full_bytes / 1e9
    return {
        "ratio": encoded.full_bytes / len(encoded.payload),
        "encode_seconds": encoding,
        "encode_gb_s": gigabytes / encoding,
        "decode_seconds": decoding,
        "decode_gb_s": gigabytes / decoding,
    }, staged
