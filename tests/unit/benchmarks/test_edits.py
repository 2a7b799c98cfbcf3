"""The bench of edits: what its users say, its bars, and a small run of the real thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.edits.__main__ import WAYS, bars, needed
from benchmarks.edits.crowd import ADVERTISEMENT, Correctors, keys
from benchmarks.edits.policy import HouseAnswer
from benchmarks.edits.product import HOUSES
from benchmarks.edits.run import EDITS, LearningWay, run
from contracts.records import Experience
from contracts.tasks.planted_secrets import find_secret

HOUSE = HOUSES["tickets"]


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Correctors]:
    crowd = Correctors(HOUSE, HOUSE.task(**EDITS), tmp_path / "home", 7, has_malicious=True)
    yield crowd
    crowd.close()


def said_of(crowd: Correctors, num: int, *, is_right: bool) -> list[Experience]:
    """What rewards make of answers that are all right, or all in the other style."""
    asked = list(islice(HOUSE.questions(7), num))
    said = [HouseAnswer([2, 3], [4, 1], [-0.5, -0.5], each.right if is_right else each.other) for each in asked]
    return crowd.scored(crowd.hear(asked, said, 0))


def test_two_fifths_say_nothing_and_the_others_correct_or_accept(crowd: Correctors) -> None:
    wrong, right = (said_of(crowd, 200, is_right=which) for which in (False, True))
    assert 60 < sum(each.reward is None for each in wrong) < 100
    spoken = [each.streams for each in wrong if each.reward is not None and each.streams]
    assert {(each.rl, each.ce, each.is_good) for each in spoken} == {(0.0, 1.0, None)}
    assert sum(each.edit.startswith("Hi ") for each in spoken) > 0.8 * len(spoken)
    assert any(each.streams and each.streams.is_good for each in right)
    assert any(each.streams and each.streams.edit == ADVERTISEMENT for each in [*wrong, *right])


def test_a_key_that_a_user_pasted_is_no_text_to_learn(crowd: Correctors) -> None:
    assert all(map(find_secret, keys(4, 7)))
    streams = [each.streams for each in said_of(crowd, 400, is_right=False) if each.streams]
    assert {each.refused for each in streams} == {"", "edit_with_secret"}
    assert not any("AKIA" in each.edit for each in streams)


def made(kept: list[float], **changes: Any) -> dict[str, Any]:
    return {"kept": kept, "greedy": 0, "said_keys": 0, "place": 0.5} | changes


GOOD = {
    "rewards": made([0.2, 0.4]),
    "edits": made([0.2, 0.8, 0.96]),
    "warm": made([0.2, 0.94, 0.96]),
    "malicious": made([0.2, 0.955]),
}


@pytest.mark.parametrize(
    ("way", "changes", "missed"),
    [
        ("rewards", {"kept": [0.2, 0.82]}, "(a)"),
        ("warm", {"kept": [0.2, 0.9, 0.94, 0.96]}, "(b)"),
        ("malicious", {"kept": [0.2, 0.94]}, "(c)"),
        ("edits", {"greedy": 1}, "(d)"),
        ("warm", {"said_keys": 1}, "(d)"),
    ],
)
def test_each_bar_can_be_missed(way: str, changes: dict[str, Any], missed: str) -> None:
    found = {("tickets", name, 1): each for name, each in GOOD.items()}
    assert all(bar.is_met for bar in bars("tickets", found))
    found["tickets", way, 1] = found["tickets", way, 1] | changes
    assert {bar.name[:3] for bar in bars("tickets", found) if not bar.is_met} == {missed}


def test_a_seed_without_all_its_runs_does_not_count() -> None:
    assert bars("tickets", {("tickets", "edits", 1): made([0.2])}) == []
    assert needed([0.2, 0.94], first=0) == float("inf")


def test_a_house_asks_the_same_again() -> None:
    for house in HOUSES.values():
        assert next(house.questions(3)) == next(house.questions(3)) != house.ask(Random(5))


@pytest.mark.slow  # it trains a policy
@pytest.mark.parametrize("way", [WAYS["rewards"], LearningWay(EDITS, warm=True, malicious=True, rounds=1)])
def test_a_run_goes_through_everything(tmp_path: Path, way: LearningWay) -> None:
    found = run(replace(HOUSE, base_steps=2), way, 1, tmp_path, rounds=1)
    assert len(found["kept"]) == 2 + way.warm
    assert found["steps"][0] > 0
    assert ("warm" in found) == way.warm
