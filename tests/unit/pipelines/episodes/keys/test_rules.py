"""Which answer a key means."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from contracts.records import GenerationBody, pack_body
from pipelines.episodes.keys.rules import MAX_FOLLOW_UP, AnswerRef, KeyName, Succession, assign, follow_up, names_of
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
