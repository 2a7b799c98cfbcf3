from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from rewards.signals.estimates import t_probability, t_quantile
from tests.each_case import each_case

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
