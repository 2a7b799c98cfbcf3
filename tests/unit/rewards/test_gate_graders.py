"""The graders behind the gate's port: every kind of task, the least of several, and faults that give no value; and the fast marks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidSettings, InvalidTask
from contracts.gating import GateAnswer
from contracts.records import FinishReason, GenerationBody
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.gating import FastMarks, GateGraders
from rewards.grader import Grader
from rewards.judges.report import identity_of
from rewards.verifiers.check import Answer, Check, bad_reference, broken
from runtime.sentinels import read_sentinels
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.rewards.verifiers.tampers import HONEST, SUITE
from tests.worlds.servers.judge import AskedJudge, JudgeServer, judge_server, verdict

SIGNALS = '[signals.accepted]\ntype = "bool"\nlabels = { true = 1.0, false = 0.0 }\n'
CALL = '{"name": "now", "arguments": {}}'
ASK = [{"role": "user", "content": "?"}]


def a_task(folder: Path, *parts: str) -> Task:
    path = folder / "t.toml"
    path.write_text("\n".join(['name = "t"', SIGNALS, *parts]))
    (task,) = load_tasks((path,)).values()
    return task


def a_verifier(kind: str, *more: str, name: str = "v") -> str:
    return "\n".join(["[[verifiers]]", f'name = "{name}"', f'kind = "{kind}"', 'role = "watch"', *more, ""])


def answer(text: str, reference: object = None, **metadata: str) -> GateAnswer:
    known = (
        {} if reference is None else {"reference": reference if isinstance(reference, str) else json.dumps(reference)}
    )
    return GateAnswer(text, ASK, {**known, **metadata})


def values(task: Task, *answers: GateAnswer) -> list[float | None]:
    graders = GateGraders({task.name: task})
    try:
        return [score.value for score in graders(task.name, answers)]
    finally:
        graders.close()


@pytest.mark.parametrize(
    ("part", "reference", "right", "wrong"),
    [
        pytest.param(
            *(a_verifier("math"), "\\frac{1}{2}", "It is \\boxed{0.5}", "It is \\boxed{2}"), marks=pytest.mark.slow
        ),
        (a_verifier("code"), SUITE, f"```python\n{HONEST}\n```", "```python\npass\n```"),
        (a_verifier("json_exact"), {"a": 1}, '{"a": 1}', '{"a": 2}'),
        (a_verifier("choice"), "B", "The answer is B", "The answer is C"),
        (a_verifier("numeric"), "42", "The answer is 42", "The answer is 43"),
        (
            a_verifier("tool_call", 'config.match = "exact"', 'config.tools = [{ name = "now" }]'),
            f"[{CALL}]",
            f"<tool_call>{CALL}</tool_call>",
            "Noon, I think",
        ),
    ],
)
def test_tasks_of_every_sort_are_graded(tmp_path: Path, part: str, reference: object, right: str, wrong: str) -> None:
    assert values(a_task(tmp_path, part), answer(right, reference), answer(wrong, reference)) == [1.0, 0.0]


def test_of_several_graders_the_least_counts(tmp_path: Path) -> None:
    task = a_task(tmp_path, a_verifier("token_f1", name="near"), a_verifier("exact", name="same"))
    assert values(task, answer("a b", "a b"), answer("b a", "a b")) == [1.0, 0.0]


def test_a_gate_of_the_training_reward_spares_nobody_here(tmp_path: Path) -> None:
    refusing = '[[verifiers]]\nname = "shape"\nkind = "regex"\nrole = "gate"\nconfig.pattern = "nowhere to be found"\n'
    assert values(a_task(tmp_path, refusing, a_verifier("exact")), answer("a", "a")) == [1.0]


def test_what_an_app_or_we_did_wrong_is_no_value(tmp_path: Path) -> None:
    assert values(a_task(tmp_path, a_verifier("json_exact")), answer("{}", "no json")) == [None]


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    def decide(asked: AskedJudge) -> str:
        return verdict("yes" if "good" in asked.answer else "no")

    with judge_server(decide) as running:
        yield running


def a_judge(folder: Path, url: str, *more: str, admitted: bool = True) -> Task:
    fields = ['name = "j"', 'role = "watch"', f'url = "{url}"', 'model = "m"', 'criteria = "It is right."', *more]
    fields += ['admission = "j.json"'] if admitted else []
    task = a_task(folder, "\n".join(["[[judges]]", *fields, ""]), '[gate]\ngraders = ["j"]')
    identity = identity_of(task.judges[0])
    head = {"task": "t", "judge": "j", "at": "", "labels_file": "", "labels_sha256": "", "identity": identity}
    (folder / "j.json").write_text(json.dumps({**head, "figures": FIGURES}))
    return task


def test_a_judge_that_watches_may_gate_and_sees_every_answer(tmp_path: Path, server: JudgeServer) -> None:
    task = a_judge(tmp_path, server.url, "sample_share = 0.01", "tokens_per_minute = 1")
    told = [answer(f"a good answer, number {number}") for number in range(70)] + [answer("a poor one")]
    assert values(task, *told) == [1.0] * 70 + [0.0]


def test_a_judge_remembers_nothing_from_the_batch_before(tmp_path: Path, server: JudgeServer) -> None:
    task = a_judge(tmp_path, server.url)
    graders = GateGraders({"t": task})
    for _ in range(2):
        assert [score.value for score in graders("t", [answer("a good one")] * 100)] == [1.0] * 100
    assert len(server.asked) == 2, "once in each batch"
    graders.close()


def test_a_judge_that_is_away_gives_no_value(tmp_path: Path) -> None:
    task = a_judge(tmp_path, "http://127.0.0.1:9/v1", "retries = 0")
    assert values(task, answer("a good answer, surely")) == [None]


def test_a_judge_that_was_not_admitted_cannot_gate(tmp_path: Path, server: JudgeServer) -> None:
    with pytest.raises(InvalidTask, match=r"t\.toml:\d+: judge 'j' was not admitted, so .* it cannot gate"):
        GateGraders({"t": a_judge(tmp_path, server.url, admitted=False)})


@pytest.mark.parametrize(
    ("part", "item", "says"),
    [
        (a_verifier("math"), {}, "v cannot grade an answer to this sentinel: it has no `reference`"),
        (a_verifier("math"), {"reference": "a long story in prose"}, "prose"),
        (a_verifier("json_exact"), {"reference": "{"}, "metadata.reference is not JSON"),
        (a_verifier("code"), {"reference": "print(1)"}, "v cannot grade an answer to this sentinel"),
        (a_verifier("choice"), {"reference": "E"}, "is not one of A, B, C, D"),
        (a_verifier("numeric"), {"reference": "many"}, "is not a number"),
        (
            a_verifier("tool_call", 'config.match = "exact"', 'config.tools = [{ name = "now" }]'),
            {"reference": "now()"},
            "is not a list of calls",
        ),
        (a_verifier("function", 'config.path = "mine.py:silent"'), {"reference": "1"}, "gave no reward"),
        (a_verifier("function", 'config.path = "mine.py:by_tests"'), {"metadata": {"other": "x"}}, "gave no reward"),
    ],
)
def test_a_sentinel_that_cannot_be_graded_is_refused_by_file_and_line(
    tmp_path: Path, part: str, item: dict[str, Any], says: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "def silent(completions, **columns):\n    return [None for _ in completions]\n"
        "def by_tests(completions, tests=None, **columns):\n"
        "    return [None if tests is None else 1.0 for _ in completions]\n"
    )
    task = a_task(tmp_path, part)
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"messages": ASK, **item}) + "\n")
    graders = GateGraders({"t": task})
    try:
        with pytest.raises(InvalidSettings) as refused:
            graders.check(read_sentinels(path, {"t": task}))
    finally:
        graders.close()
    assert refused.value.message.startswith(f"{path}:1: v cannot grade an answer to this sentinel: ")
    assert says in refused.value.message


def test_sentinels_that_can_be_graded_pass_also_where_a_function_wants_other_metadata(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def by_tests(completions, tests=None, **columns):\n"
        "    return [None if tests is None else float('1' in c[0]['content']) for c in completions]\n"
    )
    task = a_task(tmp_path, a_verifier("function", 'config.path = "mine.py:by_tests"'))
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"messages": ASK, "metadata": {"tests": ["assert f(1)"]}}) + "\n")
    graders = GateGraders({"t": task})
    found = read_sentinels(path, {"t": task})
    graders.check(found)
    assert [score.value for score in graders("t", [found.items[0].answered("1"), found.items[0].answered("2")])] == [
        1,
        0,
    ]
    graders.close()


@pytest.mark.slow
def test_a_prompt_of_a_user_is_graded_by_what_needs_no_reference(tmp_path: Path) -> None:
    code = "def short(completions, **columns):\n    return [len(said[0]['content']) < 5 for said in completions]\n"
    (tmp_path / "graders.py").write_text(code)
    task = a_task(
        tmp_path, a_verifier("exact"), a_verifier("function", 'config = { path = "graders:short" }', name="short")
    )
    graders = GateGraders({"t": task}, with_reference=False)
    scores = graders("t", [answer("yes"), answer("yes, of course")])
    graders.close()
    assert [score.value for score in scores] == [1.0, 0.0]


ACCEPTED = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
SCHEMA = {"type": "object", "required": ["party"]}
TOOL = {"name": "book", "parameters": {"type": "object", "required": ["party"]}}
TASKS = {
    name: Task.model_validate({"name": name, "signals": ACCEPTED, "verifiers": verifiers})
    for name, verifiers in {
        "free": [],
        "booking": [{"name": "shape", "kind": "json_schema", "config": {"schema": SCHEMA}}],
        "watched": [{"name": "shape", "kind": "json_schema", "role": "watch", "config": {"schema": SCHEMA}}],
        "asked": [{"name": "asked", "kind": "instruction", "config": {}}],
        "tools": [
            {"name": "calls", "kind": "tool_call", "config": {"tools": [TOOL], "match": "exact", "required": False}}
        ],
    }.items()
}
MARKS = FastMarks({name: task for name, task in TASKS.items() if name != "asked"})


def marks(task: str, text: str, reason: FinishReason = "stop", **changes: Any) -> dict[str, float]:
    values = {"messages": [], "text": text, "prompt_ids": b"", "completion_ids": b"", "logprobs": b""}
    return MARKS(task, GenerationBody(**(values | changes)), reason)


def a_call(arguments: str, name: str = "book") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A table for two.", {"refuses": 0.0, "invalid_tool_call": 0.0, "empty": 0.0}),
        ("I'm sorry, but I can't help with that.", {"refuses": 1.0, "invalid_tool_call": 0.0, "empty": 0.0}),
        (" \n", {"refuses": 0.0, "invalid_tool_call": 0.0, "empty": 1.0}),
        ("<tool_call>{book</tool_call>", {"refuses": 0.0, "invalid_tool_call": 1.0, "empty": 0.0}),
    ],
)
def test_a_task_without_verifiers_has_the_marks_of_the_text(text: str, expected: dict[str, float]) -> None:
    assert marks("free", text) == expected
    assert marks("a task that is gone", text) == expected


def test_the_form_that_a_task_asks_for_is_checked() -> None:
    assert [marks("booking", text)["misshapen"] for text in ('{"party": 2}', '{"party": 2', "{}")] == [0.0, 1.0, 1.0]
    assert "misshapen" not in marks("watched", "{}"), "what a task only watches is not wrong"


def test_a_call_that_cannot_run_is_invalid_and_one_unlike_the_reference_is_not() -> None:
    reference = {"reference": '[{"name": "book", "arguments": {"party": 3}}]'}

    def invalid(*calls: dict[str, Any], metadata: dict[str, str] | None = None) -> float:
        return marks("tools", "", tools=[{}], tool_calls=list(calls), metadata=metadata or {})["invalid_tool_call"]

    assert [invalid(a_call(said)) for said in ('{"party": 2}', '{"guests": 2}', "{")] == [0.0, 1.0, 1.0]
    assert invalid(a_call('{"party": 2}', "cancel")) == 1.0
    assert invalid(a_call('{"party": 2}'), metadata=reference) == 0.0
    assert marks("tools", "", tools=[{}], tool_calls=[a_call("{}")])["empty"] == 0.0


def test_a_verifier_that_fails_gives_no_mark_and_never_a_bad_one() -> None:
    found = FastMarks(TASKS)
    body = GenerationBody(messages=[], text="{}", prompt_ids=b"", completion_ids=b"", logprobs=b"")
    assert "misshapen" not in found("asked", body, "stop"), "nobody said what was asked for"
    [grader] = found._form["booking"]
    failing: Grader = grader._replace(check_all=lambda answers: [broken("away") for _ in answers])
    found._form["booking"] = [failing]
    assert found("booking", body, "stop").keys() == {"refuses", "invalid_tool_call", "empty"}


def test_a_wrong_config_is_refused_at_the_start() -> None:
    wrong = Task.model_validate(
        {"name": "x", "signals": ACCEPTED, "verifiers": [{"name": "r", "kind": "regex", "config": {"pattern": "("}}]}
    )
    with pytest.raises(InvalidTask, match="not an RE2 pattern"):
        FastMarks({"x": wrong})


@pytest.mark.parametrize("item", [{}, {"reference": "1"}])
def test_a_missing_reference_is_found_before_a_probe_and_a_fault_without_words_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: dict[str, str]
) -> None:
    asked: list[Answer] = []

    def check_all(answers: Sequence[Answer]) -> list[Check]:
        asked.extend(answers)
        return [bad_reference("") for _ in answers]

    monkeypatch.setattr("rewards.gating.graders_of", lambda *_: [Grader("v", "watch", 0.0, "v", True, check_all)])
    task = a_task(tmp_path, a_verifier("math"))
    (tmp_path / "s.jsonl").write_text(json.dumps({"messages": ASK, **item}) + "\n")
    graders = GateGraders({"t": task})
    refused = contextlib.nullcontext() if item else pytest.raises(InvalidSettings, match="it has no `reference`")
    with contextlib.closing(graders), refused:
        graders.check(read_sentinels(tmp_path / "s.jsonl", {"t": task}))
    assert bool(asked) == bool(item)
