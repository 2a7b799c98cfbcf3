from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import InvalidTask
from examples.verifiers import reasoning_gym
from examples.verifiers.reasoning_gym_guard import arithmetic
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context, wrong
from tests.each_case import each_case

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs the extra `reasoning`")
CONFIG = {"dataset": "chain_sum", "seed": 3, "size": 20}
PROMPTS = [sys.executable, "-m", "examples.verifiers.reasoning_gym"]


@pytest.fixture(scope="module")
def verifier() -> BatchVerifier:
    return reasoning_gym.build(CONFIG, Context(5.0))


def check(verifier: BatchVerifier, text: str, reference: str) -> Check:
    return verifier.check_all([Answer(text, {"reference": reference})])[0]


@pytest.fixture(scope="module")
def printed() -> list[dict[str, object]]:
    done = subprocess.run(  # noqa: S603 our own interpreter and module
        [*PROMPTS, "chain_sum", "--size", "5", "--seed", "3"], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def solved(item: dict[str, object]) -> str:
    """The sum that the prompt asks for."""
    assert isinstance(item["messages"], list)
    question = item["messages"][-1]["content"]
    expression = "".join(character for character in question.split(":")[-1] if character in "0123456789+-")
    return str(eval(expression))  # noqa: S307


@pytest.mark.slow
def test_printed_prompts_are_sentinels_that_the_verifier_can_score(
    verifier: BatchVerifier, printed: list[dict[str, object]]
) -> None:
    assert [set(item) for item in printed] == [{"messages", "reference"}] * 5
    for item in printed:
        reference = json.loads(str(item["reference"]))
        for named in (reference, {"index": reference["index"], "size": reference["size"]}):
            found = check(verifier, f"Let me see. <answer>{solved(item)}</answer>", json.dumps(named))
            assert (found.value, found.fault) == (1.0, "none")


def test_a_reference_may_be_an_entry(verifier: BatchVerifier) -> None:
    entry = {"question": "?", "answer": "42", "metadata": {}}
    assert check(verifier, "<answer>42</answer>", json.dumps(entry)).value == 1.0


@pytest.mark.parametrize("text", ["<answer>x</answer>", "<answer></answer>", "5", "<answer>5", ""])
def test_what_the_scorer_refuses_is_the_models_fault(verifier: BatchVerifier, text: str) -> None:
    found = check(verifier, text, '{"index": 0}')
    assert (found.value, found.fault) == (0.0, "model")
    assert found.reason


@pytest.mark.parametrize(
    "reference",
    ["nonsense", "[]", '{"index": 20}', '{"index": "2"}', '{"index": 1, "dataset": "other"}', '{"answer": 1}'],
)
def test_a_reference_that_names_no_entry_is_the_apps_fault(verifier: BatchVerifier, reference: str) -> None:
    found = check(verifier, "<answer>5</answer>", reference)
    assert (found.value, found.status, found.fault) == (None, "unscored", "user")


def test_the_last_tag_counts_and_without_a_tag_all_does() -> None:
    assert reasoning_gym.answer_in("<answer>1</answer> no <answer> 2 </answer>", "answer") == "2"
    assert reasoning_gym.answer_in(" 2\n", "") == "2"
    assert reasoning_gym.answer_in("2", "answer") == wrong("no <answer> answer")


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"dataset": "chain_sums"}, {"dataset": "chain_sum", "options": {"no_such": 1}}])
def test_a_dataset_that_cannot_be_had_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidTask, match=r"chain_sum|no_such") as caught:
        reasoning_gym.build(config)
    assert caught.value.param == "dataset"


@pytest.mark.slow
def test_the_command_names_what_is_wrong() -> None:
    done = subprocess.run([*PROMPTS, "no_such_thing"], capture_output=True, text=True, check=False)  # noqa: S603 as above
    assert done.returncode == 2
    assert "no_such_thing" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "honest"), [("countdown", ""), ("polynomial_multiplication", ""), ("binary_matrix", "[[0]]")]
)
def test_scorers_that_evaluate_an_answer_run_nothing_of_it(dataset: str, honest: str, tmp_path: Path) -> None:
    """An answer that took over its worker gave every later one the best value."""
    verifier, mark = reasoning_gym.build({"dataset": dataset, "size": 1}, Context(10.0)), tmp_path / "mark"
    reference = '{"index": 0}'
    before = check(verifier, f"<answer>{honest or '1'}</answer>", reference)
    for attack in (
        f"__import__('pathlib').Path('{mark}').touch()",
        f"open('{mark}', 'w')",
        f"[open('{mark}', 'w') for _ in '1']",
        f"(lambda: open('{mark}', 'w'))()",
        f"sympify(\"open('{mark}', 'w')\")",
        f"1! + open('{mark}', 'w').write('1')",
        'exec("import reasoning_gym.games.countdown as c; c.CountdownDataset.score_answer = lambda *_: 1.0")',
        "__import__('time').sleep(60)",
    ):
        found = check(verifier, f"<answer>{attack}</answer>", reference)
        assert found.status == "scored"
        assert found.value is not None
        assert found.value < 0.1
    assert not mark.exists()
    assert check(verifier, f"<answer>{honest or '1'}</answer>", reference) == before


@each_case("text", ["x", "f(1)", "(1).real", "[a for a in 'b']", "lambda: 1", "f'{1}'", "1\n2", "(y := 1)"])
def test_only_literals_and_operators_are_evaluated(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, NameError)):
        arithmetic(text)


def test_literals_and_operators_have_their_value() -> None:
    assert arithmetic(" [1 + 2, 'a', {'b': (0x10 >> 1) // 3}]") == [3, "a", {"b": 2}]
