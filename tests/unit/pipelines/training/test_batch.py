from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from contracts.records import Experience, Sampling, Span, pack_floats, pack_ids
from pipelines.training.batch import (
    Limits,
    Refusal,
    micro_batches,
    num_tokens,
    prompt_of,
    refuse,
    single_version,
    version_lag,
)
from tests.unit.pipelines.training.builders import experience, random_experience, segment

LIMITS = Limits(max_version_lag=2, max_age_seconds=100.0, max_length=8, vocabulary_size=48)
GOOD = segment([5, 6, 7], [8, 9], [-0.5, -1.5])


def refused(item: Experience, lineage: tuple[int, ...] = (0,), now: float = 1000.0) -> Refusal | None:
    return refuse(item, lineage, LIMITS, now)


def with_segment(**changes: Any) -> Experience:
    return experience(msgspec.structs.replace(GOOD, **changes))


def test_a_sampled_completion_with_provenance_is_trained() -> None:
    assert refused(experience(GOOD)) is None


@pytest.mark.parametrize(
    ("item", "state", "reason"),
    [
        (experience(GOOD, engine=""), "filtered", "no_provenance"),
        (experience(GOOD, dtype=""), "filtered", "no_provenance"),
        (experience(), "filtered", "no_provenance"),
        (with_segment(logprobs=b""), "filtered", "no_provenance"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5])), "filtered", "no_provenance"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5, float("nan")])), "filtered", "no_provenance"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5, 0.7])), "filtered", "no_provenance"),
        (with_segment(loss_mask=bytes([0, 0, 1, 1])), "filtered", "no_provenance"),
        (with_segment(spans=()), "filtered", "no_provenance"),
        (with_segment(spans=(Span(1, 0),)), "filtered", "no_provenance"),
        (with_segment(loss_mask=bytes(5)), "filtered", "empty_completion"),
        (with_segment(loss_mask=bytes([1, 0, 0, 1, 1])), "filtered", "empty_prompt"),
        (with_segment(token_ids=pack_ids([5, 6, 7, 8, 48])), "filtered", "unknown_token"),
        (with_segment(token_ids=pack_ids([5, -6, 7, 8, 9])), "filtered", "unknown_token"),
        (experience(segment([1] * 7, [2, 3], [-1.0, -1.0])), "filtered", "beyond_context"),
        (experience(GOOD, reward=float("inf")), "filtered", "non_finite_reward"),
        (with_segment(sampling=Sampling(temperature=0.0, max_tokens=9)), "off_support", "greedy"),
        (with_segment(sampling=Sampling(temperature=1.0, top_p=0.9, max_tokens=9)), "off_support", "truncated"),
        (with_segment(sampling=Sampling(temperature=1.0, top_k=5, max_tokens=9)), "off_support", "truncated"),
    ],
)
def test_what_must_not_be_trained_is_refused_by_name(item: Experience, state: str, reason: str) -> None:
    assert refused(item) == Refusal(state, reason)  # type: ignore[arg-type]  # parametrized text


def test_age_counts_versions_from_the_oldest_token() -> None:
    item = with_segment(spans=(Span(0, 1), Span(1, 4)))
    assert refused(item, lineage=(3, 2, 1, 0)) is None
    assert refused(item, lineage=(4, 3, 2, 1, 0)) == Refusal("stale", "version_lag")


def test_age_counts_along_the_lineage_so_that_a_rollback_does_not_age_fresh_samples() -> None:
    assert version_lag((19, 6, 5, 0), 6) == 1
    assert version_lag((6, 5, 0), 9) == 0


def test_age_counts_seconds_since_the_generation() -> None:
    item = experience(GOOD, generated_at=1000.0)
    assert refused(item, now=1100.0) is None
    assert refused(item, now=1100.1) == Refusal("stale", "age")


def test_a_sample_of_mixed_versions_has_no_single_version() -> None:
    assert single_version(experience(GOOD)) == 0
    assert single_version(with_segment(spans=(Span(0, 1), Span(1, 2)))) is None


def test_prompts_are_equal_by_their_tokens() -> None:
    assert prompt_of(experience(GOOD)) == pack_ids([5, 6, 7])


def test_micro_batches_hold_every_token_once_grouped_by_temperature_and_within_the_budget() -> None:
    random = np.random.default_rng(0)
    items = [random_experience(random, temperature=t) for t in (1.0, 0.5, 1.0, 1.0, 0.5, 1.0)]

    batches = micro_batches(items, max_tokens=24)

    assert sorted(sample for batch in batches for sample in batch.sample_B.tolist()) == list(range(6))
    assert sum(int(batch.mask_BT.sum()) for batch in batches) == num_tokens(items)
    for batch in batches:
        assert batch.input_ids_BL.numel() <= 24
        assert {items[i].segments[0].sampling.temperature for i in batch.sample_B.tolist()} == {batch.temperature}
        for row, sample in enumerate(batch.sample_B.tolist()):
            source = items[sample].segments[0]
            tokens = np.frombuffer(source.token_ids, "<i4")
            sampled = np.frombuffer(source.loss_mask, np.uint8) == 1
            predicted = batch.input_ids_BL[row, 1:][batch.mask_BT[row]]
            assert predicted.tolist() == tokens[sampled].tolist()
            assert torch.equal(
                batch.behaviour_BT[row][batch.mask_BT[row]],
                torch.tensor(np.frombuffer(source.logprobs, "<f4")[sampled]),
            )
            assert batch.attention_mask_BL[row].sum() == len(tokens)


def test_a_row_longer_than_the_budget_still_gets_its_own_batch() -> None:
    assert [b.input_ids_BL.shape for b in micro_batches([experience(GOOD)] * 2, max_tokens=1)] == [(1, 5), (1, 5)]


def test_every_segment_is_a_row_of_its_experience() -> None:
    batches = micro_batches([experience(GOOD), experience(GOOD, GOOD)], max_tokens=1000)
    assert [batch.sample_B.tolist() for batch in batches] == [[0, 1, 1]]
