"""Which answer a key means."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.records import GenerationBody, pack_body
from contracts.tasks import Task
from contracts.tasks.credit import CreditRule
from pipelines.episodes.keys.rules import (
    MAX_FOLLOW_UP,
    AnswerRef,
    KeyName,
    SessionCall,
    Succession,
    assign,
    follow_up,
    main_line,
    names_of,
    parts_of,
)
from tests.fakes import a_generation, asking
from tests.unit.pipelines.episodes.bench import a_task

TASK = a_task({"reply": {"means": "follow_up"}})
IDS = [f"chatcmpl-019a{number:04x}-0000-7000-8000-000000000000" for number in range(3)]


def said(*texts: Any) -> bytes:
    """The body of an answer to a conversation: user and assistant in turn."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return pack_body(GenerationBody(messages=messages, text="yes", prompt_ids=b"", completion_ids=b"", logprobs=b""))


def test_an_answer_has_the_keys_that_its_app_gave_it() -> None:
    record = a_generation(join_key="k", session_id="s", tenant="acme")
    assert names_of(record) == [KeyName("acme", "key", "k"), KeyName("acme", "session", "s")]
    assert names_of(a_generation()) == []


@pytest.mark.parametrize("value", ["", "x" * 257, "a\0b"])
def test_what_no_table_takes_is_no_key(value: str) -> None:
    assert names_of(a_generation(session_id=value, join_key=value)) == []


@pytest.mark.parametrize("purpose", ["sentinel", "rollout", "shadow"])
def test_only_users_answers_have_keys(purpose: str) -> None:
    assert names_of(a_generation(session_id="s", purpose=purpose)) == []


def test_a_key_means_its_newest_answer_in_whatever_order_they_arrive() -> None:
    answers = [
        a_generation(completion_id=completion_id, choice=choice, join_key="k")
        for completion_id, choice in [(IDS[0], 0), (IDS[1], 0), (IDS[1], 1)]
    ]
    for order in itertools.permutations(answers):
        meant: dict[KeyName, AnswerRef] = {}
        assign(meant, order)
        assert meant == {KeyName("default", "key", "k"): AnswerRef(IDS[1], 0)}


def test_only_a_later_answer_of_a_session_comes_after_another() -> None:
    turns = [a_generation(completion_id=completion_id, session_id="s", join_key="k") for completion_id in IDS]
    second_choice = a_generation(completion_id=IDS[2], choice=1, session_id="s")
    meant: dict[KeyName, AnswerRef] = {}
    assert assign(meant, [turns[1], turns[0], turns[2], second_choice]) == [Succession(turns[2], AnswerRef(IDS[1], 0))]


def test_a_follow_up_is_what_the_user_said_next() -> None:
    before = a_generation(body=said("a table", "yes"), session_id="s")
    after = a_generation(body=said("a table", "yes", "no!" * 1000), session_id="s", person="ann", created_at=120.0)
    signal = follow_up(Succession(after, AnswerRef(before.completion_id, 0)), before, TASK)
    assert signal is not None
    assert (signal.id, signal.key, signal.name) == (f"follow_up:{before.key}", before.key, "reply")
    assert (signal.value, signal.at, signal.received_at) == (("no!" * 1000)[:MAX_FOLLOW_UP], 120.0, 120.0)
    assert (signal.submitter.id, signal.submitter.kind, signal.tenant) == ("ann", "code", "default")


@pytest.mark.parametrize(
    ("changes", "task"),
    [
        ({"task": "other"}, TASK),
        ({"tenant": "other"}, TASK),
        ({"body": said("a table")}, TASK),  # asked again: it wants another answer, and is no reply to this one
        ({"body": said(None, "only an assistant spoke")}, TASK),
        ({"body": said("a table", "yes", "")}, TASK),
        ({}, a_task({"accepted": {"means": "accept"}})),
        ({}, a_task({"reply": {"means": "follow_up", "type": "bool", "labels": {"true": 1.0}}})),
    ],
)
def test_nothing_else_follows_up(changes: dict[str, Any], task: Any) -> None:
    before = a_generation(body=said("a table"))
    after = a_generation(**{"body": said("a table", "yes", "no")} | changes)
    assert follow_up(Succession(after, AnswerRef(before.completion_id, 0)), before, task) is None


@pytest.mark.parametrize(
    ("shown", "follows"), [(["one"], True), (["one", "kept nowhere"], False), (["one", "one"], True)]
)
def test_words_about_an_answer_that_is_not_kept_are_not_about_the_one_before(
    shown: list[str], *, follows: bool
) -> None:
    """The conversation shows an answer between the two that nobody was allowed to keep: what the user said next is about that."""
    talk = [{"role": "user", "content": "a table"}]
    before = asking("a table", answer="one")
    for number, answer in enumerate(shown):
        talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"no {number}"}]
    body = GenerationBody(messages=talk, text="", prompt_ids=b"", completion_ids=b"", logprobs=b"")
    after = a_generation(body=pack_body(body))
    assert (follow_up(Succession(after, AnswerRef(before.completion_id, 0)), before, TASK) is not None) == follows


@pytest.mark.parametrize("person", [None, "a\0b"])
def test_a_person_nobody_named_is_none(person: str | None) -> None:
    before, after = a_generation(body=said("a")), a_generation(body=said("a", "b", "c"), person=person)
    signal = follow_up(Succession(after, AnswerRef(before.completion_id, 0)), before, TASK)
    assert signal is not None
    assert signal.submitter.id == "follow_up"


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
