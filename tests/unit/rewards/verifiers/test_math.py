from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.errors import InvalidTask
from rewards.grader import Grader
from rewards.verifiers import math
from rewards.verifiers.check import UNVERIFIABLE, Answer, BatchVerifier, Check, Context
from tests.adversary.attacks.cases.honest_maths import NOTATIONS, honest
from tests.adversary.attacks.cases.restated_maths import restated
from tests.each_case import each_case
from tests.unit.rewards.verifiers.math_pairs import pairs

DEADLINE = 3.0
SAYINGS = ["million", "thousand", "dozen", "hundredths", "squared", "is wrong", "or more", "and a half"]


@pytest.fixture(scope="module")
def verifier() -> BatchVerifier:
    built = math.build({}, Context(DEADLINE))
    # The first item of each worker computes the parser's tables.
    built.check_all([Answer(r"\boxed{\frac{1}{2}}", {"reference": r"\frac{1}{2}"})] * 20)
    return built


def check(verifier: BatchVerifier, text: str, reference: str = "5") -> Check:
    return verifier.check_all([Answer(text, {"reference": reference})])[0]


@each_case(
    ("text", "reference"),
    [
        (r"So it is \boxed{5}.", "5"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{4+1=5}", "5"),
        (r"\boxed{5.0}", "5"),
        (r"\boxed{5\text{ apples}}", "5"),
        (r"\boxed{5.00}", r"\boxed{5}"),
        (r"\boxed{\frac{10}{2}}", r"\frac{10}{2}"),
        (r"<think>is it \boxed{7}?</think>\boxed{5}", "$5$"),
        (r"\boxed{5}, that is \boxed{5}", "5"),
        (r"Use \boxed{ for it {, or \}: \boxed{5}", "5"),
        (r"\boxed{\{1, 5\}}", "1, 5"),
        (r"\boxed{0.5}", r"\frac12"),
        (r"\boxed{2\sqrt{3}}", r"\(2\sqrt{3}\)"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2"),
        (r"\boxed{5, 1}", "1, 5"),
        (r"one is \boxed{1}, the other \boxed{5}", "1, 5"),
        (r"\boxed{1 < x}", "x > 1"),
        (r"\boxed{2 \cdot 3}", r"2 \cdot 3"),
        (r"\boxed{-(5)}", "-5"),
        (r"\boxed{2^{10}}", "2^{10}"),
        (r"\boxed{1024}", "2^{10}"),
        (r"\boxed{10^6}", "1000000"),
        (r"\boxed{17 \cdot 23 = 391}", "391"),
        (r"\boxed{5\%}", "0.05"),
        (r"\boxed{\frac{1}{20}}", r"5\%"),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\boxed{5 \cdot 10^3}", "5000"),
        (r"\boxed{\sum_{k=1}^{n} k}", r"\sum_{k=1}^{n} k"),
        (r"\boxed{8:30}", "8:30"),
        (r"\boxed{\frac34}", r"\dfrac34"),
        (r"\boxed{5 \sqrt 3}", r"5\sqrt{3}"),
        (r"\boxed{2 - \frac{1}{\mathrm{e}}}", r"2 - \frac{1}{e}"),
        (r"\boxed{2 - \frac{1}{e}}", r"2 - \frac{1}{\mathrm{e}}"),
        (r"\boxed{y = -\frac{1}{2}x + \frac{2}{3}}", "3x+6y-4=0"),
        (r"\boxed{x \geq \sqrt{5}}", r"[\sqrt{5}, \infty)"),
        (r"\boxed{|x| < 1}", "-1 < x < 1"),
        (r"\boxed{-1 \le x \le 5}", r"|x - 2| \le 3"),
        (r"\boxed{pi/3}", r"\frac{\pi}{3}"),
        (r"\boxed{7}", "\uff17"),
        (r"\boxed{101_2}", "5"),
        (r"\boxed{\frac16}", r"0.1\overline{6}"),
        (r"\boxed{f(2) = 5}", "5"),
        (r"\boxed{4^{500000}}", "2^{1000000}"),
        (r"\boxed{3.14159}", r"\pi"),
        (r"\boxed{\frac13}", "0.333"),
        (r"\boxed{\sqrt{2+\sqrt 3}}", r"\frac{\sqrt6+\sqrt2}{2}"),
        (r"I first thought \boxed{3}, no: \boxed{5}", "5"),
        (r"\boxed{3} and \boxed{4}. Wait, that is wrong: \boxed{5}", "5"),
        (r"\boxed{42.}", "42"),
        (r"\boxed{\frac34,}", r"\frac34"),
        (r"\boxed{3e3}", "3000"),
        (r"\boxed{6.02e23}", r"6.02 \times 10^{23}"),
        (r"\boxed{0.000015}", "1.5e-5"),
        (r"\boxed{5+2e}", "2e+5"),
        (r"\boxed{-2}", r"\sqrt[3]{-8}"),
        (r"\boxed{\sqrt[3]{-3}}", r"-\sqrt[3]{3}"),
        ("\\boxed{60\u00b0}", "60"),
        (r"\boxed{60^\circ}", "60\u00b0"),
        (r"\boxed{\frac12}", r"\sin 30^\circ"),
        ("\\boxed{\\cos{60\u00b0}}", r"\cos\left(60^\circ\right)"),
        (r"\boxed{\frac13 \approx 0.33}", r"\frac13"),
        (r"\boxed{\theta \approx 5}", "5"),
        (r"\boxed{f(2) \approx 5}", "5"),
        (r"\boxed{42 \text{ million}}", "42 million"),
        (r"\boxed{25 \text{ units squared}}", "25"),
        (r"\boxed{A = \pi a^2}", r"\pi a^2"),
        (r"\boxed{\pi(R-r)(R+r)}", r"\pi(R^2-r^2)"),
        (r"\boxed{|\overline{AB}| = 2a}", "2a"),
        (r"\boxed{f'(x) = 2x}", "2x"),
        (r"\boxed{y^{\prime} = 2y}", "y' = 2y"),
        (r"\boxed{A^{\top}B}", "A^TB"),
        (r"\boxed{\text{yes}}", r"\text{Yes}"),
        (r"\boxed{\mathbb{R}}", r"\mathbb{R}"),
    ],
)
def test_what_is_worth_the_same_passes(verifier: BatchVerifier, text: str, reference: str) -> None:
    found = check(verifier, text, reference)
    assert (found.value, found.fault, found.reason) == (1.0, "none", "")


@each_case(
    "text",
    [
        r"\boxed{7}",
        r"\boxed{7} final answer is 5",
        "1 2 3 4 5",
        r"\boxed{1 2 3 4 5}",
        r"\boxed{1}\boxed{5}",
        r"so \boxed{5} ... hence \boxed{",
        r"\boxed{5}, no: \boxed{7}",
        r"\boxed{7} or, wait, \boxed{5}",
        "".join(rf"\boxed{{{number}}}, no: " for number in range(6, 24)) + r"\boxed{5}",
        r"\boxed{7} or rather \boxed{5}",
        r"\boxed{1,5}",
        "1 or 5",
        r"\boxed{1 or 5}",
        r"\boxed{1 \text{ or } 5}",
        r"\boxed{5 \text{ (or 7)}}",
        r"\boxed{7=5}",
        r"\boxed{x=7=5}",
        r"\boxed{1=2=3=4=5}",
        r"\boxed{7\boxed{5}}",
        r"\boxed{5",
        r"\boxed{}",
        r"\boxed{x}",
        "The answer is $5$.",
        r"<think>\boxed{5}</think> I do not know.",
        r"<think>It must be \boxed{5}",
        r"\boxed{1 \cdot 5}",
        r"\boxed{2 + 3}",
        r"\boxed{\sum_{k=2}^{3} k}",
        r"\boxed{\int_0^5 1 dx}",
        r"\boxed{\lim_{x \to 5} x}",
        r"\boxed{\frac{d}{dx} 5x}",
        r"\boxed{\frac{10}{2}}",
        r"\boxed{5\%}",
        r"\boxed{5 = 2 + 3 = 6}",
        r"\boxed{2 + 3 = 4 + 1}",
        "",
    ],
)
def test_what_is_another_answer_or_more_than_one_is_the_models_fault(verifier: BatchVerifier, text: str) -> None:
    found = check(verifier, text)
    assert (found.value, found.fault) == (0.0, "model")
    assert found.reason


@each_case(
    ("boxed", "reference"),
    [
        (r"\frac{1}{3^{69}}", r"\frac{1}{3^{70}}"),
        (r"1.38 \times 10^{-20}", r"1.38 \times 10^{-23}"),
        ("0.0000034", "0.0000031"),
        (r"\frac{1}{502!}", r"\frac{1}{500!}"),
        (r"\frac{1}{2 \cdot 5^{901}}", r"\frac{5^{900}+1}{2 \cdot 5^{901}}"),
        ("101_3", "101_2"),
        ("101", "101_2"),
        ("4^{500001}", "2^{1000000}"),
        ("9^{9^{9^9}}", "5"),
        (r"x + 9^{9^{9^9}}", "x"),
        ("3.14158", r"\pi"),
        ("0.333332", r"\frac13"),
        ("0.33", r"\frac13"),
        (r"\frac49", "0.4"),
        ("12.54", "12.5"),
        ("3", "3t"),
        ("1  2", "12"),
        (r"5 \text{ m}", r"5 \text{ cm}"),
        (r"5 \text{ cm}^2", r"5 \text{ cm}"),
        (r"100 \text{ cm}", r"1 \text{ m}"),
        ("2x = 5", "5"),
        (r"-\infty", r"\infty"),
        ("8:31", "8:30"),
        ("x > 5", r"[5, \infty)"),
        ("|x| < 2", "-1 < x < 1"),
        (r"|x| \le 1", "-1 < x < 1"),
        ("|x| > 1", "-1 < x < 1"),
        (r"x < 1 \text{ and } x > 3", r"(-\infty, 1) \cup (3, \infty)"),
        ("3x+6y-5=0", "3x+6y-4=0"),
        (r"\pi r^2", r"\pi R^2"),
        ("0", r"\pi(R^2-r^2)"),
        ("2^N", "2^n"),
        ("y'", "y''"),
        ("A", "A^T"),
        ("AB", "A^TB"),
        (r"\cos 1^\circ", r"\cos 1"),
        (r"42 \approx 43", "42"),
        (r"2x \approx 5", "5"),
        (r"5 \approx 9^{9^{9^9}}", "5"),
        (r"5 \approx \{5\}", "5"),
        *[(f"42 {words}", "42") for words in SAYINGS],
        *[("42", f"42 {words}") for words in SAYINGS],
        *[(rf"42\text{{ {words}}}", "42") for words in SAYINGS],
        (r"\text{not } 42", "42"),
        (r"42\text{no}", "42"),
        ("x > 3 + O(x)", "x > 3"),
        ("f(x) > f(3)", "x > 3"),
    ],
)
def test_small_and_huge_values_bases_and_units_decide(verifier: BatchVerifier, boxed: str, reference: str) -> None:
    found = check(verifier, rf"\boxed{{{boxed}}}", reference)
    assert (found.value, found.fault) == (0.0, "model")


@pytest.mark.parametrize(("boxed", "reference"), [(r"x = \ln y", "y = e^x"), ("|x| < y", "-y < x < y")])
def test_what_nobody_can_decide_is_unverifiable(verifier: BatchVerifier, boxed: str, reference: str) -> None:
    found = check(verifier, rf"\boxed{{{boxed}}}", reference)
    assert (found.value, found.status, found.fault) == (None, "unscored", "infra")
    assert found.reason.startswith(UNVERIFIABLE)


@each_case(
    ("boxed", "reference"),
    [
        ("5", r"\mathbb{R}"),
        ("[2,3]", "42"),
        ("(1,2)", r"\{1,2\}"),
        ("f(3)", "x+1"),
        (r"\frac{x}{0}", "x+1"),
        (r"\infty-\infty", r"\sqrt2"),
        (r"\infty\cdot 0", r"\sqrt2"),
        ("x+1+O(x)", "x+1"),
        ("a+b+c+d+f+g+h+j+k+l", "x+1"),
        ("x", "|x|"),
        ("|x|", "x"),
        ("1<2", "(1,2)"),
        (r"\sin x>0", "x>3"),
        ("x>3<43", "x>3"),
        (r"x=\{1,2\}", "f(x)=x+1"),
    ],
)
def test_an_answer_without_a_value_is_the_models_fault(verifier: BatchVerifier, boxed: str, reference: str) -> None:
    found = check(verifier, rf"\boxed{{{boxed}}}", reference)
    assert (found.value, found.fault) == (0.0, "model")


@pytest.mark.slow
def test_no_wrong_answer_that_a_right_one_gives_is_paid(verifier: BatchVerifier) -> None:
    seed = random.SystemRandom().randrange(10**6)
    cases = pairs(330, seed)
    found = verifier.check_all([Answer(rf"\boxed{{{case.boxed}}}", {"reference": case.reference}) for case in cases])
    assert not [case for case, check in zip(cases, found, strict=True) if not case.is_right and check.value != 0.0], (
        seed
    )
    num_right = sum(case.is_right for case in cases)
    refused = [case for case, check in zip(cases, found, strict=True) if case.is_right and check.value != 1.0]
    assert len(refused) <= 0.02 * num_right, (seed, refused)


def test_what_was_read_is_explained() -> None:
    answer = Answer(r"It is \boxed{\frac12 \text{ cm}}.", {"reference": "101_2"})
    assert math.explain(answer, {}) == {"reference": "5; base 2", "answer": "1/2; unit cm^1"}
    assert "no" in math.explain(answer._replace(text="5"), {})["answer"]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_question_again_pays_nothing(verifier: BatchVerifier, seed: int) -> None:
    cases = restated(100, seed)
    found = verifier.check_all([Answer(rf"\boxed{{{case.boxed}}}", {"reference": case.reference}) for case in cases])
    paid = [case for case, check in zip(cases, found, strict=True) if check.value != 0.0]
    assert not paid


@pytest.mark.slow
def test_an_honest_answer_passes_in_every_usual_notation(verifier: BatchVerifier) -> None:
    cases = [*NOTATIONS, *honest(100)]
    found = verifier.check_all([Answer(rf"\boxed{{{boxed}}}", {"reference": reference}) for boxed, reference in cases])
    refused = [(case, check.reason) for case, check in zip(cases, found, strict=True) if check.value != 1.0]
    assert not refused


@each_case(
    ("boxed", "reference"),
    [
        ("(2, 1)", "(1, 2)"),
        (r"\{1, 2\}", "(1, 2)"),
        (r"x = \{1, 2\}", "(1, 2)"),
        ("(1, 3, 2)", "(1, 2, 3)"),
        ("(1, 2]", "[1, 2)"),
        ("5", r"5\%"),
        ("5%", "5"),
        (r"5\text{ percent}", "5"),
        ("2^{10}", "1024"),
        (r"\frac{6}{8}", r"\frac{3}{4}"),
        (r"2^3 \cdot 2^7", "2^{10}"),
        (r"\sqrt{12}+\sqrt{27}", r"5\sqrt{3}"),
    ],
)
def test_order_percent_and_form_decide(verifier: BatchVerifier, boxed: str, reference: str) -> None:
    assert check(verifier, rf"\boxed{{{boxed}}}", reference).value == 0.0


@pytest.mark.parametrize("reference", ["", "The answer is five", r"\frac{1", "{"])
def test_a_reference_that_cannot_be_used_is_the_apps_fault(reference: str) -> None:
    found = check(math.build({}, Context(0.7)), r"\boxed{5}", reference)
    assert (found.value, found.status, found.fault) == (None, "unscored", "user")


@pytest.mark.slow
def test_a_bomb_for_a_reference_is_the_apps_fault_and_is_not_tried_again() -> None:
    verifier = math.build({}, Context(0.7))
    for _ in range(2):
        started = time.monotonic()
        found = check(verifier, r"\boxed{5}", r"9^{9^{9^9}}")
        assert (found.value, found.status, found.fault) == (None, "unscored", "user")
    assert time.monotonic() - started < 0.7, "trying it again would take its deadline"


@pytest.mark.slow
def test_a_bomb_costs_its_deadline_and_is_the_models_fault() -> None:
    verifier = math.build({}, Context(1.0))
    assert check(verifier, r"\boxed{7}").value == 0.0
    started = time.monotonic()
    found = check(verifier, r"\boxed{\binom{9999999}{5000000}}", "x")
    assert time.monotonic() - started < 20.0
    assert (found.value, found.fault, found.reason) == (0.0, "model", "it took longer than 1 s")
    assert check(math.build({}, Context(DEADLINE)), r"\boxed{5}").value == 1.0


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + "(" * 2000 + "5" + ")" * 2000 + "}",
        r"\boxed{" + "(" * 300 + "5" + ")" * 300 + "}",
        r"\boxed{" + "1+" * 999 + "1" + "+1}",
        r"\boxed{" * 100_000,
        "{" * 100_000,
    ],
)
def test_what_is_nested_or_endless_is_refused_at_once(verifier: BatchVerifier, text: str) -> None:
    started = time.monotonic()
    found = check(verifier, text)
    assert time.monotonic() - started < 30.0
    assert (found.value, found.fault) == (0.0, "model")


def test_no_silent_zeros_from_threads(verifier: BatchVerifier) -> None:
    grader = Grader("math", "component", 1.0, "math/1", is_slow=True, check_all=verifier.check_all)
    answers = [Answer(rf"\boxed{{{number}}}", {"reference": str(number)}) for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(grader.score_all, [answers] * 8))
    assert {score.value for scores in found for score in scores} == {1.0}


async def test_no_silent_zeros_under_asyncio(verifier: BatchVerifier) -> None:
    assert check(verifier, r"\boxed{5}").value == 1.0
    found = await asyncio.gather(*(asyncio.to_thread(check, verifier, r"\boxed{5}") for _ in range(8)))
    assert {one.value for one in found} == {1.0}


def test_it_takes_no_config_and_needs_a_reference(verifier: BatchVerifier) -> None:
    with pytest.raises(InvalidTask, match="no config"):
        math.build({"precision": 3})
    assert verifier.check_all([Answer(r"\boxed{5}")])[0].status == "unlabelled"
