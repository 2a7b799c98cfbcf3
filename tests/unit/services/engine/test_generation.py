from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch

from contracts.errors import EngineRestarted, InvalidRequest, Unavailable, UnknownModel, VersionNotResident
from contracts.sampling import Span
from services.engine.engine import Engine
from services.engine.manager import PagedRunner
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import ask, complete, logprobs_of, make_engine, reference, rounding, until

PROMPT = [5, 9, 33, 12]


@pytest.fixture(scope="module")
def engine(store: StoreInMemory) -> Iterator[Engine]:
    """Version 1 is live, for all tests of this file."""
    engine = make_engine(store)
    engine.update("live", 1)
    yield engine
    engine.close()


async def test_greedy_is_the_argmax_of_a_plain_forward(engine: Engine, store: StoreInMemory) -> None:
    answer = await complete(engine, ask(PROMPT, temperature=0, max_tokens=12))
    model, ids = reference(store.weights[1]), list(PROMPT)
    for _ in range(12):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answer.token_ids == ids[len(PROMPT) :]
    assert answer.logprobs == [0.0] * 12
    assert answer.spans == [Span(0, 1)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_equal_a_recompute(engine: Engine, store: StoreInMemory, temperature: float) -> None:
    answer = await complete(engine, ask(PROMPT, temperature=temperature, max_tokens=60))
    expected = logprobs_of(reference(store.weights[1]), PROMPT, answer.token_ids, temperature)
    assert answer.logprobs == pytest.approx(expected, abs=rounding(temperature))
    assert len(set(answer.token_ids)) > 5, "this was not sampled"


async def test_truncated_logprobs_are_of_the_truncated_distribution(engine: Engine, store: StoreInMemory) -> None:
    answer = await complete(engine, ask(PROMPT, top_k=2, max_tokens=1))
    logits = reference(store.weights[1])(torch.tensor([PROMPT])).logits[0, -1]
    best = logits.topk(2)
    expected = dict(zip(best.indices.tolist(), best.values.log_softmax(-1).tolist(), strict=True))
    assert answer.logprobs == pytest.approx([expected[answer.token_ids[0]]], abs=rounding())


async def test_min_p_leaves_out_what_is_less_likely_than_its_share_of_the_best(
    engine: Engine, store: StoreInMemory
) -> None:
    logits = reference(store.weights[1])(torch.tensor([PROMPT])).logits[0, -1]
    probabilities = logits.softmax(-1)
    fifth, sixth = (probabilities.topk(6).values[4:] / probabilities.max()).tolist()
    min_p = (fifth + sixth) / 2
    kept = probabilities >= min_p * probabilities.max()
    assert int(kept.sum()) == 5
    expected = (probabilities * kept / (probabilities * kept).sum()).log()
    for seed in range(8):
        answer = await complete(engine, ask(PROMPT, min_p=min_p, max_tokens=1, seed=seed))
        assert kept[answer.token_ids[0]]
        assert answer.logprobs == pytest.approx([float(expected[answer.token_ids[0]])], abs=rounding())
    beside = await asyncio.gather(complete(engine, ask(PROMPT, min_p=1.0, max_tokens=4)), complete(engine, ask([7, 8])))
    assert beside[0].logprobs == [0.0] * 4


async def test_sixteen_at_once_do_not_mix(engine: Engine, store: StoreInMemory) -> None:
    prompts = [[number + 1, 7, 2 * number + 3] for number in range(16)]
    requests = [ask(prompt, max_tokens=20, temperature=(1.0, 0.5)[prompt[0] % 2]) for prompt in prompts]
    answers = await asyncio.gather(*(complete(engine, request) for request in requests))
    model = reference(store.weights[1])
    for request, answer in zip(requests, answers, strict=True):
        expected = logprobs_of(model, request.token_ids, answer.token_ids, request.sampling_params.temperature)
        assert answer.logprobs == pytest.approx(expected, abs=rounding(request.sampling_params.temperature))
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == 20


async def test_it_stops_at_a_stop_token_and_at_the_models_own_end(engine: Engine) -> None:
    free = await complete(engine, ask(PROMPT, temperature=0, max_tokens=12))
    stop = free.token_ids[3]
    stopped = await complete(engine, ask(PROMPT, temperature=0, max_tokens=12, stop_token_ids=[stop]))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"
    endless = [ask(PROMPT, temperature=20, max_tokens=120, ignore_eos=False) for _ in range(12)]
    answers = await asyncio.gather(*(complete(engine, one) for one in endless))
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    assert ended, "nearly uniform over 64 tokens, 12 times 120 draws"
    for answer in ended:
        assert answer.token_ids.index(2) == len(answer.token_ids) - 1  # what LlamaConfig calls its end of sequence


async def test_a_refused_request_harms_nobody(engine: Engine) -> None:
    restarts = engine.resolve(POLICY).restarts
    beside = asyncio.create_task(complete(engine, ask(PROMPT, max_tokens=100)))
    for bad in (
        ask(PROMPT, temperature=-1.0),
        ask(PROMPT, temperature=float("nan")),
        ask(PROMPT, top_p=0.0),
        ask([64]),
    ):
        with pytest.raises(InvalidRequest):
            await complete(engine, bad)
    assert len((await beside).token_ids) == 100
    assert engine.resolve(POLICY).serving
    assert engine.resolve(POLICY).restarts == restarts


async def test_the_smallest_temperature_is_survived(engine: Engine) -> None:
    answer = await complete(engine, ask(PROMPT, temperature=0.001))
    assert answer.logprobs == pytest.approx([0.0] * 8, abs=1e-4)


async def test_cancel_frees_the_slot(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    ticket = arm.submit(ask(PROMPT, max_tokens=500, stream=True))
    await anext(aiter(ticket.chunks()))
    assert isinstance(arm._runner, PagedRunner)
    processor = arm._runner.manager.batch_processor
    assert list(processor.scheduler.active_requests) == [ticket.request_id]
    arm.cancel(ticket)
    assert arm.num_in_flight == 0
    await complete(engine, ask(PROMPT, max_tokens=1))  # a step later
    assert not processor.scheduler.active_requests
    assert processor.cache.compute_free_capacity() == 1.0


async def test_a_fatal_error_restarts_the_manager(engine: Engine, store: StoreInMemory) -> None:
    arm = engine.resolve(POLICY)
    restarts = arm.restarts
    lost = arm.submit(ask(PROMPT, max_tokens=500, stream=True))
    await anext(aiter(lost.chunks()))
    assert isinstance(arm._runner, PagedRunner)
    arm._runner.manager.model = None  # the next step fails, as any bug inside it would
    with pytest.raises(EngineRestarted) as caught:
        async for _ in lost.chunks():
            pass
    assert (caught.value.status, caught.value.code) == (503, "engine_restarted")
    await until(lambda: arm.restarts == restarts + 1 and arm.serving)
    answer = await complete(engine, ask(PROMPT))
    assert answer.logprobs == pytest.approx(
        logprobs_of(reference(store.weights[1]), PROMPT, answer.token_ids), abs=rounding()
    )
    status, facts = engine.health()
    assert (status, facts["restarts"]) == ("serving", restarts + 1)


async def test_weights_that_kill_every_step_end_in_giving_up_until_the_next_version(store: StoreInMemory) -> None:
    gave_up: list[bool] = []
    engine = make_engine(store, on_gave_up=lambda: gave_up.append(True))
    engine.update("live", 1)
    arm = engine.resolve(POLICY)
    next(arm.model.parameters()).fill_(float("nan"))  # past every check, as an overflow at run time would be
    for number in range(1, 6):
        with pytest.raises(EngineRestarted):
            await complete(engine, ask(PROMPT))
        await until(lambda number=number: arm.restarts == number and (arm.serving or arm.gave_up))  # type: ignore[misc]
    assert gave_up == [True]
    assert engine.health()[0] == "failed"
    with pytest.raises(Unavailable):
        arm.submit(ask(PROMPT))
    assert engine.update("live", 2) is None
    assert store.staged[-1] == (2, None), "weights that are not what they should be are no base"
    assert engine.health()[0] == "serving"
    assert (await complete(engine, ask(PROMPT))).spans == [Span(0, 2)]
    engine.close()


async def test_versions_are_found_by_name(engine: Engine) -> None:
    engine.update("candidate", 2)
    assert engine.resolve(POLICY).version == 1
    assert engine.resolve(f"{POLICY}@v1").name == "live"
    assert engine.resolve(f"{POLICY}@v2").name == "candidate"
    assert (await complete(engine, ask(PROMPT, model=f"{POLICY}@v2"))).spans == [Span(0, 2)]
    with pytest.raises(VersionNotResident) as caught:
        engine.resolve(f"{POLICY}@v3")
    assert (caught.value.status, caught.value.code) == (404, "version_not_resident")
    for name in ("other", f"{POLICY}@vx", f"{POLICY}@v"):
        with pytest.raises(UnknownModel):
            engine.resolve(name)
