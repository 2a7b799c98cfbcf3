from __future__ import annotations

import time
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import numeric
from rewards.verifiers.check import Answer, Check
from tests.adversary.attacks.cases import hedges
from tests.each_case import each_case


def grade(text: str, reference: str | None = "5", **config: Any) -> Check:
    check = numeric.build(config)(Answer(text, {} if reference is None else {"reference": reference}))
    assert isinstance(check, Check)
    return check


@each_case(
    "text",
    [
        "5",
        "5.0",
        "+5",
        "0.5e1",
        "05",
        "**5**",
        "$5",
        "It is 5!",
        "There are 5 apples.",
        "5\n5",
        "2+3=5, so the answer is 5",
        "Answer: **5**",
        "The answer is about 5.",
        "The answer is $\\boxed{5}$",
        "1. add\n2. check\n#### 5",
        "H2O has 5",
        "<think>7, or 8?</think>5",
        "The answer is \\(5\\).",
    ],
)
def test_an_answer_that_commits_to_the_number_passes(text: str) -> None:
    assert grade(text) == Check(1.0)


@each_case(
    "text",
    [
        "",
        "five",
        "1 2 3 4 5 6 7 8 9",
        "The answer is 5 or 7",
        "The answer is 5, 6, 7",
        "The answer is 5 \u2013 7",
        "The answer is 5. The answer is 6.",
        "\\boxed{5} \\boxed{7}",
        "\\boxed{5, 7}",
        "\\boxed{x = 5}",
        "\\boxed{\\frac{10}{2}}",
        "#### 5\n#### 6",
        "5 million",
        "5k",
        "5x",
        "5²",
        "10/2",
        "The answer is 5-3",
        "The answer is 5*3",
        "The answer isn't 5",
        "It is not 5",
        "less than 5",
        "≤ 5",
        "5 ± 3",
        "1,5",
        "5.1.2",
        "v5",
        "\u0665",
        "\uff15",
        "5" * 300,
        "<think>5",
        "2 + 3 = 5",
        "\ud8005x",
    ],
)
def test_several_numbers_or_none_or_only_a_part_of_something_is_the_models_fault(text: str) -> None:
    check = grade(text)
    assert (check.value, check.fault) == (0.0, "model")
    assert check.reason


@each_case("text", ["-5", "15", "50", "5%", "5,000", "5e9", "The answer is 4.999", "#### 6"])
def test_another_number_is_wrong_but_well_formed(text: str) -> None:
    assert grade(text) == Check(0.0, reason="another number than the reference")


@each_case(
    ("text", "reference", "config", "value"),
    [
        ("1,234.5", "1234.5", {}, 1.0),
        ("1.234,5", "1234,5", {"marks": "1.234,5"}, 1.0),
        ("1.234,5", "1234.5", {}, 0.0),
        ("50%", "0.5", {}, 1.0),
        ("50 percent", "50%", {}, 1.0),
        ("50", "50%", {}, 0.0),
        ("50", "50%", {"percent": "ignore"}, 1.0),
        ("\u22125", "-5", {}, 1.0),
        ("0.1", "0.10", {}, 1.0),
        ("0.30000000000000004", "0.3", {}, 0.0),
        ("0.30000000000000004", "0.3", {"absolute": 1e-9}, 1.0),
        ("3.1", "3.0", {"absolute": 0.1}, 1.0),
        ("3.1000001", "3.0", {"absolute": 0.1}, 0.0),
        ("101", "100", {"relative": 0.01}, 1.0),
        ("102", "100", {"relative": 0.01}, 0.0),
        ("1e-30", "0", {"relative": 0.5}, 0.0),
        ("12345678901234567890123456789012345678901", "12345678901234567890123456789012345678902", {}, 0.0),
        ("2 + 3 = 5", "5", {"take": "last"}, 1.0),
        ("5, no: 6", "5", {"take": "last"}, 0.0),
        ("The answer is 5", "5", {"take": "boxed"}, 0.0),
        ("The answer is 7, \\boxed{5}", "5", {"take": "boxed"}, 1.0),
        ("1 2 Final: 5", "5", {"anchor": "final:"}, 1.0),
        ("The answer is 7. Final: 5", "5", {"anchor": "Final:"}, 1.0),
        ("5 kg", "5", {"units": ["kg", "g"]}, 1.0),
        ("5kg", "5 g", {"units": ["kg", "g"]}, 1.0),
        ("5kgx", "5", {"units": ["kg"]}, 0.0),
    ],
)
def test_tolerances_marks_and_places(text: str, reference: str, config: dict[str, Any], value: float) -> None:
    assert grade(text, reference, **config).value == value


@pytest.mark.parametrize("reference", ["", "abc", "2/4", "1 2", "x=5", "NaN", "inf"])
def test_a_reference_that_is_no_number_is_the_apps_mistake(reference: str) -> None:
    assert grade("5", reference).fault == "user"


@pytest.mark.parametrize("reference", ["42", "43"])
def test_two_numbers_pay_for_neither(reference: str) -> None:
    assert not [text for text in hedges.hedged("42", "43") if grade(text, reference).value != 0.0]


def test_a_number_that_is_taken_back_or_made_a_bound_pays_nothing() -> None:
    assert not [text for text in hedges.taken_back("42") + hedges.bounded("42", "44") if grade(text, "42").value != 0.0]


@each_case("text", hedges.HONEST_NUMBERS)
def test_an_explanation_may_name_other_numbers(text: str) -> None:
    assert grade(text, "42") == Check(1.0)


@pytest.mark.parametrize(
    "text",
    ["The answer is 42 or \uff14\uff13", "42 \u200bor 43", "The answer is 42\u200b|43", "\U0001d7d2\U0001d7d1 or 42"],
)
def test_a_second_answer_in_look_alike_signs_is_seen(text: str) -> None:
    assert grade(text, "42").value == 0.0


def test_without_a_reference_there_is_nothing_to_say() -> None:
    assert grade("5", None).status == "unlabelled"


@pytest.mark.slow
def test_a_hostile_answer_is_read_quickly() -> None:
    started = time.process_time()
    for text in (
        "1e999 " * 5_000,
        "9" * 100_000,
        "answer is " * 10_000,
        "1, " * 20_000,
        "\\boxed{" * 10_000,
        "#" * 50_000,
    ):
        grade(text)
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"absolute": -1}, "absolute"),
        ({"relative": 1.0}, "relative"),
        ({"take": "first"}, "take"),
        ({"anchor": ""}, "anchor"),
        ({"tolerance": 1}, "tolerance"),
    ],
)
def test_a_wrong_config_is_refused_with_its_field(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        numeric.build(config)
    assert caught.value.param == param


PUBLIC_RIGHT = [
    ("3400", "The answer is $3.4 \\times 10^3$"),
    ("0.25", "The answer is 1/4"),
    ("0.25", "\\boxed{\\frac14}"),
    ("0.25", "The answer is \\frac{1}{4}."),
    ("-0.25", "The answer is $-\\frac{1}{4}$"),
    ("-0.25", "-1/4"),
    ("1.5", "The answer is 1 1/2"),
    ("2.5", "The answer is $2\\frac{1}{2}$"),
    ("3400", "3.4\u00d710\u00b3"),
    ("3400", "3.4e3"),
    ("0.0034", "3.4 x 10^{-3}"),
    ("1234", "The answer is 1{,}234"),
    ("1234", "$1\\,234$"),
    ("6.02e23", "\\boxed{6.02 \\times 10^{23}}"),
    ("0.5", "50%"),
    ("0.005", "1/2%"),
    ("5", "The answer is **5.**"),
    ("5", "Answer: 5 (since 10/2 = 5)"),
    ("5", "$x = 5$"),
    ("5", "x=5"),
    ("5", "The final answer is: $\\boxed{5}$."),
    ("5", "The answer is\n\n5"),
    ("5", "**Answer:** 5"),
    ("5", "So 5."),
    ("5", "= 5"),
    ("5", "Result = 10/2 = 5"),
    ("5", "The answer is 10/2 = 5"),
    ("5", "the answer is $5.00"),
    ("1000", "1,000"),
    ("5", "5 (five)"),
    ("-5", "\u22125"),
    ("5", "Answer: \\text{5}"),
    ("5", "Final Answer: 5 cm"),
    ("5", "The answer is \\$5"),
    ("5", "It is 5°C"),
    ("-42", "\u201342"),
    ("-42", "\uff0d42"),
    ("-42", "\ufe6342"),
    ("42", "The answer is 42 \u2013 that is it"),
    ("0.5", "\u00bd"),
    ("2.5", "The answer is 2\u00bd."),
    ("-0.5", "\\boxed{\\frac{-1}{2}}"),
]
PUBLIC_WRONG = [
    ("5", "The answer is $5^{2}$"),
    ("5", "The answer is 5 \\times 3"),
    ("42", "The answer is 42 times 2"),
    ("42", "42 divided by 7"),
    ("5", "The answer is 5 \\cdot 10^3"),
    ("5", "5 \\times 10^3"),
    ("1", "The answer is 1 1/2"),
    ("1", "The answer is 1{,}234"),
    ("0.25", "1/4/2026"),
    ("0.25", "2/8"),
    ("5", "10/2"),
    ("1", "1/4"),
    ("4", "1/4"),
    ("0.25", "1/4 or 1/2"),
    ("0.25", "between 1/4 and 1/2"),
    ("0.25", "3 1/4"),
    ("0.25", "-1/4"),
    ("0.25", "-\\frac{1}{4}"),
    ("0.25", "\\frac{1}{4}5"),
    ("0.25", "1/4^2"),
    ("0.25", "x/1/4"),
    ("0.25", "5-1/4"),
    ("0.25", "\\boxed{\\frac14, \\frac12}"),
    ("3.4", "3.4 \\times 10^3"),
    ("3400", "3.4 \\times 10^3 or 3.4 \\times 10^4"),
    ("10", "3.4 x 10^3"),
    ("3400", "3.4 \\times 10^{3+1}"),
    ("3400", "3.4 \\times 10^3.5"),
    ("3400", "3.4 \\times 10^{33}"),
    ("5", "5!!! no, 6"),
    ("2.5", "2 5/2"),
    ("2.5", "\\frac{5}{2} - 1"),
    ("5", "5e"),
    ("5", "5e999"),
    ("5", "5 and 6"),
    ("5", "√5"),
    ("5", "\\sqrt{5}"),
    ("5", "|5|-3"),
    ("5", "log 5"),
    ("5", "5:30"),
    ("5", "5i"),
    ("5", "5 \\pi"),
    ("5", "5π"),
    ("5", "5\\pi"),
    ("5", "5 * x"),
    ("5", "5x10"),
    ("5", "(5, 6)"),
    ("5", "[5, 6]"),
    ("5", "5...6"),
    ("5", "5~6"),
    ("5", "5_3"),
    ("5", "0x5"),
    ("5", "5 < x"),
    ("5", "x > 5"),
    ("5", "x \\geq 5"),
    ("5", "x \\neq 5"),
    ("5", "\\ne 5"),
    ("5", "5\\frac{1}{2}"),
    ("5", "5\\sqrt{2}"),
    ("5", "5\\cdot 3"),
    ("5", "5 \\div 2"),
    ("5", "5 mod 3"),
    ("5", "5 choose 2"),
    ("5", "5 out of 6"),
    ("5", "5\\%"),
    ("5", "5 dozen"),
    ("5", "5 squared"),
    ("5", "-$5"),
    ("5", "-(5)"),
    ("5", "minus 5"),
    ("5", "negative 5"),
    ("5", "\\boxed{-5}"),
    ("5", "\\boxed{5}{6}"),
    *[("42", f"{sign}42") for sign in ("\u00b1", "+/-", "\u2013", "\uff0d", "\ufe63")],
    *[("42", f"The answer is {word} 42") for word in ("half of", "twice", "double", "the square root of")],
    *[("42", f"The answer is 42 {word}") for word in ("lakh", "crore", "hundredths", "thousandths", "tenths")],
    *[("42", text) for text in ("-{42}", "{-}42", "\\boxed{-\\text{42}}", "42 per cent")],
    ("42", "42\u201343"),
    ("2", "2\u00bd"),
    ("-0.5", "-\\frac{-1}{2}"),
]


@each_case(("reference", "text"), PUBLIC_RIGHT)
def test_a_number_counts_in_every_usual_notation(reference: str, text: str) -> None:
    assert grade(text, reference).value == 1.0


@each_case(("reference", "text"), PUBLIC_WRONG)
def test_a_number_inside_of_something_else_pays_nothing(reference: str, text: str) -> None:
    assert grade(text, reference).value == 0.0
