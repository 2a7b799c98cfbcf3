"""Prompts that begin with kept tokens: nothing changes but the work, and nobody meets what another one computed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from contracts.errors import EngineRestarted, InvalidRequest
from contracts.sampling import Span
from policy.weights import tensors_of
from services.engine.engine import Engine
from services.engine.manager import PagedRunner
from services.engine.settings import EngineSettings
from tests import models
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import ask, complete, logprobs_of, make_engine, reference, rounding, until

PROMPT = [(7 * number + number // 9) % 60 + 3 for number in range(100)]
TURN = [11, 5, 44, 8, 23, 9]
OFF = EngineSettings(max_batch_tokens=256, cache_tokens=8192, prefix_cache_bytes=0)


@pytest.fixture
def plain(store: StoreInMemory) -> Iterator[Engine]:
    """Version 1 is live, and nothing is kept."""
    engine = make_engine(store, settings=OFF)
    engine.update("live", 1)
    yield engine
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.7, "seed": 5}, {"top_k": 5, "seed": 9}])
async def test_a_session_with_kept_prefixes_is_the_session_without(
    engine: Engine, plain: Engine, store: StoreInMemory, fields: dict[str, Any]
) -> None:
    prompt, model = list(PROMPT), reference(store.weights[1])
    for turn in range(8):
        request = ask(prompt, cache_salt="one", max_tokens=12, **fields)
        answer, without = await complete(engine, request), await complete(plain, request)
        assert answer.token_ids == without.token_ids
        assert answer.logprobs == pytest.approx(without.logprobs, abs=rounding(fields.get("temperature") or 1.0))
        if "top_k" not in fields and fields["temperature"]:
            expected = logprobs_of(model, prompt, answer.token_ids, fields["temperature"])
            assert answer.logprobs == pytest.approx(expected, abs=rounding(fields["temperature"]))
        # All that was computed before, the last token of the answer not among it, in whole blocks.
        assert answer.num_cached == (0 if turn == 0 else (len(prompt) - len(TURN) - 1) // 16 * 16)
        assert without.num_cached == 0
        prompt += [*answer.token_ids, *TURN]


async def test_another_scope_or_none_shares_nothing(engine: Engine) -> None:
    for salt in ("one", None, "two"):
        assert (await complete(engine, ask(PROMPT, cache_salt=salt))).num_cached == 0
    assert (await complete(engine, ask(PROMPT))).num_cached == 0, "a request without a scope keeps nothing either"
    for salt in ("one", "two"):
        assert (await complete(engine, ask(PROMPT, cache_salt=salt))).num_cached == 96


async def test_a_swap_drops_what_its_arm_kept_and_nothing_else(engine: Engine, store: StoreInMemory) -> None:
    engine.update("candidate", 3)
    asked = {"live": ask(PROMPT, cache_salt="one"), "candidate": ask(PROMPT, cache_salt="one", model=f"{POLICY}@v3")}
    for request in asked.values():
        assert (await complete(engine, request)).num_cached == 0
    engine.update("live", 2)
    answer = await complete(engine, asked["live"])
    assert (answer.num_cached, answer.spans) == (0, [Span(0, 2)])
    expected = logprobs_of(reference(store.weights[2]), PROMPT, answer.token_ids)
    assert answer.logprobs == pytest.approx(expected, abs=rounding())
    assert (await complete(engine, asked["candidate"])).num_cached == 96
    engine.update("live", 1)
    assert (await complete(engine, asked["live"])).num_cached == 0, "also on the way back"


@pytest.mark.parametrize("num_kept", [pytest.param(0, marks=pytest.mark.slow), 100])
async def test_an_answer_of_two_versions_is_not_kept(engine: Engine, store: StoreInMemory, num_kept: int) -> None:
    """It began on nothing, or on what the old version had kept; the next version must compute it all."""
    if num_kept:
        await complete(engine, ask(PROMPT, cache_salt="one"))
    active = engine.resolve(POLICY).submit(ask(PROMPT, cache_salt="one", max_tokens=300))
    await until(lambda: len(active.token_times) >= 10)
    await asyncio.to_thread(engine.update, "live", 2)
    chunk = await anext(aiter(active.chunks()))
    assert [span.version for span in chunk.spans] == [1, 2]
    prompt = [*PROMPT, *chunk.token_ids, *TURN]
    answer = await complete(engine, ask(prompt, cache_salt="one"))
    assert answer.num_cached == 0
    expected = logprobs_of(reference(store.weights[2]), prompt, answer.token_ids)
    assert answer.logprobs == pytest.approx(expected, abs=rounding())
    assert (await complete(engine, ask(prompt, cache_salt="one"))).num_cached == len(prompt) // 16 * 16 - 16 * (
        len(prompt) % 16 == 0
    )


async def test_sessions_that_share_a_beginning_do_not_mix(engine: Engine, store: StoreInMemory) -> None:
    await complete(engine, ask(PROMPT, cache_salt="one", max_tokens=1))
    prompts = [[*PROMPT[: 20 + 5 * number], number + 3, *TURN] for number in range(16)]
    fields = [{"cache_salt": ("one", "two")[number % 2], "max_tokens": 20} for number in range(16)]
    asked = [ask(prompt, **named) for prompt, named in zip(prompts, fields, strict=True)]
    model = reference(store.weights[1])
    for request, answer in zip(asked, await asyncio.gather(*(complete(engine, one) for one in asked)), strict=True):
        expected = logprobs_of(model, request.token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=rounding())
        assert answer.num_cached == 0 or request.cache_salt == "one"


@pytest.mark.slow
async def test_short_pages_and_little_memory_make_it_slower_and_never_wrong(store: StoreInMemory) -> None:
    """Requests are evicted and taken in again, blocks go and come."""
    settings = EngineSettings(
        max_batch_tokens=64, cache_tokens=512, page_size=16, max_open_tokens=100_000, prefix_cache_bytes=2**16
    )
    engine = make_engine(store, settings=settings)
    engine.update("live", 1)
    model = reference(store.weights[1])
    asked = [
        ask([*PROMPT[: 10 * (number % 7) + 9], number + 3], cache_salt="one", max_tokens=90) for number in range(24)
    ]
    total = 0
    for _ in range(2):
        answers = await asyncio.gather(*(complete(engine, request) for request in asked))
        for request, answer in zip(asked, answers, strict=True):
            expected = logprobs_of(model, request.token_ids, answer.token_ids)
            assert answer.logprobs == pytest.approx(expected, abs=rounding())
            assert len(answer.token_ids) == 90
            total += answer.num_cached or 0
    assert total > 0
    assert engine.resolve(POLICY).restarts == 0
    arm = engine.resolve(POLICY)
    assert arm._prefixes is not None
    assert 2**15 < arm._prefixes.num_bytes <= 2**16
    assert isinstance(arm._runner, PagedRunner)
    assert arm._runner.manager.batch_processor.cache.compute_free_capacity() == 1.0
    engine.close()


async def test_what_a_client_that_left_had_computed_is_kept(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    active = arm.submit(ask(PROMPT, cache_salt="one", max_tokens=300, stream=True))
    await anext(aiter(active.chunks()))
    arm.cancel(active)
    await complete(engine, ask([3], max_tokens=1))  # a step later
    assert (await complete(engine, ask([*PROMPT, *TURN], cache_salt="one"))).num_cached == 96


async def test_a_runner_that_died_leaves_nothing(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    await complete(engine, ask(PROMPT, cache_salt="one"))
    assert isinstance(arm._runner, PagedRunner)
    arm._runner.manager.model = None
    with pytest.raises(EngineRestarted):
        await complete(engine, ask(PROMPT, cache_salt="one"))
    await until(lambda: arm.restarts == 1 and arm.serving)
    assert (await complete(engine, ask(PROMPT, cache_salt="one"))).num_cached == 0
    assert (await complete(engine, ask(PROMPT, cache_salt="one"))).num_cached == 96


@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma3", "mamba2"])
async def test_models_whose_beginnings_cannot_be_kept_answer_as_ever(kind: str) -> None:
    """The experts of all tokens are recorded; a sliding window gives tokens up; a recurrent state cannot be cut."""
    made = models.tiny_model(kind).requires_grad_(requires_grad=False)
    store = StoreInMemory()
    store.add(1, tensors_of(made))
    engine = make_engine(store, make_model=lambda: models.tiny_model(kind).requires_grad_(requires_grad=False))
    engine.update("live", 1)
    for _ in range(2):
        answer = await complete(engine, ask(PROMPT[:60], cache_salt="one", temperature=0, max_tokens=2))
        assert answer.num_cached == 0
    engine.close()


async def test_a_salt_that_is_none_is_refused(engine: Engine) -> None:
    for salt in ("", "x" * 129):
        with pytest.raises(InvalidRequest, match="cache_salt"):
            await complete(engine, ask(PROMPT, cache_salt=salt))


def test_what_is_kept_is_what_a_plain_forward_computes(engine: Engine, store: StoreInMemory) -> None:
    """Also of the answer's tokens, which steps of one token computed."""
    answer = asyncio.run(complete(engine, ask(PROMPT, cache_salt="one", max_tokens=30)))
    token_ids, prefixes = [*PROMPT, *answer.token_ids], engine.resolve(POLICY)._prefixes
    assert prefixes is not None
    rows = prefixes.read(prefixes.find("one", token_ids))
    assert len(rows) == 128
    cache = reference(store.weights[1])(torch.tensor([token_ids]), use_cache=True).past_key_values
    plain = [part[0, :, :128].transpose(0, 1) for layer in cache.layers for part in (layer.keys, layer.values)]
    torch.testing.assert_close(rows, torch.stack(plain, dim=1), atol=rounding(), rtol=rounding())
