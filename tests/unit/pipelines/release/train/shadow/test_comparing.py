"""The paired tests of the shadow, with versions whose quality is known."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.release.train.shadow.comparing import (
    GRADED,
    LEAST_LOSS,
    ShadowComparison,
    compare_marks,
    num_testable,
    sees,
)

LEVEL, NUM = 0.002, 500
Draw = np.random.Generator


def bits(draw: Draw, good: float, loss: float, differing: float) -> tuple[list[float], list[float]]:
    """Values of two versions, 1 is good: the old one has `good`, the new one is worse by `loss`; `differing`: share of the pairs."""
    losing, winning = (differing + loss) / 2.0, (differing - loss) / 2.0
    kinds = draw.choice(4, NUM, p=[good - losing, losing, winning, 1.0 - good - winning])
    return [float(kind in {0, 2}) for kind in kinds], [float(kind in {0, 1}) for kind in kinds]


def a_shadow(draw: Draw, loss: float = 0.0, differing: float = 0.2, graded_good: float = 0.8) -> list[ShadowComparison]:
    """A graded mark that may be worse, a rare one, and marks that never or hardly differ."""
    mine, theirs = bits(draw, graded_good, loss, differing)
    refusing, refused = bits(draw, 0.97, 0.0, 0.02)
    long, cut = bits(draw, 0.9, 0.0, 0.1)
    new = [
        {GRADED: a, "refuses": 1.0 - b, "truncated": 1.0 - c, "empty": 0.0}
        for a, b, c in zip(mine, refusing, long, strict=True)
    ]
    old = [
        {GRADED: a, "refuses": 1.0 - b, "truncated": 1.0 - c, "empty": 0.0}
        for a, b, c in zip(theirs, refused, cut, strict=True)
    ]
    return compare_marks(new, old, LEVEL)


def refusals(num: int, **version: float) -> float:
    draw = np.random.default_rng(15)
    return sum(any(item.is_worse for item in a_shadow(draw, **version)) for _ in range(num)) / num


@pytest.mark.slow
def test_a_version_that_is_no_worse_is_hardly_ever_refused() -> None:
    assert refusals(500) <= LEVEL


@pytest.mark.slow
def test_a_version_that_is_much_worse_is_refused() -> None:
    assert refusals(100, loss=0.1, differing=0.15) >= 0.98
    assert refusals(100, loss=0.1, differing=0.12) == 1.0


@pytest.mark.parametrize("loss", [0.02, 0.04])
def test_a_small_loss_is_left_to_the_users(loss: float) -> None:
    assert refusals(100, loss=loss, differing=0.05) <= 0.2


def test_beyond_chance_is_not_enough_and_the_words_say_what_was_lost() -> None:
    new, old = [{"empty": float(n < 22)} for n in range(NUM)], [{"empty": 0.0} for _ in range(NUM)]
    [found] = compare_marks(new, old, LEVEL)
    assert found.paired.p_worse < 1e-6
    assert found.loss < LEAST_LOSS
    assert not found.is_worse
    [worse] = compare_marks([{"empty": float(n < 30)} for n in range(NUM)], old, LEVEL)
    assert worse.is_worse
    assert worse.words == "empty 0.060 against 0.000, 30 lost and 0 won, p = 9.3e-10 (limit 0.002)"
    assert (worse.facts["verdict"], worse.facts["difference"], found.facts["verdict"]) == ("worse", 0.06, "fine")


def test_a_mark_that_one_answer_lacks_is_not_compared() -> None:
    [found] = compare_marks([{"empty": 0.0}, {"empty": 0.0, GRADED: 0.5}], [{"empty": 1.0}, {"empty": 0.0}], LEVEL)
    assert (found.name, found.paired.num, found.paired.wins) == ("empty", 2, 1)
    assert compare_marks([], [], LEVEL) == []


def test_values_between_0_and_1_are_compared_by_random_signs() -> None:
    draw = np.random.default_rng(3)
    theirs = draw.uniform(0.2, 0.9, NUM)
    mine = np.clip(theirs - 0.1 + draw.normal(0.0, 0.2, NUM), 0.0, 1.0)
    [found] = compare_marks([{GRADED: float(v)} for v in mine], [{GRADED: float(v)} for v in theirs], LEVEL)
    assert found.is_worse
    [same] = compare_marks([{GRADED: float(v)} for v in theirs], [{GRADED: float(v)} for v in theirs], LEVEL)
    assert not same.is_worse


def test_the_level_is_divided_among_the_tests_that_could_refuse() -> None:
    assert [num_testable(differing, 0.002) for differing in ([0, 0], [100, 3, 0], [100, 100, 2], [10, 10, 10], [])] == [
        1, 1, 2, 3, 1,
    ]  # fmt: skip


def test_what_it_can_see_is_told() -> None:
    draw = np.random.default_rng(1)
    assert sees(a_shadow(draw)).endswith("points of graded")
    assert 5.0 < float(sees(a_shadow(draw)).split()[1]) < 12.0
    few = compare_marks([{GRADED: 1.0}, {GRADED: 0.0}], [{GRADED: 1.0}, {GRADED: 0.0}], LEVEL)
    assert sees(few) == "too few to see graded"
    marks = [{"empty": 0.0, "refuses": float(number < 40)} for number in range(NUM)]
    assert sees(compare_marks(marks, marks[::-1], LEVEL)) == "sees 6.7 points of every mark"
    assert sees([]) == "nothing could be compared"
