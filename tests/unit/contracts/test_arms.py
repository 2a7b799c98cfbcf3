"""The draw of arms: nested, sticky, with the probability that it logs."""

from __future__ import annotations

from collections import Counter

import pytest

from contracts.arms import control_fraction, draw_arm, is_control, unit_of
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, Assignment
from contracts.draws import hash_of

SECRET = b"of a home"
UNITS = [f"acme/user{number}" for number in range(6_000)]


def arms(
    *, canary: float = 0.2, learning: float = 0.05, holdout: float = 0.02, version: int = 7
) -> dict[str, Assignment]:
    rows = [(LIVE, 5, 1.0), (CANARY, version, canary), (LEARNING, 9, learning), (HOLDOUT, 0, holdout)]
    return {name: Assignment("p", name, number, share, 1) for name, number, share in rows}


def test_every_arm_gets_its_logged_share() -> None:
    drawn = Counter(draw_arm(arms(), unit, SECRET) for unit in UNITS)
    assert sum(draw.probability for draw in drawn) == pytest.approx(1.0)
    for draw, count in drawn.items():
        spread = (draw.probability * (1 - draw.probability) / len(UNITS)) ** 0.5
        assert count / len(UNITS) == pytest.approx(draw.probability, abs=5 * spread)


def test_a_growing_share_only_adds_units() -> None:
    before = {unit for unit in UNITS if draw_arm(arms(canary=0.05), unit, SECRET).arm == CANARY}
    after = {unit for unit in UNITS if draw_arm(arms(canary=0.2), unit, SECRET).arm == CANARY}
    assert before < after


@pytest.mark.slow
def test_the_next_train_draws_other_people_and_the_holdout_keeps_its_own() -> None:
    def people(arm: str, version: int) -> set[str]:
        return {unit for unit in UNITS if draw_arm(arms(version=version), unit, SECRET).arm == arm}

    both = people(CANARY, 7) & people(CANARY, 8)
    assert len(both) / len(people(CANARY, 7)) == pytest.approx(0.2, abs=0.04)
    assert people(HOLDOUT, 7) == people(HOLDOUT, 8)
    assert people(LEARNING, 7) == people(LEARNING, 8)


def test_nothing_is_drawn_for_an_arm_without_slot_version_or_share() -> None:
    for held, served in (
        (arms(), ()),
        (
            {name: arm._replace(version=None) for name, arm in arms().items() if name != LIVE},
            (CANARY, LEARNING, HOLDOUT),
        ),
        (arms(canary=0.0, learning=0.0, holdout=0.0), (CANARY, LEARNING, HOLDOUT)),
    ):
        assert {draw_arm(held, unit, SECRET, served) for unit in UNITS[:500]} == {(LIVE, 1.0)}


def test_controls_are_independent_of_the_canary_and_only_grow() -> None:
    small = {unit for unit in UNITS if is_control(unit, 7, 0.01, 4.0, SECRET)}
    large = {unit for unit in UNITS if is_control(unit, 7, 0.05, 4.0, SECRET)}
    assert small < large
    assert len(large) / len(UNITS) == pytest.approx(control_fraction(0.05, 4.0), abs=0.02)
    canary = {unit for unit in UNITS if draw_arm(arms(), unit, SECRET).arm == CANARY}
    assert len(large & canary) / len(large) == pytest.approx(len(canary) / len(UNITS), abs=0.04)


def test_names_that_were_chosen_with_another_secret_land_in_the_canary_no_more_often() -> None:
    """Salts are in the code, so a client that has it computes all but the home's secret."""
    for guess in (b"", b"of another home"):
        chosen = [unit for unit in UNITS if draw_arm(arms(), unit, guess).arm == CANARY]
        landed = sum(draw_arm(arms(), unit, SECRET).arm == CANARY for unit in chosen) / len(chosen)
        assert landed == pytest.approx(0.2 * 0.95 * 0.98, abs=0.06)
        controls = [unit for unit in UNITS if is_control(unit, 7, 0.05, 4.0, guess)]
        assert sum(is_control(unit, 7, 0.05, 4.0, SECRET) for unit in controls) / len(controls) < 0.3


def test_the_hash_in_the_log_tells_nothing_of_the_draw() -> None:
    low = [unit for unit in UNITS if hash_of(unit) < "4"]
    assert sum(draw_arm(arms(), unit, SECRET).arm == CANARY for unit in low) / len(low) == pytest.approx(
        0.186, abs=0.05
    )


def test_a_request_without_the_wanted_unit_is_drawn_by_the_next_smaller_one() -> None:
    given = {"tenant": "acme", "completion_id": "chatcmpl-1"}
    assert unit_of("user", person="ann", session_id="s", **given) == ("user", "acme/ann")
    assert unit_of("user", person=None, session_id="s", **given) == ("session", "acme/s")
    assert unit_of("session", person="ann", session_id="s", **given) == ("session", "acme/s")
    assert unit_of("session", person="ann", session_id=None, **given) == ("answer", "chatcmpl-1")
    assert unit_of("answer", person="ann", session_id="s", **given) == ("answer", "chatcmpl-1")
