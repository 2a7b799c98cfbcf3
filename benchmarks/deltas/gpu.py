"""A version's delta on the device: what finding, describing and applying a change of a whole model costs there.

usage: python -m benchmarks.deltas.gpu [--weights 7.6e9] [--device cuda] [--rounds 7] [--full]

In: a made-up bfloat16 model of the shape of a 7.6 B one, scaled to the size asked for, and a version of it with 1% of its
weights one unit in the last place away; both lie on the device. Out: a table, and on CUDA a dated JSON file. Waits: for the
device. Three things are timed, each to its end, the median of some rounds:

- the compacted stream, all of which stays on the device. `compare`: old and new to the ascending places of the changes,
  their contexts, their old and their new words. `gaps`: the time before each change, from a pass over all old words and
  states; every kind of weight takes the same, for the tables are not fitted here. The fit, the split of a change into
  direction and distance, the factors, the entropy coder, the hash of the target and the way to the host are not in it.
- the whole of `encode_on_device`, those included, once (`--full`; the host's cores do most of that).
- the pause of a swap: `apply_patches` of what `stage_changes` prepared; the weights are written, nothing else runs.

The bound of a pass is the least it has to read and write, at the rate at which this device copies. Before all that a small
model is encoded on the device and on the host: if the payloads differ the benchmark fails.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.report import print_table, summarise, write_report
from contracts.errors import InvalidValue
from policy.deltas import passes
from policy.deltas.encode import encode_on_device, tensor_of
from policy.deltas.passes import Found, Held
from policy.weights import apply_patches, stage_changes
from weights.codec.contexts import NUM_CONTEXTS
from weights.codec.delta import Change, encode

DENSITY = 0.01
_PUBLISHED = 7.6e9
_SMALL = 2e7
_CHECKED = 4e6
_COPIED_BYTES = 4 * 2**30
_REMEMBERED = 0.05
"""Share of the weights whose history says something."""
_HAZARD = round(DENSITY * 2**16)
_SECTOR = 32
"""Bytes of device memory that one access moves, at least."""

Weights = dict[str, torch.Tensor]


class Version(NamedTuple):
    """Two versions of a model, and what both ends remember, on one device."""

    base: Weights
    target: Weights
    states: Weights

    @property
    def num_weights(self) -> int:
        """Elements of the model."""
        return sum(tensor.numel() for tensor in self.base.values())

    @property
    def olds(self) -> list[torch.Tensor]:
        """The words of the base, tensor by tensor."""
        return [passes.words_of(tensor) for tensor in self.base.values()]

    @property
    def news(self) -> list[torch.Tensor]:
        """The words of the target, likewise."""
        return [passes.words_of(tensor) for tensor in self.target.values()]

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return next(iter(self.base.values())).device


class Timed(NamedTuple):
    """A pass: milliseconds of each round, and the bytes that it has to move."""

    milliseconds: list[float]
    num_bytes: float

    def figures(self, bytes_per_second: float) -> dict[str, Any]:
        """The same for a report; `share` is how much of the device's rate it reaches."""
        found = summarise(self.milliseconds)
        bound = self.num_bytes / bytes_per_second * 1e3
        return {"ms": found, "gb": self.num_bytes / 1e9, "bound_ms": bound, "share": bound / found["median"]}


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    if options.device.type == "cpu":
        torch.set_num_threads(1)  # others may use the machine; two threads that wait for each other say nothing
    _check_identity(options.device)
    version = make_version(options.weights, options.device)
    rate = _copy_rate(options.device, options.rounds)
    arms = (
        {"torch": False, "triton": True} if passes.uses_kernels(next(iter(version.base.values()))) else {"torch": False}
    )
    stream = {name: _measure_stream(version, options.rounds, with_kernels=flag) for name, flag in arms.items()}
    full = _measure_full(version) if options.full else None
    pause = _measure_pause(version, options.rounds)
    passed = {f"{arm}: {name}": timed for arm, found in stream.items() for name, timed in found.items()}
    figures = {name: timed.figures(rate) for name, timed in (passed | {"swap pause": pause}).items()}
    title = f"{version.num_weights:,} bf16 weights, {DENSITY:.0%} changed, {_device_name(options.device)}"
    rows = [(name, *_row(found)) for name, found in figures.items()]
    print_table(title, ("", "ms", "min to max", "GB to move", "bound, ms", "share of bound"), rows)
    print(f"copies run at {rate / 1e9:,.0f} GB/s")
    if full is not None:
        print("encode_on_device to a payload: {encode_seconds:.2f} s, {gb_s:.2f} GB/s, {ratio:.0f}x".format(**full))
    if options.device.type == "cuda":
        content = {
            "device": _device_name(options.device),
            "torch": torch.__version__,
            "num_weights": version.num_weights,
            "density": DENSITY,
            "copy_gb_s": rate / 1e9,
            "passes": figures,
            "full": full,
        }
        print(write_report("weight-gpu", content))


def make_version(num_weights: float, device: torch.device) -> Version:
    """Random weights in the shapes of a 7.6 B model, narrower for a smaller one; 28 layers."""
    generator = torch.Generator(device).manual_seed(0)
    base, target, states = {}, {}, {}
    for name, shape in _shapes(num_weights).items():
        old = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)
        new = old.clone()
        past = torch.zeros(old.numel(), dtype=torch.uint8, device=device)
        for share, words in ((DENSITY, new.view(-1).view(torch.int16)), (_REMEMBERED, past)):
            places = torch.randint(0, old.numel(), (round(share * old.numel()),), device=device, generator=generator)
            words[places] = words[places] ^ 1 if words is not past else 0x79
        base[name], target[name], states[name] = old, new, past
    return Version(base, target, states)


def _shapes(num_weights: float) -> dict[str, tuple[int, ...]]:
    def scaled(size: int) -> int:
        return max(8, 8 * round(size / 8 * math.sqrt(num_weights / _PUBLISHED)))

    hidden, inner, narrow, vocabulary = scaled(3584), scaled(18944), scaled(512), scaled(152064)
    layer = {
        "query": (hidden, hidden), "key": (narrow, hidden), "value": (narrow, hidden), "output": (hidden, hidden),
        "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner), "norm": (hidden,),
    }  # fmt: skip
    layers = {f"layer_{number}_{name}": shape for number in range(28) for name, shape in layer.items()}
    return layers | {"embed": (vocabulary, hidden), "head": (vocabulary, hidden)}


def _measure_stream(version: Version, rounds: int, *, with_kernels: bool) -> dict[str, Timed]:
    held = [Held(old, states, "BF16") for old, states in zip(version.olds, version.states.values(), strict=True)]
    hazards = [torch.full((NUM_CONTEXTS,), _HAZARD, dtype=torch.int32, device=version.device)] * len(held)
    found: list[Found] = []

    def compare() -> None:
        found[:] = passes.find_changes(held, version.news, with_kernels=with_kernels)

    def measure() -> list[torch.Tensor]:
        return passes.measure_gaps(held, found, hazards, [None] * len(held))

    compared, measured = (_time(work, version.device, rounds) for work in (compare, measure))
    num_changed = sum(each.num_changes for each in found)
    # Written per change: place 8, context 4, words 4; gap 8. Read at random: the sector of its state.
    to_move = (4 * version.num_weights + (_SECTOR + 16) * num_changed, 3 * version.num_weights + 8 * num_changed)
    together = [sum(each) for each in zip(compared, measured, strict=True)]
    return {
        "compare": Timed(compared, to_move[0]),
        "gaps": Timed(measured, to_move[1]),
        "compacted stream": Timed(together, sum(to_move)),
    }


def _measure_full(version: Version) -> dict[str, float]:
    """All of an encode, without history: seconds, and how small it is."""
    started = perf_counter()
    encoded = encode_on_device(version.base, version.target)
    seconds = perf_counter() - started
    return {
        "encode_seconds": seconds,
        "gb_s": encoded.full_bytes / seconds / 1e9,
        "ratio": encoded.full_bytes / len(encoded.payload),
    }


def _measure_pause(version: Version, rounds: int) -> Timed:
    """From now on the base is the target."""
    model = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(tensor, requires_grad=False) for name, tensor in version.base.items()}
    )
    held = [Held(old, None, "BF16") for old in version.olds]
    found = passes.find_changes(held, version.news)
    changes = {
        name: Change("BF16", tuple(old.shape), _host(each.places, np.uint32), _host(each.after, np.uint16))
        for (name, old), each in zip(version.base.items(), found, strict=True)
    }
    patches = stage_changes(model, changes, with_undo=False)
    milliseconds = _time(lambda: apply_patches(patches), version.device, rounds)
    if not all(map(torch.equal, version.olds, version.news)):
        raise InvalidValue("after the swap the model is not the target: apply_patches is broken", param="device")
    # Per change a place and a word are read, and the sector of the word is read and written.
    return Timed(milliseconds, (8 + 2 + 2 * _SECTOR) * sum(each.num_changes for each in found))


def _check_identity(device: torch.device) -> None:
    version = make_version(_CHECKED, device)
    base, target = ({name: tensor_of(tensor) for name, tensor in each.items()} for each in version[:2])
    wanted = encode(base, target)
    found = encode_on_device(version.base, version.target)
    if found.payload != wanted.payload or found.target_root != wanted.target_root:
        raise InvalidValue(f"{device} and the host make different payloads: the passes are broken", param="device")
    print(f"{version.num_weights:,} weights: the payload of {_device_name(device)} is the host's, byte for byte")


def _copy_rate(device: torch.device, rounds: int) -> float:
    """Bytes read and written per second by a copy."""
    num_bytes = _COPIED_BYTES if device.type == "cuda" else _COPIED_BYTES // 64
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    return 2 * num_bytes / (min(_time(lambda: goal.copy_(source), device, rounds)) / 1e3)


def _time(work: Callable[[], object], device: torch.device, rounds: int) -> list[float]:
    """Milliseconds of each round, to the end of the device's work; the first, which compiles, is not among them."""
    times = []
    for _ in range(rounds + 1):
        _settle(device)
        started = perf_counter()
        work()
        _settle(device)
        times.append((perf_counter() - started) * 1e3)
    return times[1:]


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    times = found["ms"]
    return (
        f"{times['median']:,.2f}",
        f"{times['min']:,.2f} to {times['max']:,.2f}",
        f"{found['gb']:,.2f}",
        f"{found['bound_ms']:,.2f}",
        f"{found['share']:.0%}",
    )


def _host(values: torch.Tensor, dtype: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.cpu().numpy().astype(dtype)
    return array


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deltas.gpu", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--weights", type=float, help=f"of the model; {_PUBLISHED:g}, on a CPU {_SMALL:g}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="encode to a payload too")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu runs a small size on the processor, for a look only")
    options.device = torch.device(options.device)
    options.weights = options.weights or (_PUBLISHED if options.device.type == "cuda" else _SMALL)
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
