from __future__ import annotations

import pytest

from contracts.records import Experience, Sampling, Score, Segment, pack_floats
from pipelines.release.rules import Sentinels, judge, refused_in_a_row, value_of

BEST = Sentinels(3, (1.0,) * 80 + (0.0,) * 20)


def candidate(right: int, *, finite: bool = True) -> Sentinels:
    return Sentinels(4, (1.0,) * right + (0.0,) * (100 - right), finite=finite)


@pytest.mark.parametrize(("right", "accepted"), [(90, True), (80, True), (77, True), (76, False), (0, False)])
def test_at_most_the_tolerance_below_the_best(right: int, accepted: bool) -> None:
    decision = judge(candidate(right), BEST, 0.03)
    assert decision.accepted is accepted
    assert "v3" in decision.reason


def test_infinite_log_probs_are_refused_however_right_the_answers() -> None:
    assert not judge(candidate(100, finite=False), BEST, 0.03).accepted


def test_the_first_version_and_one_without_sentinels_pass() -> None:
    assert judge(candidate(10), None, 0.03).accepted
    assert "unseen" in judge(Sentinels(1, ()), None, 0.03).reason


def test_a_shorter_set_of_answers_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        judge(Sentinels(4, (1.0,)), BEST, 0.03)


@pytest.mark.parametrize(
    ("history", "count"), [([], 0), ([True], 0), ([False], 1), ([False, True, False, False], 2), ([False] * 3, 3)]
)
def test_refusals_are_counted_from_the_end(history: list[bool], count: int) -> None:
    assert refused_in_a_row(history) == count


@pytest.mark.parametrize(("value", "wanted"), [(1.0, 1.0), (0.0, 0.0), (None, 0.0)])
@pytest.mark.parametrize(("logprob", "finite"), [(-0.5, True), (float("nan"), False)])
def test_a_sentinel_is_worth_its_exact_score(value: float | None, wanted: float, logprob: float, finite: bool) -> None:
    segment = Segment(
        token_ids=b"",
        loss_mask=b"",
        logprobs=pack_floats([logprob]),
        spans=(),
        sampling=Sampling(temperature=0, max_tokens=1),
    )
    experience = Experience(
        key="k", revision=1, policy="p", task="t", task_hash="h", tenant="x", purpose="sentinel", baseline_key="t",
        segments=(segment,), scores=(Score(name="shape", grader="json_schema/1#h", value=1.0),
                                     Score(name="exact", grader="json_exact/1#h", value=value)),
        reward=None, status="unlabelled", generated_at=0.0, scored_at=0.0, engine="e", dtype="d",
    )  # fmt: skip
    assert value_of(experience) == (wanted, finite)
