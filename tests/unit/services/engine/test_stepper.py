"""The stepped runner over its life: cancel, pause, swap, death, bounds. Log-probs: see test_architectures.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from contracts.errors import EngineRestarted
from policy.weights import copy_tensors
from services.engine.arm import EngineArm
from services.engine.engine import Engine
from services.engine.runners import ForwardObserver, ForwardPart, cache_argument
from services.engine.settings import EngineSettings
from services.engine.stepper import SteppedRunner
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.policies import (
    TOKENIZER,
    check,
    policy_store,
    request,
    rounding,
    sharp_model,
)
from tests.worlds.engines.tiny import complete, make_engine, until

PROMPT = [2, 40, 41, 300]


class Observer(ForwardObserver):
    """Keeps the parts of each forward, and checks that hooks would see as many tokens."""

    def __init__(self, model: Any) -> None:
        self.forwards: list[list[ForwardPart]] = []
        self.num_seen = 0
        model.get_output_embeddings().register_forward_pre_hook(self._seen)
        model.get_input_embeddings().register_forward_pre_hook(self._seen)

    def _seen(self, _module: Any, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].dim() == 2:
            self.num_seen = given[0].numel()

    def before(self, parts: Sequence[ForwardPart]) -> None:
        self.forwards.append(list(parts))

    def after(self) -> None:
        assert self.num_seen == sum(part.length for part in self.forwards[-1])


@pytest.fixture(scope="module", params=[pytest.param("lfm2", marks=pytest.mark.slow), "mamba2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def store(kind: str) -> StoreInMemory:
    return policy_store(kind, 2)


@pytest.fixture
def engine(kind: str, store: StoreInMemory) -> Iterator[Engine]:
    settings = EngineSettings(max_batch_tokens=64, cache_tokens=1024, max_in_flight=8)
    make_model = lambda: sharp_model(kind)  # noqa: E731
    engine = make_engine(store, make_model=make_model, settings=settings, tokenizer=TOKENIZER, make_observer=Observer)
    engine.update("live", 1)
    yield engine
    engine.close()


def runner_of(arm: EngineArm) -> SteppedRunner:
    assert isinstance(arm._runner, SteppedRunner)
    return arm._runner


def served(kind: str, store: StoreInMemory, version: int) -> Any:
    model = sharp_model(kind)
    copy_tensors(model, store.weights[version])
    return model


async def test_cancelled_requests_leave_the_batch_and_disturb_nobody(
    engine: Engine, kind: str, store: StoreInMemory
) -> None:
    arm = engine.resolve(POLICY)
    asked = [request([number, *PROMPT], max_tokens=300, seed=1, stream=True) for number in range(3, 6)]
    leaving = [arm.submit(one) for one in asked]
    kept = request([9] * 30, max_tokens=60, seed=2)
    staying = asyncio.create_task(complete(engine, kept))
    for active in leaving:
        await anext(aiter(active.chunks()))
    for active in leaving:
        arm.cancel(active)
    check(served(kind, store, 1), kept, {}, await staying)
    assert arm.num_in_flight == 0
    await until(lambda: runner_of(arm).num_sequences == 0)
    batch = runner_of(arm)._batch
    assert batch is not None
    assert (batch.cache, batch.lengths) == (None, [])


async def test_a_swap_keeps_the_state_of_what_is_in_flight(engine: Engine, kind: str, store: StoreInMemory) -> None:
    """The tokens before the boundary are of the old version; after it, of the new one over the state that the old one left."""
    arm = engine.resolve(POLICY)
    active = arm.submit(request(PROMPT, max_tokens=250))
    beside = arm.submit(request([7, 8], max_tokens=250))
    await until(lambda: len(active.token_times) >= 10)
    await asyncio.to_thread(engine.update, "live", 2)
    chunk = await anext(aiter(active.chunks()))
    await anext(aiter(beside.chunks()))
    assert [span.version for span in chunk.spans] == [1, 2]
    boundary = chunk.spans[1].start
    assert 10 <= boundary < 250
    model, made = served(kind, store, 1), chunk.token_ids
    name = cache_argument(model)
    assert name is not None
    with torch.no_grad():
        begun = model(torch.tensor([PROMPT + made[: boundary - 1]]), use_cache=True)
        copy_tensors(model, store.weights[2])
        rest = model(torch.tensor([[made[boundary - 1]]]), **{name: begun[name]}, use_cache=True)
    rows = torch.cat([begun.logits[0, len(PROMPT) - 1 :], rest.logits[0]]).log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(rows, made, strict=False)]
    assert chunk.logprobs[: boundary + 1] == pytest.approx(expected, abs=rounding(model, 300))
    check(served(kind, store, 2), request(PROMPT), {}, await complete(engine, request(PROMPT)))


async def test_a_pause_lies_between_steps_and_keeps_requests(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    active = arm.submit(request(PROMPT, max_tokens=100))
    await until(lambda: len(active.token_times) >= 5)
    await asyncio.to_thread(engine.pause)
    count = len(active.token_times)
    late = asyncio.create_task(complete(engine, request(PROMPT)))
    await asyncio.sleep(0.05)
    assert (len(active.token_times), late.done()) == (count, False)
    await asyncio.to_thread(engine.resume)
    assert len((await anext(aiter(active.chunks()))).token_ids) == 100
    await late


async def test_a_fatal_error_restarts_the_runner(engine: Engine, kind: str, store: StoreInMemory) -> None:
    arm = engine.resolve(POLICY)
    lost = arm.submit(request(PROMPT, max_tokens=500, stream=True))
    await anext(aiter(lost.chunks()))
    runner_of(arm).model = None  # the next step fails, as any bug inside it would
    with pytest.raises(EngineRestarted):
        async for _ in lost.chunks():
            pass
    await until(lambda: arm.restarts == 1 and arm.serving)
    asked = request(PROMPT, seed=1)
    check(served(kind, store, 1), asked, {}, await complete(engine, asked))
    assert engine.health()[0] == "serving"


@pytest.mark.slow
async def test_more_requests_than_the_cache_holds_wait_for_their_turn(
    engine: Engine, kind: str, store: StoreInMemory
) -> None:
    asked = [request([number, *PROMPT], max_tokens=200, seed=number) for number in range(3, 9)]
    answers = await asyncio.gather(*(complete(engine, one) for one in asked))
    observer = engine.resolve(POLICY)._observer
    assert isinstance(observer, Observer)
    assert max(map(len, observer.forwards)) == 1024 // 205
    for one, answer in zip(asked, answers, strict=True):
        check(served(kind, store, 1), one, {}, answer)


async def test_an_observer_is_told_which_tokens_each_forward_computes(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    active = [arm.submit(request([number, *PROMPT], max_tokens=6)) for number in (3, 4)]
    answers = [await anext(aiter(one.chunks())) for one in active]
    observer = arm._observer
    assert isinstance(observer, Observer)
    for one, answer in zip(active, answers, strict=True):
        parts = [part for parts in observer.forwards for part in parts if part.request_id == one.request_id]
        assert parts[0] == ForwardPart(one.request_id, 0, 5)
        assert parts[1:] == [ForwardPart(one.request_id, 5 + place, 1) for place in range(len(answer.token_ids) - 1)], (
            "the last token is never computed"
        )
