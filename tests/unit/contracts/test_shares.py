from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.shares import limit_shares


def shares_of(weights: list[float], owners: list[str]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for owner, weight in zip(owners, weights, strict=True):
        totals[owner] += weight  # type: ignore[assignment]
    return {owner: total / sum(weights) for owner, total in totals.items()}


def test_who_has_too_much_is_cut_to_the_limit_and_nobody_else_is_touched() -> None:
    owners = ["a"] * 60 + [f"u{number}" for number in range(40)]
    weights = limit_shares([1.0] * 100, owners, 0.1)
    assert weights[60:] == [1.0] * 40
    assert shares_of(weights, owners)["a"] == pytest.approx(0.1)


def test_a_batch_within_the_limit_stays_as_it_is() -> None:
    assert limit_shares([1.0, 0.5, 0.0], ["a", "b", "c"], 0.8) == [1.0, 0.5, 0.0]


def test_too_few_owners_for_the_limit_stay_as_they_are() -> None:
    assert limit_shares([1.0, 5.0], ["a", "b"], 0.2) == [1.0, 5.0]
    assert limit_shares([], [], 0.2) == []


@given(
    st.lists(st.tuples(st.floats(0.001, 100.0), st.sampled_from("abcdefghijklmnop")), min_size=1, max_size=60),
    st.sampled_from([0.1, 0.2, 1 / 3, 0.5, 1.0]),
)
def test_no_owner_ends_above_the_limit_where_there_are_enough_of_them(
    samples: list[tuple[float, str]], limit: float
) -> None:
    before, owners = [weight for weight, _ in samples], [owner for _, owner in samples]
    after = limit_shares(before, owners, limit)
    assert all(0 <= new <= old for old, new in zip(before, after, strict=True))
    if len(set(owners)) * limit >= 1:
        assert max(shares_of(after, owners).values()) <= limit + 1e-6
