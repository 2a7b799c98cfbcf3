"""The trainer's benchmarks that need a large machine run whole on a small one; and a very long row fits its token budget."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.paths import ROOT
from benchmarks.trainer.throughput import sample
from pipelines.training.learner import Learner
from pipelines.training.settings import TrainingSettings
from tests.models import tiny_model

pytestmark = pytest.mark.slow


def printed(module: str, *arguments: str) -> Any:
    """The JSON that a benchmark prints last. In a process of its own: fake tensors and trl leave traces in theirs."""
    command = [sys.executable, "-m", f"benchmarks.trainer.{module}", *arguments]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_gpu_table_is_filled_without_a_gpu_too() -> None:
    report = printed("gpu", "--device", "cpu", "--tiny", "--steps", "1")
    assert report["ratio_vs_trl"] > 0
    for figure in ("seconds", "tokens_s", "mfu", "mfu_wall_clock", "peak_gib"):
        assert report["millrace"][figure] > 0, figure


def test_resident_state_takes_18_bytes_per_parameter() -> None:
    held, again = printed("sizes", "--shape", "tiny", "--tokens", "4096")
    assert held["resident_bytes_per_parameter"] == pytest.approx(18, abs=0.01)
    assert again["activations"] < held["activations"]


def test_a_row_of_32_k_tokens_is_one_step() -> None:
    """Far beyond the token budget: its layers run again, its logits come in pieces, its attention has no mask."""
    model = tiny_model("qwen3", max_position_embeddings=33_000)
    learner = Learner(
        model, TrainingSettings(divergence_bound=math.inf, step_bound=math.inf, mismatch_samples=0, max_tokens=8192)
    )
    random = np.random.default_rng(1)
    item = sample(random, [], 100, 100)
    [part] = item.segments
    ids = random.integers(0, 704, 32_768).astype("<i4").tobytes()
    mask = bytes([0] * 16_384 + [1] * 16_384)
    log_probs = np.full(32_768, -math.log(704), "<f4").tobytes()

    part = msgspec.structs.replace(part, token_ids=ids, loss_mask=mask, logprobs=log_probs)
    before = model.lm_head.weight.detach().clone()
    result = learner.step([msgspec.structs.replace(item, segments=(part,))], [1.0], {})
    assert not result.skipped
    assert learner.budget.current == 8192
    assert not torch.equal(model.lm_head.weight, before)
