"""A version on its way off one card and onto another: bits, codec by cores, pauses of a swap at 1% changed, and an adapter's swap.

Shapes: N weights, C of them changed.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.machine import SIZES, event_ms, model_of, spread, timed
from policy.weights import Patch, Patches, apply_patches, stage_changes, tensors_of
from weights.codec.delta import CODEC, encode, stage
from weights.tensors import root_of
from weights.versions.manifest import NO_HISTORY, Manifest
from weights.warm_up import warm_up

if TYPE_CHECKING:
    from weights.codec.delta import Staged
    from weights.tensors import Tensors

EVERY = 100
"""One weight of so many changes."""
ROUNDS = 5
CORES = (1, 4, 8, 16)
WEIGHTS = {"1.5B": 1_520_000_000, "8B": 8_190_000_000}
RANK = 32


def pauses(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """The pause of a swap as the device sees it, with the change on the card already, and with the copy inside the pause; in milliseconds."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    found: dict[str, Any] = {}
    for size, number in WEIGHTS.items():
        num_weights = 100_000 if rehearse else number
        held_N = torch.zeros(num_weights, dtype=torch.int16, device=device)
        places_C = _places(num_weights, device)
        values_C = torch.ones_like(places_C, dtype=torch.int16)
        patches = Patches((Patch(held_N, places_C, values_C),), {}, len(places_C), num_weights)
        host = {"pageable": [places_C.cpu(), values_C.cpu()]}
        if device == "cuda":
            host["pinned"] = [each.pin_memory() for each in host["pageable"]]
        apply_patches(patches)
        row: dict[str, Any] = {"scatter_ms": spread([event_ms(lambda: apply_patches(patches), device) for _ in range(ROUNDS)])}  # noqa: B023 run at once
        num_bytes = sum(each.nbytes for each in host["pageable"])
        for name, parts in host.items():
            into = [torch.empty_like(each, device=device) for each in parts]

            def copy_in(into: list[torch.Tensor] = into, parts: list[torch.Tensor] = parts) -> None:
                for target, source in zip(into, parts, strict=True):
                    target.copy_(source, non_blocking=True)

            taken = spread([event_ms(copy_in, device) for _ in range(ROUNDS)])
            row |= {f"copy_{name}_ms": taken, f"copy_{name}_gb_s": num_bytes / taken["median"] / 1e6}
        # Against one that differs: what finds the changed places without leaving the card.
        other_N = held_N.clone()
        other_N[places_C] = 0
        row["find_changed_ms"] = spread([event_ms(lambda: (other_N != held_N).nonzero(), device) for _ in range(ROUNDS)])  # noqa: B023 as above
        del other_N
        found[size] = row | {"change_bytes": num_bytes}
        yield found


def codec(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Bits off the card, encode and decode by cores, staging and the pause of our engine's swap, with the product's own functions."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    model = model_of("tiny" if rehearse else "1.5B", device)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    serving = copy.deepcopy(model).bfloat16()
    base = tensors_of(model)
    num_bytes = sum(tensor.data.size for tensor in base.values())
    for parameter in model.parameters():
        _move(parameter)
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        target = tensors_of(model)
        taken.append(time.perf_counter() - began)
    found: dict[str, Any] = {"gb": num_bytes / 1e9, "bits_off_seconds": spread(taken)}
    yield found
    warm_up()
    by_cores: dict[str, Any] = {}
    for cores in (1, 2) if rehearse else CORES:
        by_cores[str(cores)] = _on_cores(cores, base, target)
        yield {"by_cores": by_cores}
    speed, staged = _travel(base, target)
    began = time.perf_counter()
    patches = stage_changes(serving, staged.changes)
    prepared = time.perf_counter() - began
    pause = event_ms(lambda: apply_patches(patches), device)
    yield {
        "stage_on_card_seconds": prepared,
        "pause_ms": pause,
        "cut_to_encoded_seconds": taken[-1] + speed["encode_seconds"],
        "encoded_to_swapped_seconds": speed["decode_seconds"] + prepared + pause / 1000,
    }


def adapter_swap(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Another adapter's A and B into the card's, layer by layer, from pinned memory; of the 8 B shape, in bfloat16."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    shape = SIZES["tiny" if rehearse else "8B"]
    width, inside, heads = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * heads, shape["num_key_value_heads"] * heads
    linears = [(width, queries), (width, keys), (width, keys), (queries, width), (width, inside), (width, inside), (inside, width)]
    sizes = [part for num_in, num_out in linears for part in ((RANK, num_in), (num_out, RANK))] * shape["num_hidden_layers"]
    here = [torch.zeros(size, dtype=torch.bfloat16, device=device) for size in sizes]
    host = [torch.zeros(size, dtype=torch.bfloat16, pin_memory=device == "cuda") for size in sizes]

    def swap() -> None:
        for target, source in zip(here, host, strict=True):
            target.copy_(source, non_blocking=True)

    swap()
    yield {
        "mb": sum(each.nbytes for each in here) / 1e6,
        "tensors": len(here),
        "swap_ms": spread([event_ms(swap, device) for _ in range(ROUNDS)]),
        "swap_by_the_clock_ms": spread([timed(swap, device) * 1000 for _ in range(ROUNDS)]),
    }


def _places(num_weights: int, device: str) -> torch.Tensor:
    """One place of each `EVERY`, ascending [C]."""
    start_C = torch.arange(0, num_weights - EVERY, EVERY, device=device)
    return start_C + torch.randint(0, EVERY, start_C.shape, device=device)


@torch.no_grad()
def _move(parameter: torch.Tensor) -> None:
    """One weight of a hundred goes one unit of bfloat16 up or down, as a step moves it."""
    if parameter.numel() > EVERY:
        places_C = _places(parameter.numel(), str(parameter.device))
        up_C = torch.randint(0, 2, places_C.shape, device=parameter.device, dtype=torch.int32) * 2 - 1
        words_N = parameter.data.view(torch.int32).view(-1)
        words_N[places_C] += up_C << 16


def _travel(base: Tensors, target: Tensors) -> tuple[dict[str, float], Staged]:
    began = time.perf_counter()
    encoded = encode(base, target)
    cut = time.perf_counter()
    root, num_bytes = root_of(base), encoded.full_bytes
    manifest = Manifest(
        policy="gpu", run="gpu", version=1, parent=0, base_version=0, base_root=root, target_root=encoded.target_root, codec=CODEC,
        history=None, history_after=NO_HISTORY, chunks=encoded.chunks, full_bytes=num_bytes, num_changed=encoded.num_changed,
        num_weights=encoded.num_weights, created_at=0.0, step=1, epoch=0, num_samples=1,
    )  # fmt: skip
    ready = time.perf_counter()
    staged = stage(base, manifest, encoded.payload, base_root=root)
    decoded = time.perf_counter() - ready
    speed = {"encode_seconds": cut - began, "encode_gb_s": num_bytes / (cut - began) / 1e9, "ratio": num_bytes / len(encoded.payload)}
    return {**speed, "decode_seconds": decoded, "decode_gb_s": num_bytes / decoded / 1e9}, staged


def _on_cores(num_cores: int, base: Tensors, target: Tensors) -> dict[str, float] | str:
    """The same in a fork that may use so many cores: the codec takes what it is given."""
    there = sorted(os.sched_getaffinity(0))
    if len(there) < num_cores:
        return f"not run: this machine has {len(there)} cores"
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        os.sched_setaffinity(0, there[:num_cores])
        sender.send(_travel(base, target)[0])

    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        found: dict[str, float] = receiver.recv()
    except EOFError:
        return "broke off: its process ended"
    finally:
        process.kill()
        process.join()
    return found
