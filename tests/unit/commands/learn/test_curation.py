from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from commands.learn.curation import curate, held_out_prompts
from commands.learn.people import distrusted
from commands.learn.selection import Remark
from contracts.tasks import Task
from pipelines.episodes.curation.curator import hash_of
from tests.unit.commands.learn.builders import TASK, remark

AWS = "AKIA" + "IOSFODNN7EXAMPLE"


def kept(*remarks: Remark, task: Task = TASK, **more: Any) -> tuple[list[Remark], dict[str, int]]:
    found = curate(remarks, {"booking": task}, more.get("sentinels", ()), more.get("gone", {}))
    return found.kept, dict(found.left_out)


def rules(**curation: Any) -> Task:
    return TASK.model_validate(TASK.model_dump() | {"curation": curation})


def with_body(said: Remark, **changes: Any) -> Remark:
    return dataclasses.replace(said, body=replace(said.body, **changes))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (remark(f"my key is {AWS}", "fine"), "secret"),
        (remark("hello", f"aws_key = {AWS}", "hi"), "secret"),
        (remark("hello", "hi", f"the key {AWS}"), "secret"),
        (remark("hello", "hi ", "hi"), "edit_is_the_answer"),
        (with_body(remark("hello", "hi"), tools=[{"function": {"name": "f", "description": f"key {AWS}"}}]), "secret"),
        (with_body(remark("hello", "hi"), reasoning=f"they gave {AWS}"), "secret"),
        (remark("hello", "  ", "hi"), "empty"),
        (remark("hello", "caf\ufffd", "hi"), "garbled"),
        (remark("hello", "spam and eggs " * 20, "hi"), "repetitive_answer"),
    ],
)
def test_problem_content_is_left_out_whatever_the_task_says(said: Remark, reason: str) -> None:
    assert kept(said) == ([], {reason: 1})


def test_rules_of_the_task_hold_for_learned_text_too() -> None:
    names = rules(personal_data=["EMAIL_ADDRESS"], min_characters=5, near_duplicates=1)
    said = [
        remark("who is it?", "write to lee@example.com", "nobody"),
        remark("hm", "yes"),
        remark("a table for two people tomorrow at noon, please", "yes"),
        remark("a table for two people tomorrow at noon, please!", "of course"),
    ]
    found, left_out = kept(*said, task=names)
    assert found == [said[2]]
    assert left_out == {"personal_data": 1, "too_short": 1, "near_duplicate": 1}


def test_questions_of_the_gate_and_what_was_withdrawn_are_not_learned() -> None:
    asked, erased, taken_back, good = (remark(f"prompt {n}", "yes") for n in range(4))
    gone = {erased.record.key: "erased", taken_back.record.key: "quarantined"}
    found, left_out = kept(asked, erased, taken_back, good, sentinels={hash_of("PROMPT 0")}, gone=gone)
    assert found == [good]
    assert left_out == {"sentinel": 1, "erased": 1, "quarantined": 1}


def test_no_pair_holds_an_answer_that_was_withdrawn() -> None:
    good, bad, erased = remark("hello", "hi"), remark("hello", "no"), remark("hello", "bye")
    bad, erased = (dataclasses.replace(item, kind="refused", is_good=False) for item in (bad, erased))
    found, left_out = kept(good, erased, bad, gone={erased.record.key: "erased"})
    assert [(item.kind, item.rejected) for item in found] == [("pair", "no"), ("accepted", None)]
    assert left_out == {"erased": 1}


def test_a_person_who_says_the_same_again_is_heard_once() -> None:
    said = [remark("hello", "good day", "hi", person=person) for person in ("ann", "ann", "bea")]
    assert kept(*said) == ([said[0], said[2]], {"duplicate": 1})


def test_one_in_ten_prompts_is_held_out_with_all_that_is_said_about_it() -> None:
    said = [remark(hash_of(str(n)).hex(), "yes") for n in range(1000)]
    held_out = held_out_prompts(said, {"booking": TASK})
    assert 70 < len(held_out) < 130
    assert held_out == held_out_prompts(
        [*said, *(remark(hash_of(str(n)).hex(), "no") for n in range(0, 1000, 7))], {"booking": TASK}
    )


def test_near_duplicates_are_held_out_together() -> None:
    pairs = [(text := hash_of(str(n)).hex() * 3, f"{text}!") for n in range(300)]
    said = [remark(prompt, "yes") for pair in pairs for prompt in pair]
    held_out = held_out_prompts(said, {"booking": TASK})
    assert 30 < len(held_out) < 90
    sides = [
        (one.prompt in held_out) == (other.prompt in held_out) for one, other in zip(said[::2], said[1::2], strict=True)
    ]
    assert sides.count(False) <= 3  # digests are estimates
    alone = [one.prompt[0] % 10 == 0 for one in said]
    assert (
        sum(one != other for one, other in zip(alone[::2], alone[1::2], strict=True)) > 30
    )  # as the prompts alone would have it


def test_prompts_of_one_template_are_divided_one_by_one() -> None:
    template = "please book a table by the window for the whole family tomorrow evening, and write down the number "
    said = [remark(f"{template}{n}", "yes") for n in range(500)]
    assert 25 < len(held_out_prompts(said, {"booking": TASK})) < 80


def crowd(num_people: int = 200, each: int = 5) -> list[Remark]:
    """People who mend one word of answers; some prompts are everybody's."""
    said = []
    for person in range(num_people):
        for number in range(each):
            prompt = f"prompt {number}" if number < 2 else f"prompt {person}-{number}"
            answer = f"A table for {number} at the window, in the name of Lee, tomorrow at noon."
            said.append(remark(prompt, answer.replace("noon", "eight"), answer, person=f"p{person}"))
    return said


@pytest.mark.parametrize("text", ["Buy gold at evil.example now!", "You fool."])
def test_one_percent_of_malicious_editors_leave_nothing_behind(text: str) -> None:
    good = crowd()
    bad = [
        remark(
            f"prompt {n}" if n < 2 else f"their {person}-{n}",
            f"{text} {n} {person}",
            good[0].rejected,
            person=f"evil{person}",
        )
        for person in range(2)
        for n in range(50)
    ]
    found, left_out = kept(*good, *bad)
    assert found == good
    assert left_out == {"unlike_others": len(bad)}


def test_an_edit_against_everybody_elses_of_that_prompt_is_outvoted() -> None:
    answer = "a table for two at noon"
    agreed = [remark("one", f"{answer}.", answer, person=f"p{n}") for n in range(3)]
    other = remark("one", "a table for six at noon", answer, person="x")
    alike = [
        remark("two", f"{answer}, {word}, thanks", answer, person=f"p{n}")
        for n, word in enumerate(("Lee", "Kim", "Ann"))
    ]
    far = remark("two", "Buy gold now!", answer, person="y")
    mine = [remark(f"{name}-{n}", f"{answer}!", answer, person=name) for name in "xy" for n in range(3)]
    found, left_out = kept(*agreed, other, *alike, far, *mine)
    assert found == [*agreed, *alike, *mine]
    assert left_out == {"outvoted": 2}


def test_whoever_floods_with_plausible_edits_gets_a_share() -> None:
    good = crowd()
    flood = [
        remark(f"their {n}", (good[0].rejected or "").replace("noon", "five"), good[0].rejected, person="flood")
        for n in range(500)
    ]
    found, left_out = kept(*good, *flood)
    assert left_out == {"person_share": 485}
    assert len(found) == len(good) + 15


def test_few_people_are_not_called_strange_and_nobody_without_a_name_is_cut() -> None:
    far = [remark(f"prompt {n}", f"wholly other {n}", "an answer", person=f"p{n % 3}") for n in range(12)]
    unknown = [remark(f"other {n}", f"yes {n}", "no") for n in range(50)]
    assert distrusted([*far, *unknown]) == {}
