"""The simulated day: its traffic is what its page says, and moving cards beats every split that stays."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pool.__main__ import measure
from benchmarks.pool.day import CARD_TOKENS, fixed, live
from benchmarks.pool.traffic import DAY, traffic


def test_a_day_has_one_peak_of_the_stated_size() -> None:
    asked = traffic(8)
    smooth = asked.reshape(-1, 3600).mean(axis=1)
    assert len(asked) == DAY
    assert smooth.max() / asked.mean() == pytest.approx(1.7, rel=0.05)
    assert smooth.max() / smooth.min() == pytest.approx(3.3, rel=0.1)


def test_a_day_that_fills_its_cards_leaves_none_idle_and_one_that_is_too_much_is_late() -> None:
    full = live(np.full(DAY, 2 * CARD_TOKENS), 4, fixed(2))
    assert (full.late, full.moves) == (0, 0)
    assert full.idle_share < 0.01
    assert live(np.full(DAY, 2.2 * CARD_TOKENS), 4, fixed(2)).late > 0


@pytest.mark.slow
def test_cards_that_move_do_more_than_any_split_and_nobody_waits_longer() -> None:
    day = measure(8)
    assert day["policy"]["late"] == 0
    assert day["policy"]["idle_share"] < day["fixed"]["idle_share"] / 2
    assert day["oracle"]["idle_share"] < day["policy"]["idle_share"], "nobody does better than by knowing"
    assert day["policy"]["samples_learned"] > 2 * day["fixed"]["samples_learned"]
