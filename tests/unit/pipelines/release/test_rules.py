"""The gate's rule on tables of values: what it refuses, what it calls proven, and what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pipelines.release.rules import ANCHOR, LIVE, GatedTask, compare_all, decide, refused_in_a_row

GRADERS = ("exact",)


def ones(right: int, num: int = 200) -> tuple[float, ...]:
    return (1.0,) * right + (0.0,) * (num - right)


def a_question(
    values: Mapping[int, Sequence[float]], task: str = "math", references: Mapping[str, int] | None = None
) -> GatedTask:
    return GatedTask(task, GRADERS, 0.01, references or {LIVE: 1}, values)


def test_a_version_that_lost_everything_is_refused_on_any_task() -> None:
    for task in ("math", "code", "calls", "essays"):
        found = decide([a_question({2: ones(0), 1: ones(140)}, task)], 2, {})
        assert not found.accepted
        assert found.reason.startswith(f"{task}: worse than v1 (live): 0.000 against 0.700, 140 lost and 0 won of 200")


def test_a_difference_that_chance_explains_is_no_refusal_however_large_it_looks() -> None:
    mine = [0.0] * 9 + [1.0] * 3 + [1.0] * 88
    theirs = [1.0] * 9 + [0.0] * 3 + [1.0] * 88
    found = decide([a_question({2: mine, 1: theirs})], 2, {})
    assert found.accepted, "six points lower, and p is 0.07"
    assert "sees" in found.reason


def test_it_is_compared_with_the_anchor_too() -> None:
    live, anchor, candidate = ones(184), ones(190), ones(178)
    references = {LIVE: 4, ANCHOR: 1}
    found = decide([a_question({5: candidate, 4: live, 1: anchor}, references=references)], 5, {})
    assert [item.role for item in found.comparisons if item.is_worse] == [ANCHOR]
    assert not found.accepted
    assert "worse than v1 (anchor)" in found.reason


def test_the_level_is_shared_by_all_comparisons() -> None:
    values = {5: ones(150), 4: ones(150), 1: ones(150)}
    two = [a_question(values, task, {LIVE: 4, ANCHOR: 1}) for task in ("math", "code")]
    assert {item.alpha for item in compare_all(two, 5)} == {0.005 / 4}
    one = compare_all([a_question(values, references={LIVE: 4, ANCHOR: 4})], 5)
    assert [(item.role, item.alpha) for item in one] == [(LIVE, 0.005)], "a version is compared with another once"


def test_one_task_that_suffers_is_enough() -> None:
    good = a_question({2: ones(190), 1: ones(150)}, "booking")
    bad = a_question({2: ones(100), 1: ones(150)}, "math")
    found = decide([good, bad], 2, {})
    assert not found.accepted
    assert found.reason.startswith("math: worse")
    assert found.proven_on == (), "what is refused is proven on nothing"


def test_who_is_better_beyond_chance_is_proven_against_the_anchor() -> None:
    values = {5: ones(190), 4: ones(180), 1: ones(150)}
    against_both = decide([a_question(values, references={LIVE: 4, ANCHOR: 1})], 5, {})
    assert against_both.accepted
    assert against_both.proven_on == ("math",)
    near = decide([a_question({5: ones(153), 4: ones(150), 1: ones(150)}, references={LIVE: 4, ANCHOR: 1})], 5, {})
    assert near.accepted
    assert near.proven_on == ()


def test_better_than_live_alone_is_not_proven() -> None:
    values = {5: ones(170), 4: ones(150), 1: ones(171)}
    assert decide([a_question(values, references={LIVE: 4, ANCHOR: 1})], 5, {}).proven_on == ()


def test_live_that_is_the_anchor_itself_proves_as_both() -> None:
    values = {5: ones(190), 4: ones(150)}
    assert decide([a_question(values, references={LIVE: 4, ANCHOR: 4})], 5, {}).proven_on == ("math",)


def test_what_is_ungated_is_said_in_the_reason() -> None:
    nothing = decide([], 2, {"chat": "only signals"})
    assert nothing.accepted
    assert nothing.reason == "unseen: no task is gated; ungated: chat (only signals)"
    some = decide([a_question({2: ones(150), 1: ones(150)})], 2, {"chat": "only signals"})
    assert some.reason.endswith("ungated: chat (only signals)")


def test_too_few_sentinels_say_so() -> None:
    found = decide([a_question({2: ones(0, 5), 1: ones(5, 5)})], 2, {})
    assert found.accepted
    assert "5 sentinels are too few to see anything" in found.reason


def test_values_between_are_compared_by_their_means() -> None:
    theirs = [0.25, 0.5, 0.75, 1.0] * 50
    mine = [value - 0.25 for value in theirs]
    (found,) = compare_all([a_question({2: mine, 1: theirs})], 2)
    assert found.is_worse
    assert (found.facts["test"], found.facts["discordant"]) == ("permutation", 200)


@pytest.mark.parametrize(
    ("history", "count"), [([], 0), ([True], 0), ([False, True, False, False], 2), ([False, False], 2)]
)
def test_refusals_in_a_row(history: list[bool], count: int) -> None:
    assert refused_in_a_row(history) == count
