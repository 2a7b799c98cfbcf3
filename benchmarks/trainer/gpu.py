"""The trainer's GPU table: a step of a Qwen3-shaped random policy of 1.5 B, beside trl's GRPOTrainer on the same samples.

usage: python -m benchmarks.trainer.gpu [--device cuda] [--peak-flops 989e12] [--steps N] [--tiny] [--json]

Out: utilisation over forward and backward alone and over wall-clock time, tokens per second, peak memory, and the ratio of step times.
`--device cpu --tiny` runs the same code on a small policy without a GPU; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import print_table, write_report
from benchmarks.trainer.throughput import BOUND, sample
from benchmarks.trainer.trl_peer import stepper
from contracts.records import Experience
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings

H100_BF16 = 989e12
"""Dense bfloat16 FLOP/s of an H100 SXM, by NVIDIA's data sheet."""
LARGE = {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
TINY = {"vocab_size": 8192, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
ROWS_OF_TRL = 8


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peak-flops", type=float, default=H100_BF16, help="of the device, in bfloat16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    items = _samples(8, 4, 24) if options.tiny else _samples(64, 128, 2048)
    found = {
        "millrace": _ours(items, options),
        "trl": _trl(items, options),
    }
    ratio = found["trl"]["seconds"] / found["millrace"]["seconds"]
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    columns = ("seconds", "tokens_s", "mfu", "mfu_wall_clock", "peak_gib")
    table = [[arm, *(row.get(column) for column in columns)] for arm, row in found.items()]
    print_table(f"a step on {name}", ("arm", *columns), table)
    report = {"device": name, "tiny": options.tiny, "ratio_vs_trl": ratio, **found}
    print(json.dumps(report))
    if options.json:
        print(f"written: {write_report('trainer-gpu', report)}")
    return report


def _model(options: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    shape = TINY if options.tiny else LARGE
    config = Qwen3Config(**shape, tie_word_embeddings=True, max_position_embeddings=8192)
    return Qwen3ForCausalLM(config).to(options.device)


def _samples(count: int, low: int, high: int) -> list[Experience]:
    """Prompts and answers of log-uniform lengths."""
    random = np.random.default_rng(7)
    lengths = np.exp(random.uniform(np.log(low), np.log(high), (count, 2))).astype(int).tolist()
    return [sample(random, [], prompt, answer) for prompt, answer in lengths]


def _ours(items: list[Experience], options: argparse.Namespace) -> dict[str, Any]:
    settings = TrainingSettings(
        kl_coefficient=0.0,
        mismatch_samples=0,
        divergence_bound=float("inf"),
        peak_flops=options.peak_flops,
        precision="bfloat16",
        max_tokens=8192,  # 16,384 do not fit into 80 GB
    )
    learner, steps = Learner(WholeModel(_model(options), settings, options.device), settings), []

    def step() -> None:
        steps.append(learner.step(items, [1.0] * len(items), {}).metrics)

    row = _timed(step, num_tokens(items), options)
    for name, figure in (("mfu", "mfu_forward_backward"), ("mfu_wall_clock", "mfu_wall_clock")):
        row[name] = statistics.median(metrics[figure] or 0.0 for metrics in steps[1:])
    return row


def _trl(items: list[Experience], options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        step = stepper(_model(options), items, Path(folder), rows=ROWS_OF_TRL, bound=BOUND, device=options.device)

        def in_bfloat16() -> None:
            with torch.autocast(options.device.split(":")[0], torch.bfloat16):
                step()

        return _timed(in_bfloat16, num_tokens(items), options)


def _timed(step: Callable[[], object], tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    on_gpu = options.device.startswith("cuda")
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step()
    seconds = []
    for _ in range(options.steps):
        began = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": median, "tokens_s": tokens / median, "peak_gib": peak / 2**30}


if __name__ == "__main__":
    main(sys.argv[1:])
