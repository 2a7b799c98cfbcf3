from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidTask
from contracts.tasks.loading import load_tasks
from rewards.grader import Grader
from rewards.panel import graders_of
from rewards.verifiers import function
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context

pytestmark = pytest.mark.slow

CODE = """
import asyncio, math, os, time

def solved(prompts, completions, solution, **kwargs):
    print("to standard output")
    assert prompts[0][0]["role"] == "user"
    return [1.0 if said[0]["content"] == right else 0.0 for said, right in zip(completions, solution, strict=True)]

def logged(completions, log_extra, log_metric, trainer_state, extra=None, **kwargs):
    log_extra("column", [1]); log_metric("metric", 1.0)
    return [0.5 if one is None else float(one) for one in extra or [None] * len(completions)]

def texts(prompts, completions):
    return [1.0 if prompt == "say" and said == "it" else 0.0 for prompt, said in zip(prompts, completions)]

async def later(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [0.25 for _ in completions]

class Callable:
    async def __call__(self, completions, **kwargs):
        return tuple(0.75 for _ in completions)

made = Callable()

def arrays(completions, **kwargs):
    import numpy
    return numpy.linspace(-1, 1, len(completions))

def bools(completions, **kwargs):
    return [one[0]["content"] == "4" for one in completions]

def array_of_bools(completions, **kwargs):
    import numpy
    return numpy.array([one[0]["content"] for one in completions]) == "4"

def scalars(completions, **kwargs):
    import decimal, fractions, numpy
    kinds = [numpy.bool_, numpy.int64, numpy.float32, numpy.array, decimal.Decimal, fractions.Fraction, bool]
    return [None if one[0]["content"] == "none" else kinds[place](int(one[0]["content"] == "4"))
            for place, one in enumerate(completions)]

def tensors(completions, **kwargs):
    import torch
    found = [torch.tensor(one[0]["content"] == "4") for one in completions]
    return [found[0], found[1].float(), *found[2:]]

def tensor(completions, **kwargs):
    import torch
    return torch.tensor([one[0]["content"] == "4" for one in completions])

def deeds(completions, **kwargs):
    said = [one[0]["content"] for one in completions]
    if "spin" in said:
        while True:
            pass
    if "sleep" in said:
        time.sleep(600)
    if "die" in said:
        os._exit(3)
    if "raise" in said:
        raise ValueError("a mistake")
    values = {"nan": math.nan, "text": "1.0", "none": None, "two": 2.0, "list": [1.0], "inf": math.inf}
    return [values.get(one, 1.0) for one in said]

def scalar(completions, **kwargs):
    return 1.0

def short(completions, **kwargs):
    return [1.0]

def dictionary(completions, **kwargs):
    return {"rewards": [1.0] * len(completions)}

def hangs(completions, **kwargs):
    time.sleep(600)

def trainer_only(completions, completion_ids, **kwargs):
    return []

number = 5
"""
DEADLINE = 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    (folder / "mine.py").write_text(CODE, encoding="utf-8")
    (folder / "package").mkdir()
    (folder / "package" / "module.py").write_text("from mine import later as renamed\n", encoding="utf-8")
    return folder


def build(folder: Path, path: str, deadline: float = DEADLINE, **config: Any) -> BatchVerifier:
    return function.build({"path": path, **config}, Context(deadline, str(folder)))


@pytest.fixture(scope="module")
def deeds(folder: Path) -> BatchVerifier:
    return build(folder, "mine.py:deeds")


def ask(verifier: BatchVerifier, *texts: str, **metadata: str) -> list[Check]:
    message = {"role": "user", "content": "say"}
    return list(verifier.check_all([Answer(text, metadata, [message]) for text in texts]))


def values(verifier: BatchVerifier, *texts: str, **metadata: str) -> list[float | None]:
    checks = ask(verifier, *texts, **metadata)
    assert {check.fault for check in checks} == {"none"}
    return [check.value for check in checks]


def test_a_function_of_trl_works_unchanged(folder: Path) -> None:
    assert values(build(folder, "mine.py:solved", 5.0), "5", "6", solution="5") == [1.0, 0.0]
    assert values(build(folder, "mine.py:logged", 5.0), "5", "6") == [0.5, 0.5]
    assert values(build(folder, "mine.py:logged", 5.0), "5", extra="1") == [1.0]
    assert values(build(folder, "mine.py:later", 5.0), "5", "6") == [0.25, 0.25]
    assert values(build(folder, "mine.py:made", 5.0), "5", "6") == [0.75, 0.75]
    assert values(build(folder, "package.module:renamed", 5.0), "5") == [0.25]


def test_the_reference_is_passed_under_the_name_that_the_function_uses(folder: Path) -> None:
    verifier = build(folder, "mine.py:solved", 5.0, reference_column="solution")
    assert values(verifier, "5", "6", reference="6") == [0.0, 1.0]
    assert [check.status for check in ask(verifier, "5")] == ["unlabelled"]


def test_prompts_and_completions_can_be_texts(folder: Path) -> None:
    assert values(build(folder, "mine.py:texts", 5.0, conversational=False), "it", "no", unused="x") == [1.0, 0.0]


def test_rewards_are_mapped_to_one_range(folder: Path) -> None:
    verifier = build(folder, "mine.py:arrays", 5.0, minimum=-1.0, maximum=1.0)
    assert values(verifier, "a", "b", "c") == [0.0, 0.5, 1.0]
    (low, *_) = ask(build(folder, "mine.py:arrays", 5.0), "a", "b", "c")
    assert (low.value, low.fault) == (None, "infra")
    assert "set minimum and maximum" in low.reason


@pytest.mark.parametrize("bad", ["nan", "inf", "text", "two", "list"])
def test_what_is_no_reward_is_our_fault_and_the_others_keep_theirs(deeds: BatchVerifier, bad: str) -> None:
    first, second, third = ask(deeds, "fine", bad, "fine")
    assert (first.value, third.value) == (1.0, 1.0)
    assert (second.value, second.status, second.fault) == (None, "unscored", "infra")
    assert second.reason.startswith("it answered")
    assert ("set minimum and maximum" in second.reason) == (bad == "two")


@pytest.mark.parametrize("name", ["bools", "array_of_bools", "scalars", "tensors", "tensor"])
def test_bools_are_rewards_in_whatever_form_trl_takes_them(folder: Path, name: str) -> None:
    verifier = build(folder, f"mine.py:{name}", 30.0)
    assert values(verifier, "4", "5", "4", "4", "5", "4", "4") == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]


def test_beside_bools_none_says_nothing(folder: Path) -> None:
    first, second, third = ask(build(folder, "mine.py:scalars", 5.0), "4", "none", "5")
    assert (first.value, second.status, second.fault, third.value) == (1.0, "unlabelled", "none", 0.0)


def test_none_says_nothing(deeds: BatchVerifier) -> None:
    first, second = ask(deeds, "fine", "none")
    assert (first.value, second.status, second.fault) == (1.0, "unlabelled", "none")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("spin", "longer than"),
        ("sleep", "longer than"),
        ("die", "ended with code 3"),
        ("raise", "ValueError: a mistake"),
    ],
)
def test_an_answer_that_breaks_it_takes_no_other_along(deeds: BatchVerifier, bad: str, says: str) -> None:
    first, second, third = ask(deeds, "fine", bad, "fine")
    assert (first.value, third.value) == (1.0, 1.0)
    assert (second.value, second.status, second.fault) == (None, "unscored", "infra")
    assert says in second.reason


@pytest.mark.parametrize(
    ("name", "says"),
    [("scalar", "float for 3 answers"), ("short", "1 rewards for 3 answers"), ("dictionary", "dict for 3 answers")],
)
def test_one_value_is_never_spread_over_many_answers(folder: Path, name: str, says: str) -> None:
    grader = Grader("f", "component", 1.0, "f", is_slow=True, check_all=build(folder, f"mine.py:{name}", 5.0).check_all)
    for score in grader.score_all([Answer("a"), Answer("b"), Answer("c")]):
        assert (score.value, score.status, score.fault) == (None, "unscored", "infra")
        assert says in score.reason


def test_a_function_that_always_hangs_costs_a_bounded_time(folder: Path) -> None:
    verifier = build(folder, "mine.py:hangs", 0.15)
    started = time.monotonic()
    checks = ask(verifier, *["a"] * 200)
    assert time.monotonic() - started < 20.0
    assert {(check.value, check.fault) for check in checks} == {(None, "infra")}


async def test_it_works_under_asyncio(folder: Path) -> None:
    verifier = build(folder, "mine.py:later", 5.0)
    assert values(verifier, "a") == [0.25]
    assert await asyncio.to_thread(values, verifier, "a") == [0.25]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    for number in (0.1, 0.2):
        code = f"def reward(completions, **kwargs):\n    return [{number}] * len(completions)\n"
        (tmp_path / "changing.py").write_text(code, encoding="utf-8")
        assert values(build(tmp_path, "changing.py:reward", 5.0), "a", "b") == [number, number]


@pytest.mark.parametrize(
    ("config", "param", "says"),
    [
        ({"path": "mine.py:absent"}, "path", "has no attribute 'absent'"),
        ({"path": "absent.py:reward"}, "path", "there is no file"),
        ({"path": "no.such.module:reward"}, "path", "No module named"),
        ({"path": "mine.py:number"}, "path", "int, not a function"),
        ({"path": "mine.py:trainer_only"}, "path", "completion_ids, which only a trainer has"),
        ({"path": "mine.py"}, "path", "match pattern"),
        ({}, "path", "required"),
        ({"path": "mine.py:deeds", "minimum": 1.0}, "", "maximum must be above minimum"),
        ({"path": "mine.py:deeds", "reference_column": "prompts"}, "", "is reserved"),
    ],
)
def test_a_config_that_cannot_work_is_refused(folder: Path, config: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidTask, match=says) as caught:
        function.build(config, Context(1.0, str(folder)))
    assert caught.value.param == param


def test_a_task_file_with_a_wrong_path_is_refused_with_file_line_and_remedy(folder: Path) -> None:
    lines = ['name = "t"', "[signals.done]", 'type = "text"', "[[verifiers]]", 'name = "mine"', 'kind = "function"']
    (folder / "task.toml").write_text(
        "\n".join([*lines, "[verifiers.config]", 'path = "mine.py:absent"']), encoding="utf-8"
    )
    task = load_tasks((folder / "task.toml",))["t"]
    with pytest.raises(InvalidTask, match=r"task\.toml:8: verifier 'mine' \(function\).*relative to"):
        graders_of(task)


@pytest.mark.slow
def test_trls_own_rewards_score_as_in_trl() -> None:
    pytest.importorskip("math_verify")
    texts = [r"\boxed{5}", r"<think>so</think>\boxed{5}", "<think>so</think>6"]
    for name, expected in [
        ("accuracy_reward", [1.0, 1.0, 0.0]),
        ("think_format_reward", [0.0, 1.0, 1.0]),
        ("reasoning_accuracy_reward", [0.0, 1.0, 0.0]),
    ]:
        config = {"path": f"trl.rewards:{name}", "reference_column": "solution"}
        assert values(function.build(config, Context(30.0)), *texts, reference="5") == expected
