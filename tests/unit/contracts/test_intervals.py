import pytest

from contracts.intervals import share_interval


@pytest.mark.parametrize(
    ("share", "num", "expected"), [(0.8, 10, (0.490, 0.943)), (0.0, 270, (0.0, 0.014)), (1.0, 5, (0.566, 1.0))]
)
def test_the_score_interval(share: float, num: int, expected: tuple[float, float]) -> None:
    assert share_interval(share, num) == pytest.approx(expected, abs=5e-4)


def test_nothing_is_known_of_none() -> None:
    assert share_interval(0.0, 0) == (0.0, 1.0)


def test_more_answers_make_it_narrower() -> None:
    few, many = share_interval(0.3, 10), share_interval(0.3, 1000)
    assert few[0] < many[0] < 0.3 < many[1] < few[1]
