"""Trains of the benchmark end as their truth wants it: the statistics in small, as `python -m benchmarks.release` runs them in full."""

from __future__ import annotations

import pytest

from benchmarks.release.cases import CASES, DEFAULTS, FAST_SETTINGS
from tests.worlds.trains.journey import travel
from tests.worlds.trains.products import Product

SEEDS = (0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_equal_version_arrives(seed: int) -> None:
    assert travel(Product(), FAST_SETTINGS, seed, look=5.0, growth=0.1).kind == "arrived"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_version_that_is_worse_is_revoked(seed: int) -> None:
    found = travel(Product(loss=0.15), FAST_SETTINGS, seed, look=5.0, growth=0.1)
    assert (found.kind, "Reward" in found.reason) == ("revoked", True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broken_version_leaves_at_the_first_share(seed: int) -> None:
    from_five = DEFAULTS.model_copy(update={"stages": (0.05, 0.2, 0.5)})
    found = travel(Product(faults={"misshapen": (0.02, 0.32)}), from_five, seed, look=1.0, growth=0.0)
    assert (found.kind, found.share) == ("revoked", 0.05)
    assert found.seconds < 100.0


ODD = (
    "silence in the canary",
    "10% of the canary's records lost",
    "slow bad news, -5",
    "clocks off: 20% of gateways -10 min, 5% +1 h",
    "the same people, and 30% of the canary's records lost",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_products_end_as_wanted(name: str) -> None:
    case = CASES[name]
    assert travel(case.product, case.settings, 0, look=5.0, growth=0.1).kind in case.wanted
