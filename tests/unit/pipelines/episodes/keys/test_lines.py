"""Which calls of a session a signal reaches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.tasks import Task
from contracts.tasks.credit import CreditRule
from pipelines.episodes.keys.rules import AnswerRef, SessionCall, main_line, parts_of
from tests.unit.pipelines.episodes.bench import a_task


def at(seconds: float) -> AnswerRef:
    return AnswerRef(f"chatcmpl-{UUID(int=int(seconds * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | 1)}", 0)


def calls(*parents: int | None, cut: Sequence[int] = (), tasks: str = "") -> list[SessionCall]:
    """One call a second from second 1 on; `parents`: the number of each call's parent, from 1."""
    return [
        SessionCall(
            at(number), None if parent is None else at(parent), (tasks or "b" * 99)[number - 1], 0.0, number in cut
        )
        for number, parent in enumerate(parents, 1)
    ]


def line(*arguments: int | None, **options: object) -> list[int]:
    found = main_line(calls(*arguments, **options))  # type: ignore[arg-type]
    return [next(number for number in range(1, 99) if at(number) == answer) for answer in found]


def test_one_call_after_the_other() -> None:
    assert line(None, 1, 2, 3) == [1, 2, 3, 4]
    assert line() == []


def test_a_title_and_a_sub_agent_are_not_on_the_line_though_they_are_newer() -> None:
    assert line(None, 1, 2, None) == [1, 2, 3]
    assert line(None, None, 2, 1, 4) == [1, 4, 5]


def test_of_a_call_that_was_made_twice_the_one_that_went_on_counts_or_the_newest() -> None:
    assert line(None, 1, 1, 2) == [1, 2, 4]
    assert line(None, 1, 1) == [1, 3]


def test_an_answer_that_nobody_has_ends_no_line() -> None:
    assert line(None, 1, 2, cut=[3]) == [1, 2]
    assert line(None, 1, 2, 3, cut=[3]) == [1, 2, 3, 4]
    assert line(None, cut=[1]) == []


def test_another_task_begins_another_line() -> None:
    assert line(None, 1, 2, tasks="abb") == [2, 3]


def test_a_parent_that_is_not_known_begins_a_line() -> None:
    assert line(50, 1) == [1, 2]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_any_tree_has_one_line_of_parents_and_no_longer_one(choices: list[int]) -> None:
    parents = [None if not number or choice % number == 0 else choice % number for number, choice in enumerate(choices)]
    found = line(*parents)
    assert all(parents[later - 1] == earlier for earlier, later in itertools.pairwise(found))
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent is None else 1 + depths[parent - 1])
    assert len(found) == max(depths, default=0)
    assert not found or found[-1] == max(number for number, depth in enumerate(depths, 1) if depth == len(found))


def shares(rule: str, received_at: float = 9.0, **options: object) -> list[float]:
    task = a_task({"solved": {"means": "outcome"}}, credit={"rule": rule} | options)
    return [part.share.credit for part in parts_of("s", calls(None, 1, 2, tasks="b" * 9), {"b": task}, received_at)]


def test_the_rules() -> None:
    assert shares("last") == [1.0]
    assert shares("equal") == [1.0, 1.0, 1.0]
    assert shares("discounted", discount=0.5) == [0.25, 0.5, 1.0]
    assert shares("discounted") == pytest.approx([0.81, 0.9, 1.0])


def test_calls_after_the_signal_and_much_older_ones_are_not_reached() -> None:
    assert len(shares("equal", received_at=2.5)) == 2
    assert len(shares("equal", received_at=9.0, longest_seconds=7.5)) == 2
    assert len(shares("equal", received_at=9.0, longest_seconds=1)) == 1, "the last call is what the signal is about"


def test_a_share_says_where_the_call_stands() -> None:
    task = a_task({"solved": {"means": "outcome"}}, credit={"rule": "last"})
    (part,) = parts_of("s", calls(None, 1, 2), {"b": task}, 9.0)
    assert (part.answer, part.share.index, part.share.calls, part.share.session) == (at(3), 2, 3, "s")
    assert part.share.last == f"{at(3).completion_id}:0"
    assert not part.share.is_derived


@pytest.mark.parametrize("tasks", [{}, {"b": a_task({"solved": {"means": "outcome"}})}])
def test_without_the_section_nothing_is_shared(tasks: dict[str, Task]) -> None:
    assert parts_of("s", calls(None, 1), tasks, 9.0) == []


def test_a_discount_needs_its_rule() -> None:
    with pytest.raises(ValidationError, match='set `rule = "discounted"`'):
        CreditRule(rule="equal", discount=0.5)


def test_credit_does_not_change_the_hash_of_a_task() -> None:
    signals = {"solved": {"means": "outcome"}}
    assert a_task(signals).hash == a_task(signals, credit={}).hash
