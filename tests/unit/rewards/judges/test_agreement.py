from __future__ import annotations

import numpy as np
import pytest

from rewards.judges.admission import agreed, kappa, wilson


def value(labels: list[int], verdicts: list[int], num_levels: int, *, weighted: bool = False) -> float | None:
    found = kappa(labels, verdicts, num_levels, weighted=weighted)
    return None if found is None else found.value


def test_kappa_of_a_published_table() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o = 0.70, p_e = 0.50.
    labels = [1] * 25 + [0] * 25
    verdicts = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert value(labels, verdicts, 2) == pytest.approx(0.4)
    assert value(labels, verdicts, 2, weighted=True) == pytest.approx(0.4)


def test_weighted_kappa_forgives_neighbours() -> None:
    labels, near, far = [0, 1, 2] * 20, [0, 1, 2] * 15 + [1, 2, 1] * 5, [0, 1, 2] * 15 + [2, 1, 0] * 5
    near_plain, near_weighted = value(labels, near, 3), value(labels, near, 3, weighted=True)
    far_weighted = value(labels, far, 3, weighted=True)
    assert near_plain is not None
    assert near_weighted is not None
    assert far_weighted is not None
    assert near_weighted > near_plain
    assert near_weighted > far_weighted


def test_weighted_kappa_by_hand() -> None:
    # Observed disagreement 1/4 * 1/2; expected: labels (.5, .25, .25), verdicts (.25, .5, .25).
    expected = (
        0.5 * 0.5 * 0.5 + 0.5 * 0.25 * 1 + 0.25 * 0.25 * 0.5 + 0.25 * 0.25 * 0.5 + 0.25 * 0.25 * 1 + 0.25 * 0.5 * 0.5
    )
    assert value([0, 0, 1, 2], [0, 1, 1, 2], 3, weighted=True) == pytest.approx(1 - 0.125 / expected)


def test_where_chance_explains_everything_there_is_no_kappa() -> None:
    assert value([1, 1, 1], [1, 1, 1], 2) is None
    assert value([], [], 2) is None
    assert value([1, 1, 0], [1, 1, 1], 2) == pytest.approx(0.0)


def test_the_interval_of_kappa_covers_the_truth() -> None:
    dice = np.random.default_rng(1)
    covered = 0
    for seed in range(60):
        labels = dice.integers(0, 2, 200)
        verdicts = np.where(dice.random(200) < 0.85, labels, 1 - labels)  # true kappa: 0.7
        found = kappa(list(labels), list(verdicts), 2, seed=seed)
        assert found is not None
        covered += found.low <= 0.7 <= found.high
    assert covered >= 53


def test_wilson() -> None:
    found = wilson(8, 10)
    assert found is not None
    assert (found.value, round(found.low, 4), round(found.high, 4)) == (0.8, 0.4902, 0.9433)
    none, every = wilson(0, 270), wilson(5, 5)
    assert none is not None
    assert every is not None
    assert (none.low, round(none.high, 4)) == (0.0, 0.014)
    assert every.high == 1.0
    assert wilson(0, 0) is None


def test_sensitivity_and_specificity() -> None:
    labels, verdicts = [1.0, 1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.5, 0.0, 0.5]
    q1, q0 = (agreed(labels, verdicts, passes=passes) for passes in (True, False))
    assert q1 is not None
    assert q0 is not None
    assert [q1.value, q0.value] == pytest.approx([2 / 3, 0.5])
    assert agreed([0.0], [1.0], passes=True) is None
