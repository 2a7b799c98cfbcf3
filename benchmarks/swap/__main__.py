"""Weight swaps while answers are generated: what they cost, and whether every token is labelled with the right version.

usage: python -m benchmarks.swap [--device cuda] [--quick] [--sizes 5,50,150,500]

In: the demo's policy, and a chain of versions made from it, 1% of the weights one unit in the last place away from step
to step. Out: tables, and a dated JSON file. Waits: until every answer is complete. One swap in five goes back, and the
next one forth again, both out of the undo log. A sample of the answers that went over a swap is worked out again under
the versions that their tokens are labelled with: in float32 on any device, since only that tells versions apart. Then the
pause alone, of random models of growing size in bfloat16, nothing in flight.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.report import percentile, print_table, summarise, write_report
from benchmarks.swap.world import LIVE, SwapOutcome, publish_chain, swap_under_load, way
from policy.load import load_model
from policy.weights import ModelBits, copy_tensors, tensors_of
from services.engine.repository import SwapRecord
from services.engine.settings import EngineSettings
from tests.worlds.engines.labels import LabelledAnswer, check_labels
from tests.worlds.engines.own import POLICY, open_engine
from tests.worlds.paths import BASE
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import read_safetensors

DENSITY = 0.01
_QUICK_SWAPS, _QUICK_CHECKED, _QUICK_SIZES = 60, 20, (5, 50)
_MODELS_KEPT = 8
_ROUNDS = 5


class SwapShape(NamedTuple):
    """A Llama with tied embeddings."""

    hidden: int
    intermediate: int
    layers: int
    vocabulary: int


SHAPES = {
    5: SwapShape(256, 704, 4, 8_000),
    50: SwapShape(512, 1408, 13, 16_000),
    150: SwapShape(768, 2048, 18, 32_000),
    500: SwapShape(1280, 3456, 23, 32_000),
}
"""By millions of parameters."""


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    torch.set_num_threads(EngineSettings().threads)
    loaded = _measure_load(options)
    _show_load(loaded)
    sizes = [_measure_size(millions, options.device) for millions in options.sizes]
    _show_sizes(sizes, options.device)
    if not options.quick:
        content = {
            "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "density": DENSITY,
            "demo_policy": loaded,
            "sizes": sizes,
        }
        print(write_report("swap" if options.device == "cpu" else "swap-gpu", content))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swap", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--swaps", type=int, default=1000, help="under load, with the demo's policy")
    parser.add_argument("--streams", type=int, default=8, help="answers in flight all the time")
    parser.add_argument("--checked", type=int, default=300, help="answers that are worked out again")
    parser.add_argument(
        "--sizes", type=_sizes, default=tuple(SHAPES), help=f"of {','.join(map(str, SHAPES))}, in millions"
    )
    parser.add_argument("--quick", action="store_true", help="few swaps, small models; writes no file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.swaps, options.checked, options.sizes = _QUICK_SWAPS, _QUICK_CHECKED, _QUICK_SIZES
    return options


def _sizes(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split(",") if part)
    if unknown := set(found) - SHAPES.keys():
        raise argparse.ArgumentTypeError(f"no model of {sorted(unknown)} million parameters; there are {list(SHAPES)}")
    return found


def _measure_load(options: argparse.Namespace) -> dict[str, Any]:
    versions = way(options.swaps)
    make_model = functools.partial(load_model, str(BASE), device=options.device, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store_at(Path(folder))
        publish_chain(store, read_safetensors(BASE), max(versions), DENSITY)
        with open_engine(Path(folder), make_model, EngineSettings()) as engine:
            outcome = swap_under_load(engine, versions, BASE, options.streams)
        return {
            "streams": options.streams,
            "swaps": len(outcome.records),
            "answers": len(outcome.answers),
            "failed": outcome.num_failed,
            **_times(outcome),
            "labels": _labels(store, outcome.answers, max(versions), options),
        }


def _times(outcome: SwapOutcome) -> dict[str, Any]:
    """Milliseconds. A swap that fetched nothing used the undo log."""
    records = outcome.records
    return {
        "out_of_undo_log": sum(record.payload_bytes == 0 for record in records),
        "changed_share": summarise([round(record.density, 5) for record in records if record.payload_bytes])["median"],
        "payload_bytes": summarise([record.payload_bytes for record in records if record.payload_bytes])["median"],
        "pause_ms": _spread([record.pause_seconds for record in records]),
        "gap_ms": _spread([record.gap_seconds for record in records if record.gap_seconds is not None]),
        "gap_without_swap_ms": _spread(outcome.quiet_gaps),
        "stage_ms": _spread([record.stage_seconds for record in records if record.payload_bytes]),
        "stage_undo_ms": _spread([record.stage_seconds for record in records if record.payload_bytes == 0]),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1000 * percentile(seconds, share), 4) for name, share in shares.items()} | {"of": len(seconds)}


def _labels(
    store: WeightStore, answers: Sequence[LabelledAnswer], last_version: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Check a sample of the answers that span several versions."""
    over_swaps = [answer for answer in answers if len(answer.spans) > 1]
    sample = Random(0).sample(over_swaps, min(options.checked, len(over_swaps)))  # noqa: S311 a sample, not a secret

    @functools.lru_cache(maxsize=_MODELS_KEPT)
    def model_of(version: int) -> Any:
        model = load_model(str(BASE), device=options.device, dtype=torch.float32)
        copy_tensors(model, store.load(POLICY, version))
        return model

    def neighbours(version: int) -> list[int]:
        return [other for other in (version - 1, version + 1) if 0 <= other <= last_version]

    labels = check_labels(sorted(sample, key=lambda answer: answer.spans[0].version), model_of, neighbours)
    return {"answers_over_a_swap": len(over_swaps), "answers_checked": len(sample), **labels._asdict()}


def _measure_size(millions: int, device: str) -> dict[str, Any]:
    """One arm from version to version; each time back and forth again out of the undo log."""
    model = _random_model(SHAPES[millions]).to(device)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store_at(Path(folder))
        publish_chain(store, tensors_of(model), _ROUNDS, DENSITY)
        settings = EngineSettings(cache_tokens=256, max_batch_tokens=64)
        with open_engine(Path(folder), lambda: model, settings) as engine:
            steps: list[SwapRecord] = []
            undone: list[SwapRecord] = []
            for version in range(1, _ROUNDS + 1):
                for target, records in ((version, steps), (version - 1, undone), (version, undone)):
                    record = engine.update(LIVE, target)
                    assert record is not None, "nothing was swapped"  # noqa: S101 a mistake of this file
                    records.append(record)
    everything = [*steps, *undone]
    return {
        "num_weights": sum(tensor.data.size // 2 for tensor in ModelBits(model).values()),
        "num_changed": steps[0].num_changed,
        "payload_bytes": steps[0].payload_bytes,
        "pause_ms": summarise([round(1000 * record.pause_seconds, 4) for record in everything]),
        "stage_ms": summarise([round(1000 * record.stage_seconds, 1) for record in steps]),
        "stage_undo_ms": summarise([round(1000 * record.stage_seconds, 1) for record in undone]),
    }


def _random_model(shape: SwapShape) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        num_key_value_heads=shape.hidden // 64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(requires_grad=False)


def _show_load(found: dict[str, Any]) -> None:
    title = f"{found['swaps']} swaps ({found['out_of_undo_log']} out of the undo log), {found['streams']} answers in flight, demo policy"
    names = {
        "pause_ms": "pause",
        "gap_ms": "gap that holds the swap, minus the median gap",
        "gap_without_swap_ms": "the same halfway between swaps",
        "stage_ms": "decode and verify, while serving",
        "stage_undo_ms": "the same out of the undo log",
    }
    rows = [
        (name, found[key]["of"], *(f"{found[key][share]:.2f}" for share in ("p50", "p99", "max")))
        for key, name in names.items()
    ]
    print_table(title, ("ms", "of", "p50", "p99", "max"), rows)
    labels = found["labels"]
    print(
        f"{found['answers']} answers, {found['failed']} failed; of {labels['answers_checked']} that went over a swap "
        f"{labels['checked']} tokens: {labels['mislabelled']} mislabelled, {labels['unexplained']} unexplained, "
        f"{labels['told_apart']} that a neighbouring version would have made otherwise, "
        f"largest error {labels['largest_error']:.1e}"
    )


def _show_sizes(found: Sequence[dict[str, Any]], device: str) -> None:
    rows = [
        (
            f"{size['num_weights'] / 1e6:.1f} M",
            f"{size['num_changed']:,}",
            f"{size['pause_ms']['median']:.2f} ({size['pause_ms']['min']:.2f} to {size['pause_ms']['max']:.2f})",
            f"{size['stage_ms']['median']:,.0f}",
            f"{size['stage_undo_ms']['median']:,.0f}",
            f"{size['payload_bytes']:,}",
        )
        for size in found
    ]
    columns = ("weights", "changed", "pause, ms", "decode and verify, ms", "out of the undo log, ms", "bytes")
    print_table(f"pause by size, bfloat16 on {device}, nothing in flight", columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
