"""Our own engine on a card: tokens a second, for whoever tries it out. Users of a GPU are served by vLLM."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.arms import MillraceArm
from benchmarks.gpu.machine import memory, model_of
from policy.weights import tensors_of
from services.engine.settings import EngineSettings
from tests.worlds.engines.own import POLICY, Job, open_engine
from tests.worlds.versions import publish_next
from weights.stores.opening import open_store_at

IN_FLIGHT = (1, 32)
NUM_TOKENS, PROMPT = 32, 64


def speed(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """A random policy of Qwen3's 0.6 B in bfloat16, 32 tokens each, with 1 and with 32 in flight."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    began = time.perf_counter()
    model = model_of("tiny" if rehearse else "0.6B", device, torch.bfloat16)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish_next(open_store_at(folder), POLICY, 0, base=None, target=tensors_of(model))
        yield {"publish_in_full_seconds": time.perf_counter() - began}
        began = time.perf_counter()
        with open_engine(folder, lambda: model, EngineSettings(slots=("live",))) as engine:
            yield {"load_arm_seconds": time.perf_counter() - began}
            arm = MillraceArm(engine)
            arm.run(_jobs(1, 2), 1)
            for number in IN_FLIGHT:
                rates = [arm.run(_jobs(number, NUM_TOKENS), number).by_clock for _ in range(2)]
                yield {f"tokens_s_{number}": max(rates), f"step_ms_{number}": 1000 * number / max(rates)}
            yield memory(device)


def _jobs(number: int, num_tokens: int) -> list[Job]:
    return [Job(list(range(10 + each, 10 + each + PROMPT)), num_tokens) for each in range(number)]
