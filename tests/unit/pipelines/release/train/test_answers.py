"""The columns: a row is what was put last, whatever the order; rows that cannot be evidence are left out by name."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.release.train.answers import AnswerRow, Answers, grace_seconds, known_until
from pipelines.release.train.assess import assess
from tests.each_case import each_case
from tests.worlds.release.product import LATER, NOON, RULES, SETTINGS, answer, product, standing


def facts_of(rows: list[AnswerRow]) -> dict[str, object]:
    answers = Answers()
    answers.put(rows)
    return dict(assess(answers, RULES, SETTINGS, LATER, standing()))


def same(one: object, other: object) -> bool:
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
        case float(), float():
            return one == pytest.approx(other, rel=1e-9, abs=1e-12)
    return one == other


@given(st.integers(0, 50))
@settings(max_examples=12)
def test_neither_order_nor_repetition_matters(seed: int) -> None:
    rows = list(product(seed, 120))
    mixed = rows + rows[:40]
    random.Random(seed).shuffle(mixed)
    assert same(facts_of(rows), facts_of(mixed))


def test_a_later_row_replaces_an_earlier_one_also_within_one_put() -> None:
    early, late = answer(1, "canary", reward=None, status=""), answer(1, "canary", reward=0.25)
    answers = Answers()
    answers.put([early])
    assert math.isnan(answers.columns().reward[0])
    answers.put([late])
    assert (len(answers), answers.columns().reward[0]) == (1, 0.25)
    answers.put([early, late])
    assert (len(answers), answers.columns().reward[0]) == (1, 0.25)


def test_more_rows_than_there_was_room_for() -> None:
    answers = Answers()
    rows = list(product(1, 3000))
    for start in range(0, 3000, 700):
        answers.put(rows[start : start + 700])
    columns = answers.columns()
    assert len(answers) == len(columns.at) == 3000
    assert list(columns.at) == [row.at for row in rows]
    assert [answers.names("unit")[code] for code in columns.unit] == [row.unit for row in rows]


@each_case(
    ("change", "reason"),
    [
        ({"arm": "holdout"}, "of another arm"),
        ({"at": math.nan}, "without a time"),
        ({"at": math.inf}, "without a time"),
        ({"unit": ""}, "without a unit"),
        ({"probability": 0.0}, "without a probability between 0 and 1"),
        ({"probability": math.nan}, "without a probability between 0 and 1"),
        ({"status": "done"}, "with an unknown status"),
        ({"reward": 1.5}, "with a reward outside 0 and 1"),
        ({"reward": math.nan}, "with a reward outside 0 and 1"),
    ],
)
def test_a_row_that_is_no_evidence_is_left_out_by_name(change: dict[str, object], reason: str) -> None:
    answers = Answers()
    answers.put([answer(1, "canary")._replace(**change), answer(2, "live")])  # type: ignore[arg-type] # as above
    answers.put([answer(1, "canary")._replace(**change)])  # type: ignore[arg-type] # as above
    assert (len(answers), answers.left_out) == (1, {reason: 1})
    answers.put([answer(1, "canary")])
    assert (len(answers), answers.left_out) == (2, {})


def test_a_fact_that_is_no_number_is_absent() -> None:
    answers = Answers()
    answers.put([answer(1, "canary", metrics={"tokens": math.inf, "truncated": 1.0, "unheard of": 3.0})])
    assert np.isnan(answers.columns().metrics[0]).sum() == answers.columns().metrics.shape[1] - 1


def test_a_reward_has_some_time_to_be_computed() -> None:
    assert known_until(NOON, 60.0) == NOON + 66.0
    assert (grace_seconds(1.0), grace_seconds(86_400.0)) == (2.0, 60.0)
