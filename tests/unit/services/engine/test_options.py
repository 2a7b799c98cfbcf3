"""Every sampling option, alone and mixed, in one batch: log-probs equal a recompute with numpy from a plain forward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from policy.weights import copy_tensors
from services.engine.engine import Engine
from tests.models import tiny_model
from tests.unit.services.engine.sampling_reference import plain_logits
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.policies import check, policy_engine, policy_store, request
from tests.worlds.engines.tiny import complete

PROMPT = [2, 40, 41, 41, 300, 42]
LARK = 'start: "a" | "b" WORD "."\nWORD: /[a-z]{2,40}/'
ALONE: list[dict[str, Any]] = [
    {"logit_bias": {"40": 9.5, "7": -100, "300": 3}},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"frequency_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"structured_outputs": {"grammar": LARK}},
    {"logprobs": 5},
    {"min_p": 0.05},
    {"top_k": 7},
    {"top_p": 0.7},
    {"temperature": 0.4},
    {"temperature": 0},
]
MIXES: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"9": 4}, "frequency_penalty": 1.0, "logprobs": 3},
    {"temperature": 1.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "logprobs": 20, "presence_penalty": 1.0},
    {"temperature": 0.8, "frequency_penalty": 0.7, "logit_bias": {"41": 5.0}, "structured_outputs": {"grammar": LARK}},
    {"structured_outputs": {"json_object": True}, "repetition_penalty": 1.2, "logprobs": 2, "top_p": 0.8},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.5, "top_k": 50},
]
ALL = [*ALONE, *MIXES]


@pytest.fixture(scope="module")
def store() -> StoreInMemory:
    return policy_store("llama", 1)


@pytest.fixture(scope="module")
def engine(store: StoreInMemory) -> Iterator[Engine]:
    engine = policy_engine("llama", store)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def model(store: StoreInMemory) -> Any:
    model = tiny_model("llama")
    copy_tensors(model, store.weights[1])
    return model


async def test_an_option_gives_the_log_probs_of_its_distribution(
    engine: Engine, model: Any, subtests: pytest.Subtests
) -> None:
    """All in one batch, whose steps then take no longer than those of one."""
    asked = [request(PROMPT, max_tokens=24, **params) for params in ALL]
    answers = await asyncio.gather(*(complete(engine, one) for one in asked))
    for one, params, answer in zip(asked, ALL, answers, strict=True):
        with subtests.test(params=params):
            check(model, one, params, answer)


@pytest.mark.slow
async def test_all_options_in_one_batch_disturb_nobody(engine: Engine, model: Any) -> None:
    seeded = [{**params, "seed": number} for number, params in enumerate(ALL)]
    plain = [{"seed": 100 + number, "temperature": 0.9} for number in range(4)]
    asked = [request([number + 5, *PROMPT], max_tokens=20, **params) for number, params in enumerate(seeded + plain)]
    alone = [await complete(engine, one) for one in asked]
    together = await asyncio.gather(*(complete(engine, one) for one in asked))
    for one, params, first, second in zip(asked, seeded + plain, alone, together, strict=True):
        assert first.token_ids == second.token_ids, "a seed gives the same answer in any batch"
        check(model, one, params, second)


async def test_a_continued_answer_keeps_its_penalties_and_its_grammar(
    engine: Engine, model: Any, subtests: pytest.Subtests
) -> None:
    options = [ALONE[1], ALONE[3], ALONE[4], ALONE[5], *MIXES]
    begun = [request(PROMPT, max_tokens=20, seed=3, **params) for params in options]
    wholes = [answer.token_ids for answer in await asyncio.gather(*(complete(engine, one) for one in begun))]
    asked = [
        request(
            [*PROMPT, *made[: len(made) // 2]],
            num_made=len(made) // 2,
            max_tokens=20 - len(made) // 2,
            seed=3,
            **params,
        )
        for made, params in zip(wholes, options, strict=True)
    ]
    rests = await asyncio.gather(*(complete(engine, one) for one in asked))
    for one, params, made, rest in zip(asked, options, wholes, rests, strict=True):
        with subtests.test(params=params):
            assert made == made[: len(made) // 2] + rest.token_ids
            check(model, one, params, rest)


async def test_the_penalties_of_an_answer_count_its_own_tokens_alone(engine: Engine, model: Any) -> None:
    """Frequency and presence do not touch the prompt, repetition does: the first token shows it."""
    logits = plain_logits(model, PROMPT, [0])[0]
    for name in ("frequency_penalty", "presence_penalty"):
        params: dict[str, Any] = {name: 2.0}
        first = (await complete(engine, request(PROMPT, max_tokens=1, logprobs=20, **params))).top_logprobs[0]
        shares = logits - np.logaddexp.reduce(logits)
        assert [value for _, value in first] == pytest.approx([shares[token] for token, _ in first], abs=1e-3)
