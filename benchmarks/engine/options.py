"""What sampling options cost per step: unused, used by one request of the batch, used by all.

usage: python -m benchmarks.engine.options [--device cuda] [--rows 32] [--vocabulary 32000] [--quick]

In: random logits. Out: a table of milliseconds of sampling per step, and a dated JSON file. `bare` is softmax and multinomial alone,
the least that sampling with log-probs can cost; `unused` is our sampler when no request uses an option. Arms are interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from benchmarks.report import print_table, summarise, write_report
from services.engine.grammars import Grammars, json_grammar
from services.engine.sampler import SequenceSampling, sample
from services.engine.sampling import SamplingParams
from tests.worlds.paths import BASE

_OPTIONS: dict[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=0.7),
    "min-p": SamplingParams(min_p=0.05),
    "top-k": SamplingParams(top_k=50),
    "top-p": SamplingParams(top_p=0.9),
    "biases": SamplingParams(logit_bias={"1": 2.0, "2": -100.0}),
    "penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.2),
    "20 log-probs": SamplingParams(logprobs=21),
    "seed": SamplingParams(seed=1),
}
_GRAMMAR = "a grammar"
_PROMPT = list(range(3, 67))
_STEPS = 20


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.options")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=32, help="requests per step")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rounds; writes no file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    grammars = Grammars(BASE / "tokenizer.json", options.vocabulary, frozenset({1}), seconds=60)
    samples = _measure(options, grammars)
    grammars.close()
    figures = {name: summarise(found) for name, found in samples.items()}
    rows = [
        (name, f"{found['median']:.3f}", f"{found['min']:.3f} to {found['max']:.3f}") for name, found in figures.items()
    ]
    print_table(f"{options.rows} rows of {options.vocabulary} on {options.device}", ("", "ms per step", "range"), rows)
    if not options.quick:
        shape = {name: getattr(options, name) for name in ("device", "rows", "vocabulary", "rounds")}
        print(write_report("engine-options", {**shape, "torch": torch.__version__, "ms_per_step": figures}))


def _measure(options: argparse.Namespace, grammars: Grammars) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    scores = torch.randn(options.rows, options.vocabulary, device=options.device)
    matcher = asyncio.run(grammars.matcher(json_grammar('{"type": "array", "items": {"type": "string"}}')))

    def plain(count: int) -> list[SequenceSampling]:
        return [SequenceSampling(SamplingParams(), _PROMPT) for _ in range(count)]

    def used(name: str) -> SequenceSampling:
        if name == _GRAMMAR:
            return SequenceSampling(SamplingParams(), _PROMPT, matcher=matcher.deep_copy())
        return SequenceSampling(_OPTIONS[name], _PROMPT)

    for number in range((2 if options.quick else options.rounds) + 1):  # the first warms up
        arms: dict[str, Callable[[], Any]] = {"bare": lambda: _bare(scores.clone())}
        batches = {"unused": plain(options.rows)}
        for name in (*_OPTIONS, _GRAMMAR):
            batches[f"{name}, one request"] = [*plain(options.rows - 1), used(name)]
            batches[f"{name}, all"] = [used(name) for _ in range(options.rows)]
        arms |= {name: _sampling(scores, batch) for name, batch in batches.items()}
        for name, step in arms.items():
            milliseconds = _timed(step, options.device)
            if number:
                samples[name].append(milliseconds)
    return samples


def _sampling(scores: torch.Tensor, batch: list[SequenceSampling]) -> Callable[[], Any]:
    return lambda: sample(scores.clone(), batch)


def _bare(scores: torch.Tensor) -> torch.Tensor:
    shares = scores.softmax(-1)
    return shares.gather(1, torch.multinomial(shares, 1)).log()


def _timed(step: Callable[[], Any], device: str) -> float:
    started = perf_counter()
    for _ in range(_STEPS):
        step()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (perf_counter() - started) * 1000 / _STEPS


if __name__ == "__main__":
    main(sys.argv[1:])
