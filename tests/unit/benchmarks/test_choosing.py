"""An attacker with a tenth of the requests, who sees the version of each answer, moves no verdict; in full: `python -m benchmarks.release.choosing`."""

from __future__ import annotations

import pytest

from benchmarks.release.choosing import HOMES, STRATEGIES, Attacker, end_of

FAST = {("3 tenants", "votes against a good canary"), ("1 tenant", "knows the draw, comes with one arm alone")}


@pytest.mark.parametrize(
    ("home", "name"),
    [
        pytest.param(home, name, marks=[] if (home, name) in FAST else pytest.mark.slow)
        for home in HOMES
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
    alone, attacked = (
        end_of("3 tenants", product, 100, who, knows_parties=False)[0] for who in (None, Attacker(100, choose))
    )
    assert alone != attacked
