"""A step of the learner beside trl's GRPOTrainer: same model, samples and loss (`cispo`, no leash), float32, AdamW included.

Each measurement is a process of its own, so that its peak of memory is its own; arms alternate. `mixed`: prompts and answers of very
different lengths. `shared`: 60% of all tokens are one system prompt. trl's trainer has no packing and no padding-free rows; it runs without
activation checkpointing, which would only slow it, with 8 rows in a forward pass (the default of transformers), and once row by row.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import summarise
from contracts.ids import new_completion_id, sample_key
from contracts.records import Experience, Score, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings
from tests.worlds.paths import ROOT

VOCABULARY = 8192
ROWS, ROWS_OF_TRL = 32, 8
"""Samples of a step, and of one forward pass of trl."""
STEPS = 4
BOUND = 3.0
CASES = ("mixed", "shared")
ARMS = ("millrace", "trl")
TEMPERATURES = ("one_temperature", "temperatures")
"""The samples of `mixed` twice, at one temperature and at 64."""


def throughput(rounds: int) -> dict[str, Any]:
    """Ratios of medians over rounds: `ratio_vs_trl` (mixed), `ratio_shared_prefix`, `memory_vs_trl`, and sampled `tokens_s`."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {case: {arm: [] for arm in ARMS} for case in CASES}
    for number in range(rounds):
        for case in CASES:
            for arm in ARMS if number % 2 else reversed(ARMS):
                found[case][arm].append(_measured(arm, case))
                print(f"round {number + 1}: {case}, {arm}: {found[case][arm][-1]}", flush=True)
    heat = [[_measured("millrace", case)["seconds"] for case in TEMPERATURES] for _ in range(rounds)]
    figures: dict[str, Any] = {
        case: {
            arm: {name: summarise([row[name] for row in rows]) for name in ("seconds", "peak_mib", "tokens_s")}
            for arm, rows in arms.items()
        }
        for case, arms in found.items()
    }

    def ratio(case: str, name: str, above: str, below: str) -> float:
        each = [a[name] / b[name] for a, b in zip(found[case][above], found[case][below], strict=True)]
        return statistics.median(each)

    return {
        "ratio_vs_trl": ratio("mixed", "seconds", "trl", "millrace"),
        "ratio_shared_prefix": ratio("shared", "seconds", "trl", "millrace"),
        "memory_vs_trl": ratio("mixed", "peak_mib", "millrace", "trl"),
        "memory_vs_trl_shared": ratio("shared", "peak_mib", "millrace", "trl"),
        "cost_of_64_temperatures": statistics.median(many / one for one, many in heat) - 1,
        "ratio_vs_trl_row_by_row": statistics.median(
            _measured("trl_row_by_row", "mixed")["seconds"] / row["seconds"] for row in found["mixed"]["millrace"]
        ),
        "tokens_s": figures["mixed"]["millrace"]["tokens_s"]["median"],
        "cases": figures,
    }


def samples(case: str) -> list[Experience]:
    """The same samples in every process."""
    random = np.random.default_rng(11)
    lengths = [(int(p), int(a)) for p, a in zip(_spread(random, 16, 256), _spread(random, 8, 256), strict=True)]
    if case in TEMPERATURES:
        every = np.linspace(0.5, 1.5, 2 * ROWS).tolist() if case == "temperatures" else [1.0] * 2 * ROWS
        return [sample(random, [], p, a, t) for (p, a), t in zip(lengths * 2, every, strict=True)]
    if case == "shared":
        total = sum(prompt + answer for prompt, answer in lengths)
        shared = random.integers(0, VOCABULARY, round(1.5 * total / ROWS)).tolist()  # 60% of all tokens
        return [sample(random, shared, prompt, answer) for prompt, answer in lengths]
    return [sample(random, [], prompt, answer) for prompt, answer in lengths]


def _spread(random: np.random.Generator, low: int, high: int) -> np.ndarray:
    return np.exp(random.uniform(np.log(low), np.log(high), ROWS)).astype(int)


def sample(
    random: np.random.Generator, shared: list[int], prompt: int, answer: int, temperature: float = 1.0
) -> Experience:
    """A graded answer of `answer` random tokens to the tokens `shared` and `prompt` random ones."""
    ids = [*shared, *random.integers(0, VOCABULARY, prompt + answer).tolist()]
    mask = bytes([0] * (len(ids) - answer) + [1] * answer)
    log_probs = pack_floats([0.0] * (len(ids) - answer) + (-random.uniform(8, 10, answer)).tolist())
    segment = Segment(
        token_ids=pack_ids(ids),
        loss_mask=mask,
        logprobs=log_probs,
        spans=(Span(0, 0),),
        sampling=Sampling(temperature=temperature, top_p=1.0, max_tokens=answer),
    )
    reward = float(random.integers(0, 2))
    return Experience(
        key=sample_key(new_completion_id(), 0), revision=1, task="bench", task_hash="", policy="bench", tenant="bench",
        segments=(segment,), status="scored", reward=reward, scores=(Score(name="right", grader="bench/1", value=reward),),
        engine="millrace", dtype="float32", baseline_key="bench", generated_at=time.time(), scored_at=time.time(), purpose="user",
    )  # fmt: skip


def model() -> Any:
    """Qwen3-shaped, 14 million parameters."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def _measured(arm: str, case: str) -> dict[str, float]:
    done = subprocess.run(  # noqa: S603 this module
        [sys.executable, "-m", "benchmarks.trainer.throughput", arm, case], cwd=ROOT, capture_output=True, text=True,
        check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{arm}, {case}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _timed(step: Callable[[], object], tokens: int) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    median = statistics.median(seconds)
    return {"seconds": median, "peak_mib": peak, "tokens_s": tokens / median}


def _ours(case: str) -> dict[str, float]:
    settings = TrainingSettings(
        loss="truncated",
        kl_coefficient=0.0,
        mismatch_samples=0,
        divergence_bound=math.inf,
        step_bound=math.inf,
        num_threads=torch.get_num_threads(),
    )
    learner, items = Learner(WholeModel(model(), settings), settings), samples(case)
    return _timed(lambda: learner.step(items, [1.0] * len(items), {}), num_tokens(items))


def _trl_row_by_row(case: str) -> dict[str, float]:
    """Its least padding: one row in each forward pass. A GPU would idle; on two cores it is trl's fastest."""
    return _trl(case, rows=1)


def _trl(case: str, rows: int = ROWS_OF_TRL) -> dict[str, float]:
    from benchmarks.trainer.trl_peer import stepper  # noqa: PLC0415 trl is large, and must not count in our memory

    items = samples(case)
    with tempfile.TemporaryDirectory() as folder:
        return _timed(stepper(model(), items, Path(folder), rows=rows, bound=BOUND), num_tokens(items))


if __name__ == "__main__":
    print(json.dumps({"millrace": _ours, "trl": _trl, "trl_row_by_row": _trl_row_by_row}[sys.argv[1]](sys.argv[2])))
