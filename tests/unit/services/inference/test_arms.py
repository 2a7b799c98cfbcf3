"""Which arm answers: by version, by minimum, by draw; and what an engine holds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.arms import DRAWN, draw_arm
from contracts.assignments import SLOTS, Assignment
from runtime.database import Database
from services.inference.arms import Assignments, ChosenArm, choose_arm, has_draw, served_arms
from tests.each_case import each_case
from tests.unit.services.inference.test_versions_asked import assign


def arms(**versions: int | None) -> dict[str, Assignment]:
    """Arms by version; the drawn ones with 30% each."""
    return {
        name: Assignment("demo", name, version, 0.3 if name in DRAWN else 0.0, 1) for name, version in versions.items()
    }


FOUR = arms(holdout=2, learning=9, canary=8, live=7, candidate=10, training=50)


def test_a_unit_gets_the_arm_and_the_probability_of_the_nested_draw() -> None:
    found = Counter[ChosenArm]()
    for number in range(4000):
        chosen, drawn = choose_arm(FOUR, "demo", unit=f"t/{number}", secret=b"s"), draw_arm(FOUR, f"t/{number}", b"s")
        assert (chosen.name, chosen.probability) == drawn
        found[chosen] += 1
    assert {(arm.name, arm.model): round(arm.probability, 3) for arm in found} == {
        ("holdout", "demo@v2"): 0.3,
        ("learning", "demo@v9"): 0.21,
        ("canary", "demo@v8"): 0.147,
        ("live", "demo"): 0.343,
    }
    for arm, num in found.items():
        assert num / 4000 == pytest.approx(arm.probability, abs=0.04)


@given(st.sets(st.sampled_from(SLOTS)), st.text())
def test_an_arm_that_no_engine_serves_gets_nobody_and_takes_no_probability(served: set[str], unit: str) -> None:
    chosen = choose_arm(FOUR, "demo", unit=unit, served=served)
    assert chosen.name in {*served, "live"}
    assert chosen.name != "candidate", "it waits for the gate"
    if served.isdisjoint(DRAWN):
        assert chosen == ChosenArm("live", 1.0, "demo")


def test_without_a_unit_nothing_is_drawn() -> None:
    for held in ({}, FOUR, arms(live=7), arms(live=7, canary=None)):
        assert choose_arm(held, "demo") == ChosenArm("live", 1.0, "demo")
    assert (has_draw(FOUR), has_draw(arms(live=7, canary=None)), has_draw(arms(live=7, candidate=8))) == (
        True,
        False,
        False,
    )


def test_a_pinned_request_goes_to_whoever_holds_the_version() -> None:
    for version, name in (
        (7, "live"),
        (8, "canary"),
        (9, "learning"),
        (2, "holdout"),
        (10, "candidate"),
        (50, "pinned"),
    ):
        assert choose_arm(FOUR, "demo", unit="t/1", version=version) == ChosenArm(name, 1.0, f"demo@v{version}")
    twice = arms(live=7, learning=8, canary=8)
    assert choose_arm(twice, "demo", version=8, served={"live", "canary"}).name == "canary"
    assert choose_arm(twice, "demo", version=8, served={"live"}).name == "learning", "the refusal names a slot"


@each_case(
    ("held", "served", "arm"),
    [
        (arms(live=7), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=9, canary=10), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=6, canary=7), SLOTS, ChosenArm("canary", 1.0, "demo@v7")),
        (arms(live=6, canary=6, learning=9, candidate=8), SLOTS, ChosenArm("learning", 1.0, "demo@v9")),
        (arms(live=6, canary=7, candidate=8), ("live", "candidate"), ChosenArm("candidate", 1.0, "demo@v8")),
        (arms(live=6, canary=7, candidate=8), ("live",), ChosenArm("live", 1.0, "demo")),
        (arms(live=6, candidate=5), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=6, training=50), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=None, candidate=8), SLOTS, ChosenArm("live", 1.0, "demo")),
        ({}, SLOTS, ChosenArm("live", 1.0, "demo")),
    ],
)
def test_a_minimum_goes_to_live_unless_only_another_arm_meets_it(
    held: dict[str, Assignment], served: tuple[str, ...], arm: ChosenArm
) -> None:
    assert choose_arm(held, "demo", unit="t/1", minimum=7, served=served) == arm


def test_an_arm_is_served_once_a_slot_holds_its_version() -> None:
    held = arms(live=7, canary=8, learning=9, holdout=2)
    assert served_arms(held, {}) == {"live"}
    assert served_arms(held, {"canary": {6}, "holdout": {3}, "learning": {8}}) == {"live"}
    assert served_arms(held, {"canary": {6, 8}, "holdout": {2}, "learning": {9}}) == {
        "live", "canary", "holdout", "learning",
    }  # fmt: skip
    assert served_arms(held, {"learning": {8}, "canary": {7}}, (7, 8, 9)) == {"live", "learning"}
    assert served_arms(arms(live=7, learning=None), {"learning": {8}}) == {"live"}


async def test_the_learning_arm_goes_on_with_the_version_before_until_it_is_emptied(database: Database) -> None:
    assignments = Assignments(database, "demo")
    seen = []
    for version in (3, 4, 5, None, 7):
        assign(database, version, "learning", 0.05)
        assignments.look_again()
        await assignments.held()
        seen.append(assignments.learned)
    assert seen == [(3,), (3, 4), (3, 4, 5), (), (7,)]
    for version in (None, 9):
        assign(database, version, "learning", 0.05)  # emptied by a rollback between two looks
    assignments.look_again()
    await assignments.held()
    assert assignments.learned == (9,)
