"""The engine on a device: what it samples, what it swaps, and what it holds afterwards."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import pytest
import torch

from policy.weights import copy_tensors, tensors_of
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from tests.models import KINDS
from tests.unit.services.engine.sampling_reference import distributions, plain_logits
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.policies import (
    PROMPTS,
    TOKENIZER,
    check_mixed_batch,
    policy_store,
    request,
    sharp_model,
)
from tests.worlds.engines.tiny import complete, make_engine, until
from weights.tensors import root_of

SETTINGS = EngineSettings(max_batch_tokens=128, cache_tokens=1024, page_size=16)


def engine_on(device: str, kind: str, store: StoreInMemory, dtype: torch.dtype) -> Engine:
    """As the engine's process makes it, with version 1 live."""
    engine = make_engine(
        store, make_model=lambda: sharp_model(kind).to(device, dtype), settings=SETTINGS, tokenizer=TOKENIZER
    )
    engine.update("live", 1)
    return engine


def served(store: StoreInMemory, version: int, kind: str, device: str, dtype: torch.dtype) -> Any:
    """A plain model with the weights that are served, which were rounded to bfloat16."""
    model = sharp_model(kind)
    copy_tensors(model, store.weights[version])
    return model.to(device, dtype)


@pytest.mark.parametrize("kind", KINDS)
async def test_float32_answers_have_the_log_probs_of_a_plain_forward(device: str, kind: str) -> None:
    store = policy_store(kind, 1)
    engine = engine_on(device, kind, store, torch.float32)
    await check_mixed_batch(engine, served(store, 1, kind, device, torch.float32))
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_bfloat16_answers_lie_around_the_log_probs_of_float32(device: str, kind: str) -> None:
    """No bound of rounding is of use here: errors of half a percent, through layers. They have no direction, and are small."""
    store = policy_store(kind, 1)
    engine = engine_on(device, kind, store, torch.bfloat16)
    asked = [request(prompt, seed=number, max_tokens=60) for number, prompt in enumerate(PROMPTS)]
    answers = await asyncio.gather(*(complete(engine, one) for one in asked))
    model, errors = served(store, 1, kind, "cpu", torch.float32), []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        made = answer.token_ids
        rows = distributions(plain_logits(model, prompt, made), prompt, made, {})
        errors += [found - row[token] for found, row, token in zip(answer.logprobs, rows, made, strict=True)]
    assert abs(statistics.mean(errors)) < 0.02
    assert 0 < statistics.mean(map(abs, errors)) < 0.1
    engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_a_swap_in_an_answer_names_both_versions_and_leaves_the_published_bits(
    device: str, dtype: torch.dtype
) -> None:
    store = policy_store("qwen3", 2)
    engine = engine_on(device, "qwen3", store, dtype)
    active = engine.resolve(POLICY).submit(request(list(range(3, 30)), max_tokens=300))
    await until(lambda: len(active.token_times) >= 20)
    record = await asyncio.to_thread(engine.update, "live", 2)
    answer = await anext(aiter(active.chunks()))
    assert [span.version for span in answer.spans] == [1, 2]
    assert record is not None
    for version in (2, 1):
        engine.update("live", version)
        held = engine.arms["live"].model
        assert held.device.type == torch.device(device).type
        assert root_of(tensors_of(held)) == root_of(store.weights[version])
    engine.close()
