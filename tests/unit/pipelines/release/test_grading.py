"""One batch for all versions: mixed, nameless, equal answers once, and a fault of a grader gives no value."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from contracts.errors import Unavailable
from contracts.gating import GateAnswer, GateScore, Sentinel, SentinelFile
from pipelines.release.asking import SentinelAnswer
from pipelines.release.grading import grade_together

SET = SentinelFile(
    tuple(
        Sentinel(
            "code" if n % 3 == 2 else "math", [{"role": "user", "content": f"q{n}"}], {"reference": str(n)}, n, f"s:{n}"
        )
        for n in range(30)
    ),
    "h",
    {},
)


def said(prefix: str) -> tuple[SentinelAnswer, ...]:
    return tuple(SentinelAnswer(f"{prefix}{n}", "stop", finite=True) for n in range(30))


class Grader:
    def __init__(self) -> None:
        self.batches: list[list[GateAnswer]] = []

    def __call__(self, task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        del task
        self.batches.append(list(answers))
        return [GateScore(float(answer.text.startswith("new"))) for answer in answers]


def test_all_versions_are_one_batch_of_their_task_in_an_order_that_says_nothing() -> None:
    random.seed(1)
    grader = Grader()
    found = grade_together(grader, SET, "math", {7: said("new"), 3: said("old")})
    (batch,) = grader.batches
    assert len(batch) == 40
    assert {answer.metadata["reference"] for answer in batch} == {str(n) for n in range(30) if n % 3 != 2}
    ages = [answer.text[:3] for answer in batch]
    num_changes = sum(first != second for first, second in itertools.pairwise(ages))
    assert num_changes > 10, "the versions are mixed"
    assert found == {7: (1.0,) * 20, 3: (0.0,) * 20}


def test_values_come_back_in_the_order_of_the_sentinels() -> None:
    def last_digit(task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        del task
        return [GateScore(int(answer.text[-1]) / 10) for answer in answers]

    found = grade_together(last_digit, SET, "code", {1: said("a")})
    assert found[1] == tuple((n % 10) / 10 for n in range(2, 30, 3))


def test_what_two_versions_both_said_is_graded_once() -> None:
    grader = Grader()
    grade_together(grader, SET, "math", {7: said("same"), 3: said("same"), 1: said("new")})
    assert len(grader.batches[0]) == 40


def test_one_answer_that_cannot_be_graded_ends_it_for_all_and_is_named() -> None:
    def broken(task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        del task
        return [GateScore(None, "the judge is away") if "q4" in str(a.messages) else GateScore(1.0) for a in answers]

    with pytest.raises(Unavailable, match="s:4: not graded: the judge is away"):
        grade_together(broken, SET, "math", {7: said("new")})


def test_a_grader_that_loses_count_is_no_verdict() -> None:
    with pytest.raises(Unavailable, match="gave 0 scores for 20 answers"):
        grade_together(lambda task, answers: [], SET, "math", {7: said("new")})  # noqa: ARG005
