"""How many times as fast the codec is on several cores: seconds by the clock, in turns.

usage: python -m benchmarks.deltas.threads [--threads 1,2] [--rounds N] [--layers N] [--json] [--quick]

In: tensors shaped as those of a small policy, of which a step with history changes about 1% (small weights more often, as under
Adam). Out: GB of bf16 per second of encoding (root included), of decoding and verifying, of that with applying, of applying, and of
the history; by the clock, and per second of a core, on which other work shows less. Waits: for nothing; take all cores.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from benchmarks.deltas.__main__ import manifest_of
from benchmarks.report import end_with, print_table, summarise
from weights.codec.delta import apply_staged, encode, stage
from weights.codec.history import History
from weights.cores import limited_to
from weights.tensors import Tensor, Tensors, root_of

_HIDDEN, _INNER, _VOCABULARY = 1024, 2816, 32_000
_DEVIATION = 0.02
_SHARE = 0.012
"""Of the weights with the exponent of 2 ** -7 that a step changes; each halving doubles it."""
_GIGA = 1e9
Seconds = dict[str, tuple[float, float]]
"""Of each part of a round: by the clock, and of the cores together."""
_Result = TypeVar("_Result")


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for; the status."""
    options = _parse(arguments)
    return end_with(measure(options.threads, options.rounds, options.layers), options, show, "codec-threads")


def measure(threads: Sequence[int], rounds: int, layers: int, vocabulary: int = _VOCABULARY) -> dict[str, Any]:
    """GB/s per number of threads; the first round warms up."""
    generator = np.random.default_rng(0)
    versions = [_start(generator, layers, vocabulary)]
    for _ in range(2):
        versions.append(_step(generator, versions[-1]))
    history, (before, base, target) = History(), versions
    first = encode(before, base, history)
    history.advance(first.moves, first.target_root)
    samples: dict[int, list[Seconds]] = {count: [] for count in threads}
    payloads = set()
    for _ in range(rounds + 1):
        for count in threads:
            with limited_to(count):
                seconds, payload = _round(base, target, history)
            samples[count].append(seconds)
            payloads.add(payload)
    full_bytes = sum(tensor.data.size for tensor in target.values())
    return {
        "num_weights": full_bytes // 2,
        "ratio": full_bytes / len(next(iter(payloads))),
        "payloads_equal": len(payloads) == 1,
        "rounds": rounds,
        **{kind: _speeds(samples, number, full_bytes) for number, kind in enumerate(("gb_s", "gb_cpu_s"))},
    }


def _speeds(samples: Mapping[int, list[Seconds]], number: int, full_bytes: int) -> dict[int, dict[str, Any]]:
    return {
        count: {name: summarise([full_bytes / _GIGA / each[name][number] for each in found[1:]]) for name in found[0]}
        for count, found in samples.items()
    }


def show(figures: dict[str, Any]) -> None:
    """A row per number of threads."""
    for kind, words in (("gb_s", "by the clock"), ("gb_cpu_s", "of a core")):
        speeds = figures[kind]
        steps = [*next(iter(speeds.values()))]
        size = f"{figures['num_weights']:,} weights, {figures['ratio']:.0f} times smaller"
        rows = [[count, *(f"{found[step]['median']:.2f}" for step in steps)] for count, found in speeds.items()]
        print_table(f"{size}; GB of bf16 a second {words}", ["threads", *steps], rows)


def _round(base: Tensors, target: Tensors, history: History) -> tuple[Seconds, bytes]:
    received = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in base.items()}
    root, past = root_of(base), history.copy()
    encode_seconds, encoded = _timed(lambda: encode(base, target, history))
    manifest = manifest_of(encoded, root, history.digest)
    decode_seconds, staged = _timed(lambda: stage(received, manifest, encoded.payload, past, base_root=root))
    apply_seconds, _ = _timed(lambda: apply_staged(received, staged))
    history_seconds, _ = _timed(lambda: past.advance(staged.moves, staged.target_root))
    seconds = {"encode": encode_seconds, "decode and verify": decode_seconds, "apply": apply_seconds}
    both = (decode_seconds[0] + apply_seconds[0], decode_seconds[1] + apply_seconds[1])
    return {**seconds, "decode, verify and apply": both, "history": history_seconds}, encoded.payload


def _start(generator: np.random.Generator, layers: int, vocabulary: int) -> Tensors:
    shapes = {"embed": (vocabulary, _HIDDEN)}
    for layer in range(layers):
        of_layer = {
            "q": (_HIDDEN, _HIDDEN), "k": (_HIDDEN // 4, _HIDDEN), "v": (_HIDDEN // 4, _HIDDEN), "o": (_HIDDEN, _HIDDEN),
            "up": (_INNER, _HIDDEN), "gate": (_INNER, _HIDDEN), "down": (_HIDDEN, _INNER),
        }  # fmt: skip
        shapes |= {f"layer.{layer}.{name}": shape for name, shape in of_layer.items()}
    tensors = {}
    for name, shape in shapes.items():
        floats = generator.standard_normal(math.prod(shape), np.float32) * np.float32(_DEVIATION)
        tensors[name] = Tensor("BF16", shape, (floats.view("<u4") >> 16).astype("<u2").view(np.uint8))
    return tensors


def _step(generator: np.random.Generator, tensors: Tensors) -> Tensors:
    stepped = {}
    for name, tensor in tensors.items():
        words = tensor.data.view("<u2")
        share = np.exp2(120 - (words >> 7 & 0xFF).astype(np.float32)) * np.float32(_SHARE / 4)
        moves = (generator.random(words.size, np.float32) < share) * generator.choice(np.array([1, 1, -1]), words.size)
        stepped[name] = tensor._replace(data=(words + moves.astype("<u2")).view(np.uint8))
    return stepped


def _timed(call: Callable[[], _Result]) -> tuple[tuple[float, float], _Result]:
    clock, cores = time.perf_counter(), time.process_time()
    result = call()
    return (time.perf_counter() - clock, max(time.process_time() - cores, 1e-9)), result


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deltas.threads", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--threads", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="print one object instead of tables; writes no file")
    parser.add_argument("--quick", action="store_true", help="writes no file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
