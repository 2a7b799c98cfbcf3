from __future__ import annotations

import math

import numpy as np
import pytest

from contracts.errors import InvalidValue
from rewards.monitors.evidence import Sums
from rewards.signals.audit import Accuracy, prediction_powered, rogan_gladen, tuned
from rewards.signals.estimates import Estimate, mean_of, sums_of
from rewards.signals.response import asked_mean, effective_size


def test_sums_of_parts_add_up_to_the_sums_of_the_whole() -> None:
    values = np.random.default_rng(0).random(100)
    whole = sums_of(values[:30]).plus(sums_of(values[30:]))
    assert whole == pytest.approx(sums_of(values))
    assert mean_of(whole) == pytest.approx((values.mean(), values.std(ddof=1) / 10))


def test_too_little_data_has_an_infinite_error_instead_of_none() -> None:
    assert mean_of(Sums()).error == math.inf
    estimate = prediction_powered(sums_of([0.5, 0.6]), sums_of([0.1]))
    assert estimate == pytest.approx((0.65, math.inf))
    assert asked_mean([], []).error == math.inf


def test_predictions_that_are_always_right_leave_only_the_error_of_all_samples() -> None:
    values = np.random.default_rng(1).random(1000)
    estimate = prediction_powered(sums_of(values), sums_of(np.zeros(50)))
    assert estimate == pytest.approx((values.mean(), values.std(ddof=1) / math.sqrt(1000)))


def test_tuning_ignores_predictions_that_say_nothing() -> None:
    dice = np.random.default_rng(2)
    truth, guess = dice.random(200), 10 * dice.random(20_000)
    plain = prediction_powered(sums_of(guess), sums_of(truth - guess[:200]))
    better = tuned(guess, truth, guess[:200])
    assert plain.error > 5 * better.error
    assert better == pytest.approx((truth.mean(), truth.std() / math.sqrt(200)), abs=0.01)
    assert tuned([0.5] * 10, [0.0, 1.0], [0.5, 0.5]).value == pytest.approx(0.5)  # nothing to scale


def test_an_interval_holds_what_a_normal_one_does() -> None:
    assert Estimate(0.5, 0.1).interval() == pytest.approx((0.304, 0.696), abs=1e-3)


def test_a_judge_that_errs_is_inverted_and_its_own_uncertainty_counts() -> None:
    said_good = Estimate(0.6 * 0.9 + 0.4 * 0.2, 0.01)
    known = rogan_gladen(said_good, Accuracy(0.9, 0.8))
    assert known == pytest.approx((0.6, 0.01 / 0.7))
    labelled = rogan_gladen(said_good, Accuracy(0.9, 0.8, num_good=100, num_bad=100))
    assert labelled.value == known.value
    assert labelled.error == pytest.approx(
        math.sqrt(0.01**2 + 0.4**2 * 0.8 * 0.2 / 100 + 0.6**2 * 0.9 * 0.1 / 100) / 0.7
    )


def test_a_share_below_what_the_judge_gets_wrong_is_none() -> None:
    assert rogan_gladen(Estimate(0.1, 0.01), Accuracy(0.9, 0.8)).value == 0.0
    assert rogan_gladen(Estimate(0.99, 0.01), Accuracy(0.9, 0.8)).value == 1.0


def test_a_judge_no_better_than_a_coin_is_refused() -> None:
    with pytest.raises(InvalidValue, match="choose another judge"):
        rogan_gladen(Estimate(0.5, 0.01), Accuracy(0.5, 0.5))


def test_who_was_asked_rarely_stands_for_more() -> None:
    assert asked_mean([1.0, 0.0], [0.1, 0.5]).value == pytest.approx(10 / 12)
    values = np.random.default_rng(3).random(500)
    assert asked_mean(values, np.full(500, 0.02)) == pytest.approx((values.mean(), values.std() / math.sqrt(500)))


def test_one_large_weight_is_worth_one_sample() -> None:
    assert effective_size([1.0] * 10) == pytest.approx(10)
    assert effective_size([100.0, *[0.01] * 100]) == pytest.approx(1.0, abs=0.05)
    assert effective_size([0.0]) == 0.0
