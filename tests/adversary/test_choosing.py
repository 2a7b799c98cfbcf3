"""An attacker with a tenth of the requests, who sees the version of each answer, moves no verdict; in full: `python -m tests.adversary.choosing`."""

from __future__ import annotations

import pytest

from tests.adversary.attacks import arms
from tests.adversary.attacks.attack import Attack
from tests.adversary.choosing import STRATEGIES, Attacker, end_of

FAST = ("1 tenant", "knows the draw, comes with one arm alone")
[COMPUTED, *OF_A_TENANT] = arms.attacks()


def test_names_that_are_computed_do_not_land_in_the_canary() -> None:
    assert COMPUTED.run() is None


@pytest.mark.slow
@pytest.mark.parametrize("attack", OF_A_TENANT, ids=lambda attack: attack.name)
def test_no_attack_gets_through(attack: Attack) -> None:
    assert attack.run() is None


@pytest.mark.parametrize(
    ("home", "name"),
    [
        pytest.param(home, name, marks=[] if (home, name) == FAST else pytest.mark.slow)
        for home in ("1 tenant", "10 tenants")
        for name in STRATEGIES
    ],
)
def test_the_verdict_is_that_of_the_honest(home: str, name: str) -> None:
    product, choose = STRATEGIES[name]
    assert end_of(home, product, 100, Attacker(100, choose))[0] == end_of(home, product, 100, None)[0]


@pytest.mark.parametrize(
    "name", ["votes against a good canary", pytest.param("votes for a bad canary", marks=pytest.mark.slow)]
)
def test_the_attacks_work_where_nobody_knows_who_asked(name: str) -> None:
    product, choose = STRATEGIES[name]
    honest = end_of("3 tenants", product, 100, None, knows_parties=False)[0]
    attacked = end_of("3 tenants", product, 100, Attacker(100, choose), knows_parties=False)[0]
    assert honest != attacked
