"""The delta codec on a real run's weights: how small a version is, and how fast it is made and applied.

usage: python -m benchmarks.delta --trace FILE.npz

In: a trace, `base/NAME` (bf16 bits as uint16) and `xor/STEP/NAME` (bits that each step flipped). Out: a table, and a dated
JSON file. Waits: for nothing. Peers in the same run: zstd-3 of all bytes, and of the plain XOR. They carry no hashes,
ours checks the root of the base and a hash per tensor, so its times are those of a real publisher and a real receiver.
Times are of the processor, one thread, so that they hold on a machine that others use too.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple, Protocol

import numpy as np
import zstandard
from blake3 import blake3

from benchmarks.report import print_table, summarise, write_report
from contracts.errors import InvalidValue
from contracts.weights.codec import CODEC, decode, encode
from contracts.weights.format import Manifest, Tensor, Tensors, root_of

_PEER_LEVEL = 3
_QUICK_STEPS = 4


class Step(NamedTuple):
    """Two versions, one optimizer step apart."""

    name: str
    base: Tensors
    target: Tensors

    @property
    def full_bytes(self) -> int:
        """What the target takes as plain bf16."""
        return sum(tensor.data.size for tensor in self.target.values())

    @property
    def num_weights(self) -> int:
        """Elements of the target."""
        return sum(math.prod(tensor.shape) for tensor in self.target.values())


class Timed(NamedTuple):
    """One version there and back."""

    step: str
    full_bytes: int
    payload_bytes: int
    encode_seconds: float
    decode_seconds: float


class Arm(Protocol):
    """A way to send a version."""

    def __call__(self, step: Step) -> Timed:
        """Encode and decode, each timed; raises InvalidValue if what comes back is not the target."""


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    samples: dict[str, list[Timed]] = defaultdict(list)
    density: dict[str, float] = {}
    num_weights = 0
    for number in range(options.rounds):
        for step in read_trace(options.trace, options.steps):
            for name, arm in ARMS.items():
                samples[name].append(arm(step))
            density[step.name], num_weights = _density(step), step.num_weights
        print(f"{number + 1}/{options.rounds} over {len(density)} steps")
    _report(options, samples, density, num_weights)


def read_trace(path: Path, limit: int | None = None) -> Iterator[Step]:
    """Every step of a trace, in order.

    Raises:
        InvalidValue: the file holds no base or no steps.
    """
    with np.load(path) as trace:
        names = sorted(name.removeprefix("base/") for name in trace.files if name.startswith("base/"))
        steps = sorted({name.split("/")[1] for name in trace.files if name.startswith("xor/")})
        if not names or not steps:
            raise InvalidValue(f"{path} is no trace: expected arrays named base/NAME and xor/STEP/NAME", param="trace")
        base = {name: trace[f"base/{name}"] for name in names}
        for step in steps[:limit]:
            target = {name: words ^ trace[f"xor/{step}/{name}"] for name, words in base.items()}
            yield Step(step, _tensors(base), _tensors(target))
            base = target


def send_delta(step: Step) -> Timed:
    """Our codec, as the publisher and the engine use it."""
    started = process_time()
    encoded = encode(step.base, step.target)
    encode_seconds = process_time() - started
    manifest = Manifest(
        policy="trace",
        run="trace",
        version=1,
        parent=0,
        kind="delta",
        base_root=root_of(step.base),
        target_root=encoded.target_root,
        codec=CODEC,
        tensors=encoded.entries,
        payload_blake3=blake3(encoded.payload).hexdigest(),
        payload_bytes=len(encoded.payload),
        full_bytes=step.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=step.num_weights,
        created_at=0.0,
        step=1,
        epoch=1,
        num_samples=0,
    )
    started = process_time()
    tensors = decode(step.base, manifest, encoded.payload)
    decode_seconds = process_time() - started
    _check(_joined(tensors), _joined(step.target))
    return Timed(step.name, step.full_bytes, len(encoded.payload), encode_seconds, decode_seconds)


def send_full(step: Step) -> Timed:
    """All bytes through zstd."""
    target = _joined(step.target)
    started = process_time()
    payload = zstandard.ZstdCompressor(level=_PEER_LEVEL).compress(target.data)
    encode_seconds = process_time() - started
    started = process_time()
    plain = np.frombuffer(zstandard.ZstdDecompressor().decompress(payload), dtype=np.uint8)
    decode_seconds = process_time() - started
    _check(plain, target)
    return Timed(step.name, step.full_bytes, len(payload), encode_seconds, decode_seconds)


def send_xor(step: Step) -> Timed:
    """Base XOR target through zstd, all tensors as one stream."""
    base, target = _joined(step.base), _joined(step.target)
    started = process_time()
    payload = zstandard.ZstdCompressor(level=_PEER_LEVEL).compress((base ^ target).data)
    encode_seconds = process_time() - started
    started = process_time()
    plain = np.frombuffer(zstandard.ZstdDecompressor().decompress(payload), dtype=np.uint8) ^ base
    decode_seconds = process_time() - started
    _check(plain, target)
    return Timed(step.name, step.full_bytes, len(payload), encode_seconds, decode_seconds)


ARMS: dict[str, Arm] = {
    f"millrace, {CODEC}": send_delta,
    f"zstd-{_PEER_LEVEL} of the XOR": send_xor,
    f"zstd-{_PEER_LEVEL} of all bytes": send_full,
}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.delta", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--trace", type=Path, required=True, help="an .npz of base/NAME and xor/STEP/NAME, uint16")
    parser.add_argument("--rounds", type=int, default=3, help="times over the whole trace")
    parser.add_argument("--steps", type=int, default=None, help="only the first steps of the trace")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_STEPS} steps, one round; writes no file")
    options = parser.parse_args(arguments)
    if not options.trace.is_file():
        parser.error(f"there is no trace {options.trace}")
    if options.quick:
        options.rounds, options.steps = 1, _QUICK_STEPS
    return options


def _report(
    options: argparse.Namespace, samples: dict[str, list[Timed]], density: dict[str, float], num_weights: int
) -> None:
    arms = {name: _figures(found) for name, found in samples.items()}
    rows = [
        (
            name,
            figures["ratio"]["median"],
            f"{figures['ratio']['min']:,.1f} to {figures['ratio']['max']:,.1f}",
            *(
                f"{figures[column]['median']:.2f} ({figures[column]['min']:.2f} to {figures[column]['max']:.2f})"
                for column in ("encode_gb_per_cpu_second", "decode_gb_per_cpu_second")
            ),
        )
        for name, figures in arms.items()
    ]
    changed = summarise(list(density.values()))
    title = f"{len(density)} steps of {num_weights:,} bf16 weights, {changed['median']:.2%} changed (median)"
    print_table(title, ("", "full / payload", "min to max", "encode GB/CPU s", "decode GB/CPU s"), rows)
    if not options.quick:
        content = {
            "trace": options.trace.name,
            "rounds": options.rounds,
            "num_weights": num_weights,
            "density": dict(density),
            "arms": arms,
        }
        print(write_report("delta", content))


def _figures(found: list[Timed]) -> dict[str, Any]:
    ratio = {timed.step: timed.full_bytes / timed.payload_bytes for timed in found}
    return {
        "ratio": summarise(list(ratio.values())),
        "ratio_of_step": ratio,
        "encode_gb_per_cpu_second": summarise([timed.full_bytes / timed.encode_seconds / 1e9 for timed in found]),
        "decode_gb_per_cpu_second": summarise([timed.full_bytes / timed.decode_seconds / 1e9 for timed in found]),
    }


def _tensors(words: dict[str, Any]) -> Tensors:
    return {name: Tensor("BF16", array.shape, array.reshape(-1).view(np.uint8)) for name, array in words.items()}


def _joined(tensors: Tensors) -> Any:
    return np.concatenate([tensors[name].data for name in sorted(tensors)])


def _density(step: Step) -> float:
    return float(np.mean(_joined(step.base).view("<u2") != _joined(step.target).view("<u2")))


def _check(found: Any, target: Any) -> None:
    if not np.array_equal(found, target):
        raise InvalidValue("what came back is not what was sent: the codec is broken", param="trace")


if __name__ == "__main__":
    main(sys.argv[1:])
