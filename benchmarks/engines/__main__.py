"""Our engine and vLLM side by side: tokens/s at 1, 8 and 32 in flight, the pause of a swap, mismatch against the trainer's forward.

`python -m benchmarks.engines [--vllm-python PATH] [--rounds N]`. One engine runs at a time, on all cores; rounds alternate between them.
k1 is the mean of log p_engine - log p_trainer over sampled tokens, k3 the mean of r - 1 - log r with r = p_trainer / p_engine
(Schulman, "Approximating KL divergence", 2020); both are 0 for equal distributions.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.engines.load import EngineSampled, prompts, run_load
from benchmarks.engines.world import POLICY, OneEngine
from benchmarks.report import print_table, summarise, write_report
from commands.engines import choose_engine
from contracts.errors import InvalidSettings
from engines.vllm.settings import VllmSettings
from policy.load import load_model
from tests.worlds.paths import BASE

_IN_FLIGHT = (1, 8, 32)
_MAX_TOKENS = 64
_REQUESTS = {1: 12, 8: 64, 32: 128}
_NUM_SWAPS = 10
console = Console(soft_wrap=True)


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table, and write benchmarks/results."""
    options = _parse(arguments)
    chosen = choose_engine("vllm", options.vllm_python, 1).servers
    if not isinstance(chosen, VllmSettings) or chosen.python is None:
        raise InvalidSettings("--vllm-python is missing")
    found: dict[str, list[dict[str, Any]]] = {"millrace": [], "vllm": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for python in (None, chosen.python):
                engine = OneEngine(Path(folder) / f"{number}-{'vllm' if python else 'millrace'}", python, _NUM_SWAPS)
                found[engine.kind].append(measure(engine))
                console.print(f"round {number + 1}, {engine.kind}: {found[engine.kind][-1]}")
    figures = {kind: _together(rows) for kind, rows in found.items()}
    print_table(
        "Our engine beside vLLM, medians",
        ["", *found],
        [[name, *(figures[kind][name]["median"] for kind in found)] for name in figures["vllm"]],
    )
    console.print(f"written to {write_report('engines', {'figures': figures})}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description="Our engine and vLLM side by side."
    )
    parser.add_argument(
        "--vllm-python", type=Path, help="interpreter of vLLM's environment; default: that of `make vllm`"
    )
    parser.add_argument("--rounds", type=int, default=2, help="how often each engine is started")
    return parser.parse_args(arguments)


def measure(engine: OneEngine) -> dict[str, Any]:
    """One start of one engine."""
    with engine.running() as start_seconds:
        asked = prompts(max(_REQUESTS.values()))
        found: dict[str, Any] = {"start_seconds": start_seconds}
        answers: list[EngineSampled] = []
        for in_flight in _IN_FLIGHT:
            load = asyncio.run(
                run_load(
                    engine.url, engine.headers, asked[: _REQUESTS[in_flight]], in_flight=in_flight, max_tokens=_MAX_TOKENS,
                    policy=POLICY,
                )
            )  # fmt: skip
            found[f"tokens_per_second_{in_flight}"] = load.tokens_per_second
            found[f"failed_{in_flight}"] = load.num_failed
            answers.extend(load.answers)
        found |= mismatch(answers)
        for version in range(1, _NUM_SWAPS + 1):
            engine.bring(version)
        pauses = engine.pauses()
        found["stage_ms"] = 1000 * statistics.median(stage for stage, _ in pauses)
        found["pause_ms"] = 1000 * statistics.median(pause for _, pause in pauses)
    return found


def mismatch(answers: list[EngineSampled]) -> dict[str, float]:
    """k1, k3 and the largest difference of the engine's log-probs against transformers' forward in float32."""
    model = load_model(str(BASE), device="cpu", dtype=torch.float32)
    differences: list[float] = []
    for answer in answers:
        ids = torch.tensor([[*answer.prompt, *answer.tokens]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
        at = len(answer.prompt) - 1
        differences += [
            told - float(logprobs[at + place, token])
            for place, (token, told) in enumerate(zip(answer.tokens, answer.logprobs, strict=True))
        ]
    told = torch.tensor(differences, dtype=torch.float64)
    return {
        "tokens_compared": float(len(differences)),
        "k1": float(told.mean()),
        "k3": float((torch.exp(-told) - 1 + told).mean()),
        "largest_difference": float(told.abs().max()),
    }


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: summarise([float(row[name]) for row in rows]) for name in rows[0]}


if __name__ == "__main__":
    main(sys.argv[1:])
