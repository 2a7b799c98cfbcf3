"""How much of the codec's rate is left when a version is published into a folder and brought to a replica on the same disk.

usage: python -m benchmarks.deltas.product [--parts 1,2] [--rounds N] [--layers N] [--json] [--quick]

In: versions as those of `benchmarks.deltas.threads`. Out: GB of bf16 per second by the clock, and of a core, of the codec alone (encode; stage and apply)
and of the product (publish; bring, from the store to served), in turns; with several parts, each is published in a thread of its own.
Waits for: the disk of TMPDIR, so nothing else may use it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.deltas.threads import Seconds, _start, _step, _timed
from benchmarks.report import end_with, print_table, summarise
from weights.blocks import blocks_of
from weights.codec.container import layout_of
from weights.codec.delta import CODEC, apply_staged, encode
from weights.codec.history import History
from weights.parts import merge_parts, plan_parts, publish_part
from weights.publish import edges_to, publish_version
from weights.reader import advance_history
from weights.replica.replica import Replica
from weights.staging import stage_edge
from weights.stores.opening import open_store_at
from weights.tensors import Tensors
from weights.versions.manifest import NO_HISTORY, Manifest

_VOCABULARY = 32_000
_GIGA = 1e9
_POLICY = "benchmark"
_WARM = 2
"""Versions before the first that counts: the full copy, and one without a history."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for; the status."""
    options = _parse(arguments)
    return end_with(measure(options.parts, options.rounds, options.layers), options, show, "codec-product")


def measure(parts: Sequence[int], rounds: int, layers: int, vocabulary: int = _VOCABULARY) -> dict[str, Any]:
    """GB/s per number of parts; 1: one process publishes as it always did."""
    generator, samples = np.random.default_rng(0), {count: list[Seconds]() for count in parts}
    with tempfile.TemporaryDirectory() as folder:
        worlds = [_World(Path(folder) / str(count), count) for count in parts]
        target = _start(generator, layers, vocabulary)
        full_bytes = sum(tensor.data.size for tensor in target.values())
        for version in range(_WARM + rounds):
            base, target = target, _step(generator, target) if version else target
            for world in worlds:
                seconds = world.step(version, base, target)
                if version >= _WARM:
                    samples[world.num_parts].append(seconds)
        for world in worlds:
            world.replica.close()
    return {
        "num_weights": full_bytes // 2,
        "rounds": rounds,
        **{
            kind: {
                count: {
                    name: summarise([full_bytes / _GIGA / each[name][number] for each in found]) for name in found[0]
                }
                for count, found in samples.items()
            }
            for number, kind in enumerate(("gb_s", "gb_cpu_s"))
        },
    }


def show(figures: dict[str, Any]) -> None:
    """A row per number of parts."""
    for kind, words in (("gb_s", "by the clock"), ("gb_cpu_s", "of a core")):
        rows = []
        for count, found in figures[kind].items():
            rates = [found[name]["median"] for name in ("encode", "publish", "stage", "bring")]
            shares = rates[1] / rates[0], rates[3] / rates[2]
            rows.append([count, *(f"{number:.2f}" for number in (*rates[:2], shares[0], *rates[2:], shares[1]))])
        print_table(
            f"{figures['num_weights']:,} weights; GB of bf16 a second {words}",
            ["parts", "encode", "publish", "share", "stage and apply", "bring", "share"],
            rows,
        )


class _World:
    """A store, who publishes into it, and a replica."""

    def __init__(self, folder: Path, num_parts: int) -> None:
        self.num_parts, self.store = num_parts, open_store_at(folder / "store")
        self.replica = Replica(folder / "replica", self.store, _POLICY)
        self.histories = [History() for _ in range(num_parts)]

    def step(self, version: int, base: Tensors, target: Tensors) -> Seconds:
        """Publish and bring a version; the seconds of both, and of the codec for the same."""
        whole = self.store.load_state(_POLICY, version - 1)[1] if version else History()
        encoding, _ = (
            _timed(lambda: encode(blocks_of(base), blocks_of(target), whole)) if version else ((0.0, 0.0), None)
        )
        publish = self._publish_alone if self.num_parts == 1 or not version else self._publish_parts
        publishing, manifest = _timed(lambda: publish(version, base, target))
        received = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in base.items()}

        def decode() -> None:
            apply_staged(
                received, stage_edge(received, manifest, self.store.payload, whole, base_root=manifest.base_root)
            )

        staging, _ = _timed(decode)
        bringing, _ = _timed(lambda: self.replica.bring(version))
        return {"encode": encoding, "publish": publishing, "stage": staging, "bring": bringing}

    def _publish_alone(self, version: int, base: Tensors, target: Tensors) -> Manifest:
        about = _about(version)
        return publish_version(
            self.store, policy=about.policy, run=about.run, version=version, parent=about.parent, base=base, target=target,
            step=version, epoch=about.epoch, num_samples=1, created_at=about.created_at, history=self.histories[0],
        )  # fmt: skip

    def _publish_parts(self, version: int, base: Tensors, target: Tensors) -> Manifest:
        layout, old, new = layout_of(target), blocks_of(base), blocks_of(target)
        step, *_ = edges_to(self.store, _about(version), self.histories[0], has_base=True)

        def part(number: int) -> tuple[Manifest, Any]:
            names = [name for name, _, _ in plan[number]]
            before, after = ({name: one[name] for name in names} for one in (old, new))
            return publish_part(self.store, step, before, after, self.histories[number])

        plan = plan_parts(layout, self.num_parts)
        with ThreadPoolExecutor(self.num_parts) as ranks:
            found = [*ranks.map(part, range(self.num_parts))]
        stored = merge_parts(self.store, step, layout, [facts for facts, _ in found])
        for history, (_, moves) in zip(self.histories, found, strict=True):
            advance_history(history, stored, moves)
        return stored


def _about(version: int) -> Manifest:
    return Manifest(
        policy=_POLICY, run="benchmark", version=version, parent=version - 1 if version else None, base_version=None,
        base_root=None, target_root="", codec=CODEC, history=None, history_after=NO_HISTORY, chunks=(), full_bytes=0,
        num_changed=0, num_weights=0, created_at=0.0, step=version, epoch=1, num_samples=1, parts=msgspec.UNSET,
    )  # fmt: skip


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deltas.product", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--parts", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--json", action="store_true", help="print one object instead of tables; writes no file")
    parser.add_argument("--quick", action="store_true", help="writes no file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
