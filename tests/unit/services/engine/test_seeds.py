"""A seed fixes an answer, whoever is served beside it, and changes neither the distribution nor its log-probs.

Seeds are fixed, so every figure here is the same in every run. A choice differs between two batches only where two sums
of log-prob and noise lie within the rounding of a matmul: about one token in 100,000 in float32.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from services.engine.engine import Engine
from services.engine.seeded import gumbel_noise
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.tiny import VOCABULARY, ask, complete, logprobs_of, make_engine, reference, rounding

PROMPT = [5, 9, 33, 12]
NUM_SEEDS = 500
# Chi-square has mean k and variance 2k at k degrees of freedom; four deviations above is one in 30,000.
WIDE = 4.0


@pytest.fixture(scope="module")
def engine(store: StoreInMemory) -> Iterator[Engine]:
    engine = make_engine(store)
    engine.update("live", 1)
    yield engine
    engine.close()


def chi_square(counts: np.ndarray[Any, Any], shares: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The statistic over the classes expected at least five times (the rest is one class), and the most it may be."""
    expected = shares / shares.sum() * counts.sum()
    rare = expected < 5
    merged = [np.append(values[~rare], values[rare].sum()) for values in (counts, expected)]
    used = merged[1] > 0
    freedom = int(used.sum()) - 1
    statistic = float(((merged[0] - merged[1])[used] ** 2 / merged[1][used]).sum())
    return statistic, freedom + WIDE * (2 * freedom) ** 0.5


async def test_a_seed_fixes_the_answer_whatever_is_served_beside_it(engine: Engine) -> None:
    asked = ask(PROMPT, max_tokens=60, seed=7)
    alone = await complete(engine, asked)
    others = [ask([number + 1, 7, 3], max_tokens=10 + number, seed=(None, number)[number % 2]) for number in range(20)]
    before = await asyncio.gather(*(complete(engine, request) for request in [asked, *others]))
    after = await asyncio.gather(*(complete(engine, request) for request in [*others, ask([8], seed=7), asked]))
    assert before[0].token_ids == after[-1].token_ids == alone.token_ids
    assert len(set(alone.token_ids)) > 5, "this was not sampled"
    assert (await complete(engine, ask(PROMPT, max_tokens=60, seed=8))).token_ids != alone.token_ids


async def test_an_answer_that_goes_on_after_a_restart_is_the_answer_it_would_have_been(engine: Engine) -> None:
    whole = await complete(engine, ask(PROMPT, max_tokens=40, seed=-3))
    rest = await complete(engine, ask([*PROMPT, *whole.token_ids[:15]], max_tokens=25, seed=-3))
    assert whole.token_ids[15:] == rest.token_ids


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_the_log_probs_are_of_the_distribution_and_not_of_the_choice(
    engine: Engine, store: StoreInMemory, temperature: float
) -> None:
    answer = await complete(engine, ask(PROMPT, max_tokens=60, seed=11, temperature=temperature))
    expected = logprobs_of(reference(store.weights[1]), PROMPT, answer.token_ids, temperature)
    assert answer.logprobs == pytest.approx(expected, abs=rounding(temperature))
    assert min(answer.logprobs) < -0.1


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.6, "temperature": 1.5}])
async def test_many_seeds_draw_every_token_as_often_as_the_softmax_says(
    engine: Engine, store: StoreInMemory, sampling: dict[str, float]
) -> None:
    asked = [ask(PROMPT, max_tokens=1, seed=seed, **sampling) for seed in range(NUM_SEEDS)]
    answers = [part for chunk in range(0, NUM_SEEDS, 250) for part in await _all(engine, asked[chunk : chunk + 250])]
    drawn = Counter(answer.token_ids[0] for answer in answers)
    logits = reference(store.weights[1])(torch.tensor([PROMPT])).logits[0, -1] / sampling.get("temperature", 1.0)
    shares = _kept(logits.softmax(-1).double().numpy(), sampling)
    statistic, most = chi_square(np.array([drawn[token] for token in range(VOCABULARY)], dtype=float), shares)
    assert statistic < most
    assert {token for token in drawn if shares[token] == 0} == set()
    said = {answer.token_ids[0]: answer.logprobs[0] for answer in answers}
    found = [said[token] for token in sorted(said)]
    expected = [np.log(shares[token] / shares.sum()) for token in sorted(said)]
    assert found == pytest.approx(expected, abs=rounding(sampling.get("temperature", 1.0)))


async def test_greedy_with_a_seed_is_greedy(engine: Engine) -> None:
    plain = await complete(engine, ask(PROMPT, temperature=0))
    seeded = await complete(engine, ask(PROMPT, temperature=0, seed=5))
    assert (seeded.token_ids, seeded.logprobs) == (plain.token_ids, plain.logprobs)


def test_the_noise_of_a_token_depends_on_seed_place_and_token_alone() -> None:
    together = gumbel_noise([3, 3, 4], [10, 11, 10], 50, "cpu")
    assert torch.equal(gumbel_noise([4], [10], 50, "cpu")[0], together[2])
    assert torch.equal(gumbel_noise([3], [10], 20, "cpu")[0], together[0, :20])
    assert len({tuple(row.tolist()) for row in together}) == 3


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_the_noise_of_a_seed_is_standard_gumbel(seed: int) -> None:
    noise = gumbel_noise([seed] * 400, list(range(400)), 500, "cpu").double().numpy().ravel()
    assert np.isfinite(noise).all()
    counts = np.histogram(np.exp(-np.exp(-noise)), bins=100, range=(0, 1))[0].astype(float)
    statistic, most = chi_square(counts, np.ones(100))
    assert statistic < most


@pytest.mark.parametrize("axis", ["seed", "place", "token"])
def test_neighbours_share_no_noise(axis: str) -> None:
    if axis == "token":
        values = gumbel_noise([1], [1], 100_001, "cpu")[0]
        first, second = values[:-1], values[1:]
    else:
        count = list(range(2001))
        seeds, places = (count, [4] * 2001) if axis == "seed" else ([4] * 2001, count)
        values = gumbel_noise(seeds, places, 50, "cpu")
        first, second = values[:-1].flatten(), values[1:].flatten()
    correlation = float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])
    assert abs(correlation) < WIDE / 100_000**0.5


async def _all(engine: Engine, requests: list[Any]) -> list[Any]:
    return await asyncio.gather(*(complete(engine, request) for request in requests))


def _kept(shares: np.ndarray[Any, Any], sampling: dict[str, float]) -> np.ndarray[Any, Any]:
    """The shares [V] of the tokens that top-k and top-p leave; 0 elsewhere."""
    order = np.argsort(-shares)
    before = np.cumsum(shares[order]) - shares[order]
    num_kept = min(int(sampling.get("top_k", len(shares))), int((before < sampling.get("top_p", 1.0)).sum()))
    kept = np.zeros_like(shares)
    kept[order[:num_kept]] = shares[order[:num_kept]]
    return kept
