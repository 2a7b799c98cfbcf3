"""Truncated sampling: the trainer computes the distribution that the engine drew from, over the tokens it left."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from contracts.packing import MOST_IDS, pack_support
from contracts.records import Experience, pack_floats
from contracts.sampling import Sampling
from engines.token_route import read_event
from engines.wire import EngineRequest
from pipelines.training.known.lineage import VersionTree
from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch, micro_batches, packed_batches
from pipelines.training.samples.refusals import TrainingLimits, refuse
from pipelines.training.settings import TrainingSettings
from policy.logprobs import TokenScorer
from policy.packing import make_packable
from policy.weights import tensors_of
from services.engine.sampler import SequenceSampling, sample
from services.engine.sampling import SamplingParams
from tests.unit.pipelines.training.builders import (
    VOCABULARY,
    a_learner,
    bits_now,
    experience,
    segment,
    tiny_model,
)

LIMITS = TrainingLimits(max_length=64, vocabulary_size=VOCABULARY, policy="tiny")
SAMPLINGS = {
    "top_p": Sampling(temperature=1.0, top_p=0.9, max_tokens=9),
    "top_k": Sampling(temperature=0.7, top_k=4, max_tokens=9),
    "min_p": Sampling(temperature=1.3, min_p=0.2, max_tokens=9),
    "all": Sampling(temperature=0.8, top_p=0.8, top_k=9, min_p=0.01, max_tokens=9),
}


@torch.no_grad()
def drawn(model: Any, sampling: Sampling, prompt: list[int], count: int) -> Experience:
    """An answer of the engine's own sampler, with the support that inference reads from its log-probs."""
    request = EngineRequest("tiny", prompt, sampling, "one:0", with_support=True)
    params = SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        logprobs=request.num_logprobs,
    )
    sequence, ids, log_probs, supports = SequenceSampling(params, prompt), list(prompt), [], []
    for place in range(count):
        token_ids, found = sample(model(input_ids=torch.tensor([ids])).logits[:, -1].float(), [sequence])
        content = [
            {
                "token_id": token_ids.item(),
                "logprob": found.item(),
                "top_logprobs": [{"token_id": other, "logprob": value} for other, value in sequence.tops[-1]],
            }
        ]
        event = {"choices": [{"token_ids": token_ids.tolist(), "logprobs": {"content": content}}]}
        [token] = read_event(msgspec.json.encode(event), place, with_support=True).tokens
        ids.append(token.id)
        log_probs.append(token.logprob)
        supports.append(token.support)
    made = segment(prompt, ids[len(prompt) :], log_probs)
    return experience(msgspec.structs.replace(made, sampling=sampling, support=pack_support(supports)))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_trainer_computes_the_log_probs_that_were_drawn_from(name: str) -> None:
    torch.manual_seed(5)
    model = tiny_model()
    plain = experience(segment([3, 4], [5, 6, 7], [-1.0, -1.0, -1.0]))
    items = [drawn(model, SAMPLINGS[name], [2, 9, 4], 8), plain, drawn(model, SAMPLINGS[name], [7], 5)]
    assert not any(refuse(item, VersionTree([0], {}, {}), LIMITS, 2000.0) for item in items)
    scorer = TokenScorer(model)
    assert not make_packable(model)
    layouts: list[MicroBatch | PackedBatch] = [
        *micro_batches(items, max_tokens=999),
        *packed_batches(items, max_tokens=999),
    ]
    for batch in layouts:
        with torch.no_grad():
            scores = batch.scored_by(scorer)
        is_drawn = (batch.sample_B != 1)[:, None] & batch.mask_BT
        off = (scores.log_probs_BT - batch.behaviour_BT)[is_drawn].abs().max()
        assert off < 1e-5
        assert scores.entropy_BT.isfinite().all()
        # The plain answer is drawn from every token.
        whole = [(scores.log_probs_BT[batch.mask_BT & (batch.sample_B == 1)[:, None]]).tolist()]
        logits = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0, 1:].log_softmax(-1)
        expected = logits[torch.arange(3), torch.tensor([5, 6, 7])].tolist()
        assert whole[0] == pytest.approx(expected, abs=1e-5)


def test_tokens_outside_the_support_get_no_gradient() -> None:
    torch.manual_seed(1)
    model = tiny_model(tied=False).requires_grad_(requires_grad=True)
    item = drawn(model, SAMPLINGS["top_k"], [2, 9, 4], 1)
    [batch] = micro_batches([item], max_tokens=99)
    assert batch.support_NK is not None
    torch.autograd.backward(batch.scored_by(TokenScorer(model)).log_probs_BT.sum())
    moved = model.lm_head.weight.grad.abs().sum(-1) > 0
    assert set(torch.nonzero(moved)[:, 0].tolist()) == set(batch.support_NK[0].tolist())


@pytest.mark.parametrize(
    ("support", "state", "reason"),
    [
        (b"", "off_support", "truncated"),
        (pack_support([[5], [6]]), "filtered", "malformed_support"),
        (pack_support([[5], [7, VOCABULARY]]), "filtered", "malformed_support"),
        (pack_support([[5]]), "filtered", "malformed_support"),
        (b"junk", "filtered", "malformed_support"),
        (pack_support([[5], list(range(MOST_IDS + 1))]), "off_support", "truncated"),
    ],
)
def test_a_support_that_cannot_be_is_refused_by_name(support: bytes, state: str, reason: str) -> None:
    made = segment([3], [5, 7], [-1.0, -1.0], top_p=0.9)
    item = experience(msgspec.structs.replace(made, support=support))
    refusal = refuse(item, VersionTree([0], {}, {}), LIMITS, 2000.0)
    assert refusal is not None
    assert (refusal.state, refusal.reason) == (state, reason)


def test_a_step_learns_from_truncated_and_whole_answers_together() -> None:
    model = tiny_model()
    items = [drawn(model, SAMPLINGS["top_p"], [2, number], 4) for number in range(4)]
    items = [msgspec.structs.replace(item, reward=float(n % 2)) for n, item in enumerate(items)]
    learner = a_learner(
        tiny_model(), TrainingSettings(divergence_bound=math.inf, step_bound=math.inf, mismatch_samples=4)
    )
    before = {name: tensor.data.copy() for name, tensor in tensors_of(model).items()}
    result = learner.step(items, [1.0] * 4, {0: None})
    assert result.metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    k3 = result.metrics["mismatch_k3"]
    assert k3 is not None
    assert abs(k3) < 1e-6
    after = bits_now(learner)
    assert any(not np.array_equal(after[name].data, before[name]) for name in before)


def test_a_wrong_log_prob_is_not_hidden_by_the_support() -> None:
    model = tiny_model()
    item = drawn(model, SAMPLINGS["top_p"], [2, 3], 4)
    [made] = item.segments
    wrong = msgspec.structs.replace(made, logprobs=pack_floats([0.0, 0.0, -9.0, -9.0, -9.0, -9.0]))
    learner = a_learner(model, TrainingSettings(divergence_bound=math.inf, step_bound=math.inf, mismatch_samples=1))
    result = learner.step([msgspec.structs.replace(item, segments=(wrong,))], [1.0], {0: None})
    assert (result.metrics["mismatch_k1"] or 0.0) < -1.0
