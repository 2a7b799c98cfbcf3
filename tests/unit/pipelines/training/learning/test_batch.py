import math
from typing import Any

import msgspec
import numpy as np
import torch

from contracts.records import Experience, Score, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from pipelines.training.known.experiences import is_old, num_tokens, prompt_of, single_version, version_lag
from pipelines.training.known.lineage import VersionTree
from pipelines.training.learning.micro_batches import micro_batches
from pipelines.training.samples.refusals import Refusal, TrainingLimits, refuse
from tests.each_case import each_case
from tests.unit.pipelines.training.builders import experience, random_experience, segment

LIMITS = TrainingLimits(horizon_seconds=100.0, max_length=8, vocabulary_size=48, policy="tiny")
GOOD = segment([5, 6, 7], [8, 9], [-0.5, -1.5])


def refused(item: Experience, lineage: tuple[int, ...] = (0,), now: float = 1000.0, **tree: Any) -> Refusal | None:
    return refuse(item, VersionTree(lineage, **tree), LIMITS, now)


def scored(value: float, weight: float = 1.0) -> Score:
    return Score(name="a", grader="a/1#h", value=value, weight=weight)


def with_segment(**changes: Any) -> Experience:
    return experience(msgspec.structs.replace(GOOD, **changes))


def test_a_sampled_completion_with_provenance_is_trained() -> None:
    assert refused(experience(GOOD)) is None


@each_case(
    ("item", "state", "reason"),
    [
        (experience(GOOD, engine=""), "filtered", "no_provenance"),
        (experience(GOOD, engine="", origin="openai"), "off_support", "provider"),
        (experience(GOOD, dtype=""), "filtered", "no_provenance"),
        (experience(), "filtered", "no_provenance"),
        (with_segment(logprobs=b""), "filtered", "no_provenance"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5])), "filtered", "no_provenance"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5, float("nan")])), "filtered", "impossible_log_prob"),
        (with_segment(logprobs=pack_floats([0, 0, 0, -0.5, 0.7])), "filtered", "impossible_log_prob"),
        (with_segment(loss_mask=bytes([0, 0, 1, 1])), "filtered", "no_provenance"),
        (with_segment(spans=()), "filtered", "no_provenance"),
        (with_segment(spans=(Span(1, 0),)), "filtered", "no_provenance"),
        (with_segment(loss_mask=bytes(5)), "filtered", "empty_completion"),
        (with_segment(loss_mask=bytes([1, 0, 0, 1, 1])), "filtered", "empty_prompt"),
        (with_segment(token_ids=pack_ids([5, 6, 7, 8, 48])), "filtered", "unknown_token"),
        (with_segment(token_ids=pack_ids([5, -6, 7, 8, 9])), "filtered", "unknown_token"),
        (experience(segment([1] * 7, [2, 3], [-1.0, -1.0])), "filtered", "beyond_context"),
        (experience(GOOD, reward=float("inf")), "filtered", "non_finite_reward"),
        (experience(GOOD, policy="other"), "filtered", "other_policy"),
        (with_segment(spans=(Span(0, 7),)), "filtered", "unknown_version"),
        (with_segment(spans=(Span(0, 0), Span(2, 0), Span(1, 0))), "filtered", "malformed_segment"),
        (with_segment(spans=(Span(0, 0), Span(3, 0))), "filtered", "malformed_segment"),
        (with_segment(loss_mask=bytes([0, 0, 0, 1, 2])), "filtered", "malformed_segment"),
        (with_segment(token_ids=GOOD.token_ids + b"\0"), "filtered", "no_provenance"),
        (with_segment(logprobs=GOOD.logprobs[:-1]), "filtered", "no_provenance"),
        *[
            (with_segment(logprobs=pack_floats([0, 0, 0, value, -0.5])), "filtered", "impossible_log_prob")
            for value in (-100.1, -3e38, 3e38, -math.inf, math.inf, 0.0011)
        ],
        *[(experience(GOOD, reward=value), "filtered", "non_finite_reward") for value in (math.nan, -math.inf)],
        *[(experience(GOOD, reward=value), "filtered", "impossible_reward") for value in (3e38, -3e38, 1e300)],
        *[(experience(GOOD, weight=value), "filtered", "impossible_weight") for value in (-0.5, 3e38)],
        *[
            (experience(GOOD, scores=(score,)), "filtered", "impossible_score")
            for score in (scored(math.nan), scored(3e38), scored(1.0, math.inf))
        ],
        *[
            (experience(GOOD, generated_at=at), "filtered", "impossible_time")
            for at in (math.nan, math.inf, 1e300, -1e300)
        ],
        *[
            (with_segment(sampling=Sampling(temperature=value, max_tokens=9)), "filtered", "impossible_temperature")
            for value in (math.nan, math.inf, -math.inf, 3e38)
        ],
        (with_segment(sampling=Sampling(temperature=1e-30, max_tokens=9)), "off_support", "greedy"),
        (with_segment(sampling=Sampling(temperature=0.0, max_tokens=9)), "off_support", "greedy"),
        (with_segment(sampling=Sampling(temperature=1.0, top_p=0.9, max_tokens=9)), "off_support", "truncated"),
        (with_segment(sampling=Sampling(temperature=1.0, top_k=5, max_tokens=9)), "off_support", "truncated"),
        (with_segment(sampling=Sampling(temperature=1.0, min_p=0.1, max_tokens=9)), "off_support", "truncated"),
    ],
)
def test_what_must_not_be_trained_is_refused_by_name(item: Experience, state: str, reason: str) -> None:
    assert refused(item) == Refusal(state, reason)  # type: ignore[arg-type]  # parametrized text


def test_no_lag_makes_a_sample_stale() -> None:
    item = with_segment(spans=(Span(0, 1), Span(1, 3)))
    lineage = tuple(range(5000, -1, -1))
    assert version_lag(item, VersionTree(lineage)) == 4999, "from the oldest token"
    assert refused(item, lineage=lineage) is None


PARENTS = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 2}


def of_version(*versions: int) -> Experience:
    return with_segment(spans=tuple(Span(start, version) for start, version in enumerate(versions)))


def test_age_counts_along_the_tree_so_that_a_rollback_ages_what_it_left_and_not_what_it_kept() -> None:
    after_a_rollback = VersionTree((6, 2, 1, 0), PARENTS)
    assert [version_lag(of_version(version), after_a_rollback) for version in (6, 2, 1, 0)] == [0, 1, 2, 3]
    # 3, 4 and 5 were left: down one branch and up the other, whatever their numbers.
    assert [version_lag(of_version(version), after_a_rollback) for version in (3, 4, 5)] == [2, 3, 4]
    assert version_lag(of_version(6, 5), after_a_rollback) == 4
    assert refused(of_version(4), (2, 1, 0), parents=PARENTS) is None
    assert refused(of_version(5), (2, 1, 0), parents=PARENTS) is None


def test_what_a_revoked_version_said_is_poison_or_evidence() -> None:
    tree: dict[str, Any] = {"parents": PARENTS, "revoked": {3: "poison", 4: "evidence"}}
    assert refused(of_version(3), (2, 1, 0), **tree) == Refusal("quarantined", "rollback")
    assert refused(of_version(2, 3), (2, 1, 0), **tree) == Refusal("quarantined", "rollback")
    assert refused(of_version(4), (2, 1, 0), **tree) is None


def test_what_is_old_is_counted_along_the_tree_and_nothing_raises() -> None:
    tree = VersionTree((6, 2, 1, 0), PARENTS)
    assert [is_old(of_version(version), tree, 2) for version in (6, 2, 0, 5, 77)] == [False, False, True, True, False]
    assert not is_old(experience(), tree, 0)


def test_several_segments_are_refused_for_any_of_them() -> None:
    bad = msgspec.structs.replace(GOOD, logprobs=pack_floats([0, 0, 0, -0.5, -3e38]))
    assert refused(experience(GOOD, bad)) == Refusal("filtered", "impossible_log_prob")
    assert refused(experience(GOOD, GOOD)) is None


def test_log_probs_at_the_limits_are_trained() -> None:
    assert refused(with_segment(logprobs=pack_floats([0, 0, 0, -100.0, 0.0009]))) is None


def test_age_counts_seconds_since_the_generation() -> None:
    item = experience(GOOD, generated_at=1000.0)
    assert refused(item, now=1100.0) is None
    assert refused(item, now=1100.1) == Refusal("stale", "expired")


def test_a_sample_of_mixed_versions_has_no_single_version() -> None:
    assert single_version(experience(GOOD)) == 0
    assert single_version(with_segment(spans=(Span(0, 1), Span(1, 2)))) is None


def test_prompts_are_equal_by_their_tokens() -> None:
    assert prompt_of(experience(GOOD)) == pack_ids([5, 6, 7])


def test_micro_batches_hold_every_token_once_with_its_temperature_and_within_the_budget() -> None:
    random = np.random.default_rng(0)
    items = [random_experience(random, temperature=t) for t in (1.0, 0.5, 1.0, 1.0, 0.5, 1.0)]

    batches = micro_batches(items, max_tokens=24)

    assert sorted(sample for batch in batches for sample in batch.sample_B.tolist()) == list(range(6))
    assert sum(int(batch.mask_BT.sum()) for batch in batches) == num_tokens(items)
    for batch in batches:
        assert batch.input_ids_BL.numel() <= 24
        assert [
            items[i].segments[0].sampling.temperature for i in batch.sample_B.tolist()
        ] == batch.temperature_B.tolist()
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
