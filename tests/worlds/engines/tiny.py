"""A tiny policy in a few versions, a store of them, and an engine over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contracts.assignments import Assignment
from policy.weights import copy_tensors, tensors_of
from services.engine.active_requests import TokenChunk
from services.engine.engine import Engine
from services.engine.repository import SwapRecord
from services.engine.sampling import GenerateRequest, SamplingParams
from services.engine.settings import EngineSettings
from services.engine.staging import VersionSource
from tests.models import built_once, llama_config
from tests.tolerances import network_tolerance
from tests.unit.services.serving import PATIENCE_SECONDS
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from weights.tensors import Tensors

VOCABULARY = 64
CONTEXT = 512


@built_once
def tiny_model(seed: int = 0) -> Any:
    """Random Llama, 2 layers of 32; weights large enough that versions disagree."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config()).eval().requires_grad_(requires_grad=False)


def tiny_config() -> LlamaConfig:
    return llama_config(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, initializer_range=0.3)


def rounding(temperature: float = 1.0) -> float:
    """How far the log-probs of a tiny model may lie apart when both are right."""
    return network_tolerance(tiny_config(), temperature)


def make_store(num_versions: int = 3) -> StoreInMemory:
    """Versions 1 to `num_versions`, each other weights."""
    store = StoreInMemory()
    for number in range(1, num_versions + 1):
        store.add(number, tensors_of(tiny_model(number)), parent=number - 1 or None)
    return store


def moved(tensors: Tensors, seed: int) -> Tensors:
    """One weight in fifty one unit in the last place away."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, tensor in tensors.items():
        words = tensor.data.view("<u2").copy()
        words[draw.random(words.size) < 0.02] ^= 1
        found[name] = tensor._replace(data=words.view(np.uint8))
    return found


def make_engine(  # noqa: PLR0917 tests say what differs
    store: VersionSource,
    on_swap: Callable[[SwapRecord], None] = lambda _record: None,
    on_gave_up: Callable[[], None] = lambda: None,
    make_model: Callable[[], Any] = tiny_model,
    run: str | None = None,
    settings: EngineSettings | None = None,
    **named: Any,
) -> Engine:
    return Engine(
        policy=POLICY,
        settings=settings or EngineSettings(max_batch_tokens=256, cache_tokens=8192),
        store=store,
        make_model=make_model,
        on_swap=on_swap,
        on_gave_up=on_gave_up,
        run=run,
        **named,
    )


def reference(tensors: Tensors) -> Any:
    """A plain model of a version."""
    model = tiny_model()
    copy_tensors(model, tensors)
    return model


def logprobs_of(model: Any, prompt: list[int], answer: list[int], temperature: float = 1.0) -> list[float]:
    """Log-probs of an answer by one plain forward."""
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    chosen = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(answer)[:, None])
    return [float(value) for value in chosen[:, 0]]


def ask(prompt: list[int], **fields: Any) -> GenerateRequest:
    """A request that stops only at its length; `fields` of the request or of its sampling parameters."""
    head = {name: fields.pop(name) for name in ("model", "stream", "priority", "cache_salt") if name in fields}
    params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **fields})
    return GenerateRequest(**{"model": POLICY, **head}, token_ids=prompt, sampling_params=params)


async def complete(engine: Engine, request: GenerateRequest) -> TokenChunk:
    """The whole answer, through the engine without HTTP."""
    active = await engine.resolve(request.model).open(request)
    parts = [chunk async for chunk in active.chunks()]
    return TokenChunk(
        token_ids=[token for part in parts for token in part.token_ids],
        logprobs=[logprob for part in parts for logprob in part.logprobs],
        spans=[span for part in parts for span in part.spans],
        finish_reason=parts[-1].finish_reason,
        num_cached=parts[0].num_cached,
        top_logprobs=[top for part in parts for top in part.top_logprobs],
    )


def assigned(version: int | None, root: str | None = None, run: str | None = None) -> Assignment:
    """What an engine reads of an arm that has this version."""
    return Assignment(POLICY, "an arm", version, 1.0, 1, root, run)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 the generation thread sets no asyncio event
            await asyncio.sleep(0.005)
