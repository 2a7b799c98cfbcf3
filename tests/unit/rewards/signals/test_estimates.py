from __future__ import annotations

import math
import re
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import ArrayLike

from contracts.errors import InvalidValue
from rewards.signals.audit import Accuracy, VersionAudit, audit_of_sample, rogan_gladen, together, why_different
from rewards.signals.estimates import Estimate, mean_of, pooled, t_probability, t_quantile
from rewards.sums import Sums
from tests.each_case import each_case
from tests.unit.rewards.signals.crowds import sums_of


def test_sums_of_parts_add_up_to_the_sums_of_the_whole() -> None:
    values = np.random.default_rng(0).random(100)
    whole = sums_of(values[:30]).plus(sums_of(values[30:]))
    assert whole == pytest.approx(sums_of(values))
    assert mean_of(whole) == pytest.approx((values.mean(), values.std(ddof=1) / 10, 99))


@pytest.mark.parametrize("values", [[], [0.7]])
def test_fewer_than_two_values_have_no_interval(values: list[float]) -> None:
    assert mean_of(sums_of(values)).interval() == (-math.inf, math.inf)
    assert VersionAudit(silent=Sums(5), audited_silent=sums_of(values)).corrected().error == math.inf
    assert VersionAudit().corrected().error == math.inf


def test_an_interval_of_few_values_is_students() -> None:
    values = [0.2, 0.4, 0.9]  # mean 0.5, deviation 0.360555
    low, high = mean_of(sums_of(values)).interval()
    margin = 4.302653 * 0.360555 / math.sqrt(3)
    assert (low, high) == pytest.approx((0.5 - margin, 0.5 + margin), abs=1e-5)
    assert Estimate(0.5, 0.1).interval() == pytest.approx((0.304, 0.696), abs=1e-3)


def test_students_interval_covers_what_it_says_where_a_normal_one_does_not() -> None:
    dice, covered, normal = np.random.default_rng(4), 0, 0
    for _ in range(4_000):
        estimate = mean_of(sums_of(dice.normal(0.5, 0.1, 5)))
        low, high = estimate.interval()
        covered += low <= 0.5 <= high
        normal += abs(estimate.value - 0.5) <= 1.96 * estimate.error
    assert covered / 4_000 == pytest.approx(0.95, abs=0.015)
    assert normal / 4_000 < 0.9


def test_errors_of_parts_add_up_with_satterthwaites_degrees() -> None:
    both = pooled(0.3, [Estimate(0.0, 0.3, 4), Estimate(0.0, 0.4, 9), Estimate(0.0, 0.0, 1)])
    assert both == pytest.approx((0.3, 0.5, 0.5**4 / (0.3**4 / 4 + 0.4**4 / 9)))
    assert pooled(0.3, [Estimate(0.0, math.inf, 0.0)]).error == math.inf
    assert pooled(0.3, [Estimate(0.0, 0.0, 7), Estimate(0.0, 0.0, 2)]) == (0.3, 0.0, 2)


def test_where_there_is_a_reward_it_counts_and_the_audit_elsewhere() -> None:
    known = VersionAudit(
        rewarded=sums_of([1.0] * 60 + [0.0] * 20), silent=Sums(20), audited_silent=sums_of([0.0, 0.5] * 5)
    )
    found = known.corrected()
    assert found.value == pytest.approx(0.8 * 0.75 + 0.2 * 0.25)
    measured, silent = mean_of(known.rewarded), mean_of(known.audited_silent)
    between = 0.8 * 0.2 / 100 * 0.5**2
    assert found.error == pytest.approx(math.sqrt((0.8 * measured.error) ** 2 + (0.2 * silent.error) ** 2 + between))
    everybody = VersionAudit(rewarded=sums_of([1.0, 0.0]))
    assert everybody.corrected() == mean_of(everybody.rewarded)
    nobody = VersionAudit(silent=Sums(9), audited_silent=sums_of([0.2, 0.4]))
    assert nobody.corrected() == mean_of(sums_of([0.2, 0.4]))


def test_samples_one_by_one_make_what_is_known() -> None:
    samples = [(1.0, None, True), (0.5, 0.25, False), (None, 0.75, False), (None, None, False)]
    known = together(audit_of_sample(share, audited, is_said=said) for share, audited, said in samples)
    assert known == VersionAudit(
        said=sums_of([1.0]), rewarded=sums_of([1.0, 0.5]), silent=Sums(2), audited=sums_of([0.25]),
        compared=sums_of([0.5]), differences=sums_of([-0.25]), audited_silent=sums_of([0.75]),
    )  # fmt: skip
    assert known.num == 4


def compared(audit: ArrayLike, reward: ArrayLike) -> VersionAudit:
    audits, rewards = np.asarray(audit, np.float64), np.asarray(reward, np.float64)
    return VersionAudit(audited=sums_of(audits), compared=sums_of(rewards), differences=sums_of(audits - rewards))


def test_an_audit_that_means_the_reward_is_taken() -> None:
    dice = np.random.default_rng(5)
    reward = (dice.random(800) < 0.6).astype(float)
    errs = dice.random(800) < 0.1
    assert why_different(compared(np.where(errs, 1 - reward, reward), reward)) == ""
    assert why_different(compared(reward, reward)) == ""
    assert why_different(compared(np.ones(50), np.ones(50))) == ""


@pytest.mark.parametrize(
    ("audit", "reward", "says"),
    [
        (np.ones(29), np.ones(29), "only 29 answers have both .* takes 30"),
        (np.full(400, 0.35), np.arange(400) % 5 > 0, r"lies -45% of the range from the reward"),
        (np.arange(400) % 2, np.arange(400) // 2 % 2, "are not surely correlated"),  # as good, of other answers
        (np.arange(400) % 2, 1 - np.arange(400) % 2, "are not surely correlated"),
        (np.ones(400) * 0.5, np.arange(400) % 2, "are not surely correlated"),  # the same of everything
        (np.arange(40) % 2, np.roll(np.arange(40) % 2, 0) * (np.arange(40) > 3), r"\(.* to .*\)"),  # 40 cannot tell
    ],
)  # fmt: skip
def test_an_audit_of_something_else_is_refused(audit: ArrayLike, reward: ArrayLike, says: str) -> None:
    assert re.search(says, why_different(compared(audit, reward)))


def test_a_judges_own_errors_are_no_difference() -> None:
    """It says yes to 90% of the good and 40% of the bad; of 60% good that is 70%, and corrected 60%."""
    reward = np.repeat([1.0, 0.0], [1200, 800])
    audit = np.concatenate([np.arange(1200) % 10 > 0, np.arange(800) % 5 < 2])
    assert "+10%" in why_different(compared(audit, reward))
    assert why_different(compared(audit, reward), Accuracy(0.9, 0.6, 5000, 5000)) == ""


def test_a_judge_that_errs_is_inverted_and_its_own_uncertainty_counts() -> None:
    said_good = Estimate(0.6 * 0.9 + 0.4 * 0.2, 0.01)
    known = rogan_gladen(said_good, Accuracy(0.9, 0.8))
    assert known[:2] == pytest.approx((0.6, 0.01 / 0.7))
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


# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values of Student's t.
TABLE = [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.975, 5, 2.571), (0.975, 9, 2.262),
    (0.975, 10, 2.228), (0.975, 29, 2.045), (0.975, 30, 2.042), (0.975, 60, 2.000), (0.975, 100, 1.984),
    (0.90, 1, 3.078), (0.95, 7, 1.895), (0.99, 3, 4.541), (0.995, 4, 4.604), (0.999, 2, 22.327), (0.999, 12, 3.930),
]  # fmt: skip


@each_case(("probability", "degrees", "wanted"), TABLE)
def test_published_values(probability: float, degrees: int, wanted: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(wanted, abs=6e-4)
    assert t_quantile(1 - probability, degrees) == pytest.approx(-wanted, abs=6e-4)


def test_where_there_is_a_formula() -> None:
    for probability in (0.5, 0.6, 0.9, 0.975, 0.9999):
        assert t_quantile(probability, 1.0) == pytest.approx(math.tan(math.pi * (probability - 0.5)), abs=1e-9)
        share = 4.0 * probability * (1.0 - probability)
        two = 2.0 * (probability - 0.5) * math.sqrt(2.0 / share)
        assert t_quantile(probability, 2.0) == pytest.approx(two, abs=1e-9)


def test_many_degrees_are_the_normal_and_broken_ones_lie_between() -> None:
    assert t_quantile(0.975, math.inf) == NormalDist().inv_cdf(0.975)
    assert t_quantile(0.975, 999_999.0) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-5)
    assert t_quantile(0.975, 5) < t_quantile(0.975, 4.5) < t_quantile(0.975, 4)


@pytest.mark.parametrize("degrees", [0.5, 1.0, 3.7, 40.0, 5000.0])
def test_the_quantile_inverts_the_probability(degrees: float) -> None:
    for value in (-30.0, -1.0, 0.0, 0.3, 2.0, 9.0):
        probability = t_probability(value, degrees)
        if 1e-9 < probability < 1 - 1e-9:
            assert t_quantile(probability, degrees) == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_the_probability_is_the_area_under_the_density() -> None:
    for degrees in (2.5, 8.0):
        values = np.linspace(0.0, 1.7, 20_001)
        constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
        density = constant * (1 + values**2 / degrees) ** (-(degrees + 1) / 2)
        assert t_probability(1.7, degrees) == pytest.approx(0.5 + float(np.trapezoid(density, values)), abs=1e-8)
