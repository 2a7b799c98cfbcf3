"""Every sampling option, alone and mixed, in one batch: log-probs equal a recompute with numpy from a plain forward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from policy.weights import copy_tensors
from services.engine.active_requests import TokenChunk
from services.engine.engine import Engine
from services.engine.grammars import json_grammar, lark_grammar
from services.engine.sampling import GenerateRequest
from tests.models import tiny_model
from tests.tolerances import network_tolerance
from tests.unit.services.engine.memory_store import MemoryStore
from tests.unit.services.engine.policy_world import (
    SPREAD,
    allowed_by,
    policy_engine,
    policy_store,
    request,
)
from tests.unit.services.engine.sampling_reference import distributions, plain_logits
from tests.unit.services.engine.world import complete

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
def store() -> MemoryStore:
    return policy_store("llama", 1)


@pytest.fixture(scope="module")
def engine(store: MemoryStore) -> Iterator[Engine]:
    engine = policy_engine("llama", store)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def model(store: MemoryStore) -> Any:
    model = tiny_model("llama")
    copy_tensors(model, store.weights[1])
    return model


def check(model: Any, asked: GenerateRequest, params: dict[str, Any], answer: TokenChunk) -> None:
    """Each sampled token's log-prob, and the top log-probs, are those of the recomputed distribution."""
    prompt, made = list(asked.token_ids), answer.token_ids
    outputs = params.get("structured_outputs")
    allowed = None
    if outputs is not None:
        grammar = lark_grammar(outputs["grammar"]) if "grammar" in outputs else json_grammar('{"type": "object"}')
        before = prompt[len(prompt) - asked.num_made :]
        follow = allowed_by(grammar, 704)
        allowed = lambda tokens: follow(before + tokens)  # noqa: E731
    rows = distributions(
        plain_logits(model, prompt, made), prompt, made, {**params, "num_made": asked.num_made}, allowed
    )
    room = network_tolerance(model.config, params.get("temperature", 1.0) or 1.0) * SPREAD
    expected = [row[token] for row, token in zip(rows, made, strict=True)]
    assert answer.logprobs == pytest.approx(expected, abs=room)
    num_top = params.get("logprobs", 0)
    assert len(answer.top_logprobs) == (len(made) if num_top else 0)
    for row, token, logprob, top in zip(rows, made, answer.logprobs, answer.top_logprobs, strict=False):
        assert top[0] == (token, logprob)
        assert [value for _, value in top] == pytest.approx([row[other] for other, _ in top], abs=room)
        others = np.delete(row, token)
        best = np.sort(others[others > -np.inf])[::-1][: num_top - 1]
        assert [value for _, value in top[1:]] == pytest.approx(best.tolist(), abs=room), (
            "the likeliest others, in order"
        )


@pytest.mark.parametrize("params", ALL, ids=str)
async def test_an_option_gives_the_log_probs_of_its_distribution(
    engine: Engine, model: Any, params: dict[str, Any]
) -> None:
    asked = request(PROMPT, max_tokens=24, **params)
    check(model, asked, params, await complete(engine, asked))


async def test_all_options_in_one_batch_disturb_nobody(engine: Engine, model: Any) -> None:
    seeded = [{**params, "seed": number} for number, params in enumerate(ALL)]
    plain = [{"seed": 100 + number, "temperature": 0.9} for number in range(4)]
    asked = [request([number + 5, *PROMPT], max_tokens=20, **params) for number, params in enumerate(seeded + plain)]
    alone = [await complete(engine, one) for one in asked]
    together = await asyncio.gather(*(complete(engine, one) for one in asked))
    for one, params, first, second in zip(asked, seeded + plain, alone, together, strict=True):
        assert first.token_ids == second.token_ids, "a seed gives the same answer in any batch"
        check(model, one, params, second)


@pytest.mark.parametrize("params", [ALONE[1], ALONE[3], ALONE[4], ALONE[5], *MIXES], ids=str)
async def test_a_continued_answer_keeps_its_penalties_and_its_grammar(
    engine: Engine, model: Any, params: dict[str, Any]
) -> None:
    whole = await complete(engine, request(PROMPT, max_tokens=20, seed=3, **params))
    cut = len(whole.token_ids) // 2
    asked = request([*PROMPT, *whole.token_ids[:cut]], num_made=cut, max_tokens=20 - cut, seed=3, **params)
    rest = await complete(engine, asked)
    assert whole.token_ids == whole.token_ids[:cut] + rest.token_ids
    check(model, asked, params, rest)


async def test_the_penalties_of_an_answer_count_its_own_tokens_alone(engine: Engine, model: Any) -> None:
    """Frequency and presence do not touch the prompt, repetition does: the first token shows it."""
    logits = plain_logits(model, PROMPT, [0])[0]
    for name in ("frequency_penalty", "presence_penalty"):
        params: dict[str, Any] = {name: 2.0}
        first = (await complete(engine, request(PROMPT, max_tokens=1, logprobs=20, **params))).top_logprobs[0]
        shares = logits - np.logaddexp.reduce(logits)
        assert [value for _, value in first] == pytest.approx([shares[token] for token, _ in first], abs=1e-3)
