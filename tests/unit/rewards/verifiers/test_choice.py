from __future__ import annotations

import time
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import choice
from rewards.verifiers.check import Answer, Check
from tests.adversary.attacks.cases import hedges
from tests.each_case import each_case


def pick(text: str, reference: str | None = "A", **config: Any) -> Check:
    check = choice.build(config)(Answer(text, {} if reference is None else {"reference": reference}))
    assert isinstance(check, Check)
    return check


@each_case(
    "text",
    [
        "A",
        "(a)",
        "a.",
        "**A**",
        "The answer is A.",
        "The answer is (A), because B has no wings.",
        "**Answer:** A",
        "**Answer**: **A**",
        "Answer:\nA",
        "$\\boxed{\\text{A}}$",
        "A) Paris",
        "A. Paris. B would be Rome.",
        "Option A",
        "The correct option is: A",
        "B is tempting, and C too.\nThe answer is A",
        "I am sure.\nA\n",
        "<think>The answer is B. No.</think>A",
        "The answer is A. The answer is A.",
    ],
)
def test_an_answer_that_commits_to_the_letter_passes(text: str) -> None:
    assert pick(text) == Check(1.0)


@each_case(
    "text",
    [
        "The answer is A. The answer is B.",
        "The answer is A or B",
        "Answer: A, B",
        "Answer: A and also B",
        "Answer: A or maybe B",
        "The answer is A/B",
        "A\nB\nC\nD",
        "A) Paris\nB) Rome\nC) Oslo\nD) Bonn",
        "\\boxed{A} \\boxed{B}",
        "\\boxed{A, B}",
        "Answer: B\nA",
    ],
)
def test_two_letters_are_two_answers_and_wrong(text: str) -> None:
    check = pick(text)
    assert (check.value, check.fault) == (0.0, "model")
    assert "picks 2" in check.reason or "picks 4" in check.reason


@each_case(
    "text",
    [
        "",
        "ABCD",
        "Answer: ABCD",
        "A B C D",
        "The answer is a bit complex",
        "The answer is not A",
        "It cannot be A",
        "The answer is A-level knowledge",
        "The answer is A's",
        "\u0410",
        "\uff21",
        "<think>A",
        "An apple.",
        "A nice question, and hard to answer.",
        "Paris",
        "\ud800",
    ],
)
def test_an_answer_that_commits_to_none_is_wrong(text: str) -> None:
    check = pick(text)
    assert (check.value, check.fault) == (0.0, "model")


def test_another_letter_is_wrong_but_well_formed() -> None:
    assert pick("B") == Check(0.0, reason="it picks B")


@pytest.mark.parametrize("reference", ["E", "", "A or B", "AB"])
def test_a_reference_that_is_no_choice_is_the_apps_mistake(reference: str) -> None:
    assert pick("A", reference).fault == "user"


@pytest.mark.parametrize(("letters", "reference"), [("AB", "A"), ("AB", "B"), ("CA", "C"), ("CA", "A"), ("DB", "B")])
def test_two_letters_in_any_place_pay_for_neither(letters: str, reference: str) -> None:
    assert not [text for text in hedges.hedged(*letters) if pick(text, reference).value != 0.0]


def test_a_letter_that_is_taken_back_pays_nothing() -> None:
    assert not [text for text in hedges.taken_back("A") if pick(text).value != 0.0]


@each_case("text", hedges.HONEST_LETTERS)
def test_an_explanation_may_name_other_letters(text: str) -> None:
    assert pick(text) == Check(1.0)


@pytest.mark.parametrize(
    "text", ["The answer is A or \u0412", "The answer is A or \uff22", "The answer is A \u200bor B", "A\n\U0001d401"]
)
def test_a_second_answer_in_look_alike_signs_is_seen(text: str) -> None:
    assert pick(text).value == 0.0


def test_without_a_reference_there_is_nothing_to_say() -> None:
    assert pick("A", None).status == "unlabelled"


def test_other_choices_and_patterns_can_be_declared() -> None:
    assert pick("The answer is yes", "yes", choices=["yes", "no"]).value == 1.0
    assert pick("yes\nno", "yes", choices=["yes", "no"]).value == 0.0
    assert pick("<final>b</final>", "B", patterns=["<final>(.*?)</final>"]).value == 1.0
    assert pick("The answer is B", "B", patterns=["<final>(.*?)</final>"]).value == 0.0
    assert pick("<final>A</final><final>B</final>", "A", patterns=["<final>(.*?)</final>"]).value == 0.0


def test_a_long_answer_is_read_quickly() -> None:
    started = time.process_time()
    for text in ("answer is " * 5_000, "Answer:" + " " * 50_000, "A or " * 10_000, "*" * 50_000, "\\boxed{" * 5_000):
        pick(text)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"choices": ["A"]}, "choices"),
        ({"choices": ["A", "a"]}, ""),
        ({"choices": ["A", "B)"]}, ""),
        ({"patterns": ["("]}, "patterns.0"),
        ({"patterns": ["(A)", "A"]}, "patterns.1"),
        ({"letters": "AB"}, "letters"),
    ],
)
def test_a_wrong_config_is_refused_with_its_field(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        choice.build(config)
    assert caught.value.param == param


@each_case(
    "text",
    [
        "B",
        "(B)",
        "B.",
        "b",
        "Answer: B",
        "The answer is (B).",
        "The correct answer is B.",
        "The correct answer is **B**",
        "**B**",
        "\\boxed{B}",
        "\\boxed{\\text{B}}",
        "\\boxed{(B)}",
        "\\boxed{\\textbf{B}}",
        "\\boxed{\\mathrm{B}}",
        "$\\boxed{B}$",
        "The answer is $\\boxed{\\text{(B)}}$.",
        "Option B",
        "Option B is correct.",
        "B is correct.",
        "B) because it is",
        "The answer is option B",
        "Answer: B) Paris",
        "Answer: B. Paris",
        "ANSWER: B",
        "answer is b",
        "The answer is b.",
        "Final answer: B",
        "Final Answer: The final answer is B. I hope it is correct.",
        "So the answer is **(B)**",
        "the best answer is B",
        "<answer>B</answer>",
        "My answer: B",
        "I choose B",
        "I pick B.",
        "The correct option is B",
        "correct choice: B",
        "The answer is: \n\nB",
        "The answer is: (b)",
        "**Answer:** B",
        "### Answer\nB",
        "Answer - B",
        "Answer: [B]",
        'Answer: "B"',
        '{"answer": "B"}',
        "A is wrong. The answer is B.",
        "B: Paris",
        "The answer is B, Paris",
        "The answer is Option (B): Paris",
        "The answer is B)",
        "\\boxed{B. Paris}",
        "\\boxed{B) \\text{Paris}}",
        "\\boxed{\\text{B. Paris}}",
        "The right answer is B",
    ],
)
def test_a_letter_is_picked_in_every_usual_wording(text: str) -> None:
    assert choice.build({})(Answer(text, {"reference": "B"})) == Check(1.0)


@each_case(
    "text",
    [
        "A",
        "A or B",
        "The answer is A or B",
        "\\boxed{A, B}",
        "\\boxed{B} \\boxed{C}",
        "B and C",
        "The answer is not B",
        "The answer isn't B",
        "B is wrong",
        "I don't know",
        "A) B",
        "A. B",
        "The answer is A. B is wrong.",
        "The answer is A (not B)",
        "B?",
        "Either B or C",
        "B or maybe C",
        "B, C",
        "A B C D",
        "The answer is B. Wait, no, C.",
        "Answer: B\nAnswer: C",
        "Answer: B/C",
        "Option B is incorrect.",
        "all of the above",
        "B is not correct",
        "none of B",
        "Not B",
        "The answer is B or C",
        "**B** or **C**",
        "B) one\nC) two",
        "(A)(B)(C)(D)",
        "The answer could be B",
        "It is not B, it is C.",
        "\\boxed{\\text{not B}}",
        "\\boxed{AB}",
        "\\boxed{B or C}",
        "\\boxed{\\neg B}",
        "Answer: Bob",
        "the answer is because",
        "Answer: B12",
        "B vitamins are good",
        "The answer is B!=C",
        "Plan B",
    ],
)
def test_a_letter_in_other_words_picks_nothing(text: str) -> None:
    check = choice.build({})(Answer(text, {"reference": "B"}))
    assert isinstance(check, Check)
    assert check.value == 0.0
