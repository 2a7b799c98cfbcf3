from __future__ import annotations

import pytest

from contracts.draws import is_asked, is_audited, is_exploring

NAMES = [f"chatcmpl-{number}" for number in range(20_000)]


@pytest.mark.parametrize("draw", [is_asked, is_audited, is_exploring])
def test_the_share_drawn_is_the_probability_said(draw) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    for probability in (0.005, 0.1, 0.5):
        share = sum(draw(name, probability) for name in NAMES) / len(NAMES)
        assert share == pytest.approx(probability, abs=4 * (probability / len(NAMES)) ** 0.5)


def test_a_draw_is_the_same_everywhere_and_nested_in_that_of_a_higher_probability() -> None:
    assert [is_asked("chatcmpl-1", p) for p in (0.0, 1.0)] == [False, True]
    asked = {name for name in NAMES if is_asked(name, 0.1)}
    assert asked == {name for name in NAMES if is_asked(name, 0.1)}
    assert asked < {name for name in NAMES if is_asked(name, 0.2)}


def test_asking_and_auditing_draw_independently_and_a_secret_draws_anew() -> None:
    asked = {name for name in NAMES if is_asked(name, 0.1)}
    audited = {name for name in NAMES if is_audited(name, 0.1)}
    secret = {name for name in NAMES if is_audited(name, 0.1, b"s3cret")}
    for one, other in ((asked, audited), (audited, secret)):
        assert 100 <= len(one & other) <= 300  # one in a hundred of 20,000
