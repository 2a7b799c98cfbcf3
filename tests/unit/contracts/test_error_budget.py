"""The year's budget of false verdicts: no year spends more than it, whatever comes, and every version is still put to a test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import error_budget
from contracts.error_budget import (
    LEARNING,
    LEAST_LEVEL,
    PARTS,
    TRAINS,
    YEAR_SECONDS,
    BudgetLeft,
    BudgetPart,
    grant,
    spend,
)
from contracts.errors import StaleWrite
from contracts.tables import error_budget as table
from runtime.database import Database

DAY = 86_400.0
POLICY = "p"
PER_YEAR = 4.0


def a_year(part: BudgetPart, gap: float, wanted: float, *, years: float = 1.0) -> Iterator[tuple[float, float]]:
    """Time and level of versions that come one after another."""
    left, now = None, 0.0
    while now < years * YEAR_SECONDS:
        granted = grant(part, left, wanted, PER_YEAR, now)
        left = granted.left
        yield now, granted.level
        now += gap


@pytest.mark.parametrize(
    ("part", "gap", "wanted"),
    [
        (TRAINS, 21 * 60.0, 0.002),  # as fast as trains can follow each other
        # Each train changes over to the next version, which departs at once, and so does the one that was left.
        pytest.param(TRAINS, 300.0, 0.01, marks=pytest.mark.slow),
        (TRAINS, DAY / 4, 0.002),
        (TRAINS, 7 * DAY, 0.4),
        pytest.param(LEARNING, 600.0, 0.0002, marks=pytest.mark.slow),  # a version every ten minutes
    ],
)
def test_no_year_spends_more_than_its_budget(part: BudgetPart, gap: float, wanted: float) -> None:
    spent = list(a_year(part, gap, wanted, years=2.5))
    total, first = 0.0, 0
    for now, level in spent:
        total += level
        while spent[first][0] <= now - YEAR_SECONDS:
            total -= spent[first][1]
            first += 1
        assert total <= PARTS[part] * PER_YEAR + 1e-9
    # And what there is, is used.
    last_year = sum(level for now, level in spent if now >= 1.5 * YEAR_SECONDS)
    assert last_year >= min(0.89 * PARTS[part] * PER_YEAR, 0.99 * wanted * YEAR_SECONDS / gap)


@pytest.mark.slow
def test_false_verdicts_of_a_simulated_year_stay_within_the_budget_and_would_not_without_it() -> None:
    """Null versions, each revoked with the chance of its level: trains every 21 minutes, and a learning version every 10."""
    draw = random.Random(7)
    levels = [level for _, level in a_year(TRAINS, 21 * 60.0, 0.002)]
    levels += [level for _, level in a_year(LEARNING, 600.0, 0.0002)]
    years = [sum(draw.random() < level for level in levels) for _ in range(60)]
    assert sum(years) / len(years) <= PER_YEAR + 3 * (PER_YEAR / len(years)) ** 0.5
    assert len(list(a_year(TRAINS, 21 * 60.0, 0.002))) * 0.002 > 10 * PER_YEAR, "without a budget"
    assert min(levels) > 1e-6, "each is still put to a test"


def test_few_trains_have_their_full_level_all_year_and_a_burst_too() -> None:
    assert {level for _, level in a_year(TRAINS, DAY / 3, 0.002)} == {0.002}
    burst = [level for _, level in itertools.islice(a_year(TRAINS, 60.0, 0.002), 150)]
    assert set(burst) == {0.002}, "a tenth may be spent at once"


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e8), st.floats(1e-6, 0.49)), max_size=60),
    st.sampled_from([TRAINS, LEARNING]),
    st.floats(1e-3, 100.0),
)
def test_whatever_comes_nothing_is_overdrawn(
    versions: list[tuple[float, float]], part: BudgetPart, per_year: float
) -> None:
    left, now, most = None, 0.0, 0.1 * PARTS[part] * per_year
    for gap, wanted in versions:
        now += gap
        granted = grant(part, left, wanted, per_year, now)
        assert LEAST_LEVEL <= granted.level <= wanted
        assert -1e-12 <= granted.left.left <= most + 1e-12
        left = granted.left


def test_a_clock_that_was_set_back_refills_nothing() -> None:
    assert grant(TRAINS, BudgetLeft(0.0, 1e9), 0.002, PER_YEAR, 5e8).level == LEAST_LEVEL


def paid(database: Database, name: str, now: float, part: BudgetPart = TRAINS, wanted: float = 0.3) -> float:
    with database.transaction() as connection:
        return spend(connection, POLICY, part, name, wanted=wanted, per_year=PER_YEAR, now=now)


def test_a_comparison_that_goes_on_after_a_restart_spends_nothing_again(database: Database) -> None:
    first = paid(database, "v7 against v5", 0.0)
    assert first == 0.3
    assert paid(database, "v7 against v5", 1.0) == first
    assert paid(database, "v8 against v5", 1.0) == pytest.approx(0.02, rel=1e-3), "what is left of the tenth"
    assert paid(database, "v8 against v5", 1.0, LEARNING, 0.0002) == 0.0002, "the learning arm has its own part"
    with database.snapshot() as connection:
        shown = error_budget.read(connection, POLICY, 1.0 + YEAR_SECONDS)
    assert shown[TRAINS] == pytest.approx((PER_YEAR, 0.32))


def test_two_processes_do_not_spend_the_same(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    paid(database, "v7", 0.0)
    real = error_budget.grant

    def meanwhile(*arguments: object) -> object:
        monkeypatch.setattr(error_budget, "grant", real)
        connection.execute(table.update().values(epoch=9))
        return real(*arguments)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(error_budget, "grant", meanwhile)
    with database.transaction() as connection, pytest.raises(StaleWrite):
        spend(connection, POLICY, TRAINS, "v8", wanted=0.1, per_year=PER_YEAR, now=1.0)
