"""The engine's record of the experts that computed each token."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from policy.routing import ExpertRecorder
from policy.weights import copy_tensors, tensors_of
from services.engine.engine import Engine
from services.engine.experts import MAX_RECORDS, ExpertRecords, observer_of
from services.engine.runners import ForwardPart
from services.engine.settings import EngineSettings
from tests.models import tiny_model
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import ask, make_engine, until

LAYERS, CHOSEN, EXPERTS = 2, 2, 4


def mixture(seed: int) -> Any:
    """Weights large enough that each token's experts depend on the tokens before it."""
    model = tiny_model("qwen3_moe", seed=seed).requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    copy_tensors(model, tensors_of(model))  # a published version has bfloat16 weights
    return model


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A mixture whose steps take 16 tokens, so that longer prompts take several."""
    store = StoreInMemory()
    store.add(1, tensors_of(mixture(1)), parent=None)
    store.add(2, tensors_of(mixture(2)), parent=1)
    settings = EngineSettings(max_batch_tokens=16, cache_tokens=1024)
    engine = make_engine(store, make_model=lambda: mixture(0), settings=settings)
    engine.update("live", 1)
    yield engine
    engine.close()


async def answer_of(engine: Engine, prompt: list[int], **fields: Any) -> tuple[list[int], bytes]:
    active = await engine.resolve(POLICY).open(ask(prompt, **fields))
    parts = [chunk async for chunk in active.chunks()]
    assert not any(part.routed_experts for part in parts[:-1])
    return [*prompt, *(token for part in parts for token in part.token_ids)], parts[-1].routed_experts


def plainly_chosen(model: Any, token_ids: list[int]) -> np.ndarray:
    """The experts of all tokens but the last, by one plain forward [T - 1, M, K]."""
    recorder = ExpertRecorder(model)
    model(torch.tensor([token_ids[:-1]]))
    chosen = recorder.take()
    recorder.close()
    assert chosen is not None
    return np.sort(chosen.numpy())


def unpacked(file: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(file), allow_pickle=False)
    return array


async def test_every_token_of_prompt_and_answer_has_the_experts_of_a_plain_forward(engine: Engine) -> None:
    """Prompts of 1 to 40 tokens at once: prefilled in several steps, beside tokens of other requests."""
    random = np.random.default_rng(5)
    prompts = [random.integers(2, 700, length).tolist() for length in (1, 3, 40, 17, 29)]
    answers = await asyncio.gather(*(answer_of(engine, prompt, max_tokens=9, stream=True) for prompt in prompts))
    model = mixture(1)
    for prompt, (token_ids, file) in zip(prompts, answers, strict=True):
        experts = unpacked(file)
        assert experts.shape == (len(prompt) + 9 - 1, LAYERS, CHOSEN)
        assert experts.dtype == np.uint8
        np.testing.assert_array_equal(np.sort(experts), plainly_chosen(model, token_ids))
    assert len(np.unique(np.concatenate([unpacked(file) for _, file in answers]), axis=0)) > EXPERTS, "no variety"


@pytest.mark.slow
async def test_a_swap_between_two_tokens_leaves_each_token_the_experts_that_computed_it(engine: Engine) -> None:
    active = await engine.resolve(POLICY).open(ask([7, 9, 11], max_tokens=150, stream=True))
    parts = []
    async for chunk in active.chunks():
        parts.append(chunk)
        if len(parts) == 10:
            await asyncio.to_thread(engine.update, "live", 2)
    await asyncio.to_thread(engine.update, "live", 1)
    token_ids = [7, 9, 11, *(token for part in parts for token in part.token_ids)]
    spans = [span for part in parts for span in part.spans]
    experts = np.sort(unpacked(parts[-1].routed_experts))

    assert [span.version for span in spans] == [1, 2]
    # The token at place 3 + start was the first that version 2 sampled, so it and what follows went through version 2.
    by_first = 3 + spans[1].start - 1
    np.testing.assert_array_equal(experts[:by_first], plainly_chosen(mixture(1), token_ids)[:by_first])
    assert (experts[by_first:] != plainly_chosen(mixture(1), token_ids)[by_first:]).any()


async def test_a_cancelled_request_leaves_nothing_behind(engine: Engine) -> None:
    records = engine.arms["live"]._observer
    assert isinstance(records, ExpertRecords)
    active = await engine.resolve(POLICY).open(ask([7, 9, 11], max_tokens=400, stream=True))
    await anext(aiter(active.chunks()))
    engine.arms["live"].cancel(active)
    await until(lambda: not records._records)


def test_a_dense_model_has_nothing_to_record(engine: Engine) -> None:
    assert observer_of(tiny_model("llama")) is None
    assert "experts" in engine.abilities


class Computing:
    """A mixture whose forwards are told by hand."""

    def __init__(self) -> None:
        self.model = mixture(1)
        self.records = ExpertRecords(self.model)

    def forward(self, token_ids: list[int], *parts: tuple[str, int, int]) -> None:
        self.records.before([ForwardPart(*part) for part in parts])
        self.model(torch.tensor([token_ids]))
        self.records.after()


IDS = [5, 6, 7, 8, 9, 10]


def test_a_position_that_is_computed_again_with_the_same_experts_keeps_its_record() -> None:
    computing = Computing()
    computing.forward(IDS[:4], ("a", 0, 4))
    computing.forward(IDS, ("a", 0, 6))

    np.testing.assert_array_equal(
        np.sort(unpacked(computing.records.finish("a", 7))), plainly_chosen(computing.model, [*IDS, 0])
    )


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([(IDS, ("a", 0, 6)), ([50, 60, 70, 80, 90, 100], ("a", 0, 6))], "other experts than before"),
        ([(IDS[:2], ("a", 0, 2)), (IDS[:2], ("a", 4, 2))], "positions 2 and 3 are missing"),
        ([(IDS[:5], ("a", 0, 5))], "the last position is missing"),
        ([(IDS, ("a", 0, 5))], "the parts do not say whose the sixth token is"),
        ([(IDS[:2], ("a", 4, 2))], "its beginning was not seen"),
    ],
)
def test_a_record_that_would_not_be_right_is_none(parts: list[Any], what: str) -> None:
    computing = Computing()
    for token_ids, part in parts:
        computing.forward(token_ids, part)
    assert computing.records.finish("a", 7) == b"", what


def test_a_forward_that_failed_leaves_nothing_for_the_next() -> None:
    computing = Computing()
    computing.records.before([ForwardPart("a", 0, 6)])
    computing.model(torch.tensor([IDS]))  # and then it died, so `after` was never called
    computing.records.before([ForwardPart("b", 0, 2)])
    computing.records.after()
    assert computing.records.finish("b", 3) == b""


def test_forgotten_requests_are_not_kept_for_ever() -> None:
    computing = Computing()
    for number in range(0, MAX_RECORDS + 512, 512):
        computing.forward([5] * 512, *((f"r{number + index}", 0, 1) for index in range(512)))
    assert len(computing.records._records) == MAX_RECORDS
    assert computing.records.finish("r0", 2) == b""
