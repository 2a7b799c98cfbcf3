from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from commands.rewards.score import read_config_file, run_score
from contracts.errors import InvalidSettings, InvalidTask
from tests.command_line import run_here
from tests.each_case import each_case

ROOT = Path(__file__).parent.parent.parent.parent
TASK = """name = "t"
[signals.thumbs]
type = "label"
labels = { up = 1.0, down = 0.0 }
[reward]
signals = 0.0
[[verifiers]]
name = "shape"
kind = "json_schema"
[verifiers.config.schema]
type = "object"
[[verifiers]]
name = "same"
kind = "json_exact"
role = "component"
"""


def score(lines: list[Any], **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Status and answers; a line is bytes or something that JSON can say."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    answers = io.BytesIO()
    status = run_score(cases=io.BytesIO(b"\n".join(raw)), answers=answers, **options)
    return status, [json.loads(line) for line in answers.getvalue().splitlines()]


def test_cases_are_answered_in_their_order() -> None:
    cases = [{"prompt": "2+2?", "completion": str(number % 3), "reference": 1} for number in range(300)]
    status, answers = score(cases, verifier="numeric")
    assert status == 0
    assert [answer["value"] for answer in answers] == [float(number % 3 == 1) for number in range(300)]
    assert {*answers[0]} == {"value", "status", "fault", "reason", "seconds"}
    assert all(0 <= answer["seconds"] < 1 for answer in answers)


@pytest.mark.parametrize(
    ("reference", "completion", "value"),
    [
        ("Paris", "Paris", 1.0),
        (5, "5", 1.0),
        (True, "true", 1.0),
        (["a", "ü"], '["a", "ü"]', 1.0),
        ({"a": 1}, '{"a": 1}', 1.0),
        (None, "null", None),
    ],
)
def test_a_reference_may_be_any_json(reference: Any, completion: str, value: float | None) -> None:
    _, (answer,) = score([{"completion": completion, "reference": reference}], verifier="exact")
    assert answer["value"] == value


def test_a_prompt_may_be_a_text_or_messages(tmp_path: Path) -> None:
    config = tmp_path / "form.json"
    config.write_text('{"checks": [{"check": "repeat_prompt"}]}')
    cases = [
        {"prompt": "Why?", "completion": "Why? So."},
        {"prompt": [{"role": "user", "content": "Why?"}], "completion": "Why? So."},
        {"completion": "Why? So."},
    ]
    _, answers = score(cases, verifier="instruction", config=config)
    assert [answer["fault"] for answer in answers] == ["none", "none", "user"]


def test_metadata_reaches_the_verifier_and_a_reference_in_it_counts() -> None:
    _, answers = score([{"completion": "5", "metadata": {"reference": 5, "x": [1]}}], verifier="numeric")
    assert answers[0]["value"] == 1.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1], "JSON object"),
        ({"prompt": "x"}, "`completion` must be the text of the answer, not nothing"),
        ({"completion": 5}, "not a number"),
        ({"completion": "x", "prompt": 5}, "`prompt`"),
        ({"completion": "x", "prompt": [{"content": "x"}]}, "`prompt`"),
        ({"completion": "x", "metadata": "y"}, "`metadata` must be an object"),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_answered(
    line: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"completion": "1", "reference": "1"}
    status, answers = score([good, b"", good, line, good], verifier="exact")
    assert (status, [answer["value"] for answer in answers]) == (2, [1.0, 1.0])
    said = capsys.readouterr().err
    assert "line 4" in said
    assert says in said
    assert "mend or remove it" in said


def test_half_of_a_surrogate_pair_does_not_break_the_output() -> None:
    status, (answer,) = score([b'{"completion": "\\ud800", "reference": "x"}'], verifier="exact")
    assert (status, answer["value"]) == (0, 0.0)
    status, (answer,) = score([b'{"completion": "x \\ud800 y", "reference": "5"}'], verifier="numeric")
    assert (status, answer["fault"]) == (0, "model")


def test_nothing_in_is_nothing_out() -> None:
    assert score([], verifier="exact") == (0, [])
    assert score([b"", b"  "], verifier="exact") == (0, [])


def test_a_task_file_runs_all_its_graders_and_says_the_reward(tmp_path: Path) -> None:
    task = tmp_path / "t.toml"
    task.write_text(TASK)
    cases = [{"completion": text, "reference": {"a": 1}} for text in ('{"a": 1}', '{"a": 2}', "none")]
    _, answers = score([*cases, {"completion": "{}"}], task=task)
    assert [answer["reward"] for answer in answers] == [1.0, 0.0, 0.0, None]
    assert [answer["fault"] for answer in answers] == ["none", "none", "model", "none"]
    assert [item["name"] for item in answers[0]["scores"]] == ["shape", "same"]
    assert answers[2]["reason"] == "gate:shape"


@each_case(
    ("options", "says"),
    [
        ({}, "--list"),
        ({"verifier": "exact", "task": Path("t.toml")}, "--list"),
        ({"task": Path("t.toml"), "config": Path("c.toml")}, "--config belongs to --verifier"),
        ({"verifier": "nosuch"}, "there are"),
        ({"verifier": "regex"}, "config.pattern"),
        ({"verifier": "exact", "deadline": 0.0}, "--deadline"),
        ({"verifier": "exact", "config": Path("/nonexistent.toml")}, "nonexistent"),
        ({"task": Path("/nonexistent.toml")}, "nonexistent"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidSettings, InvalidTask), match=says):
        score([], **options)


def test_a_kind_that_needs_a_config_says_how_to_give_it_one() -> None:
    with pytest.raises(InvalidTask, match=r"config\.pattern: Field required; --config FILE gives it a config"):
        run_score(verifier="regex")


def test_a_mistake_in_a_config_file_is_named_by_its_line(tmp_path: Path) -> None:
    config = tmp_path / "regex.toml"
    config.write_text('pattern = "a"\n\nmust = "find"\n')
    with pytest.raises(InvalidTask, match=r"regex\.toml:3: .*config\.must"):
        score([], verifier="regex", config=config)


@pytest.mark.parametrize(("name", "text"), [("c.toml", "a = "), ("c.json", "{"), ("c.json", "[]"), ("c.toml", "\x00")])
def test_a_config_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=name.replace(".", r"\.")):
        read_config_file(file)


def test_who_writes_one_case_and_waits_gets_its_answer() -> None:
    reading, writing = os.pipe()
    answered = threading.Event()

    class Answers(io.BytesIO):
        def flush(self) -> None:
            answered.set()

    with os.fdopen(reading, "rb") as cases, os.fdopen(writing, "wb") as writer:
        answers = Answers()
        options: dict[str, Any] = {"verifier": "exact", "cases": cases, "answers": answers}
        thread = threading.Thread(target=run_score, kwargs=options)
        thread.start()
        writer.write(b'{"completion": "x", "reference": "x"}\n')
        writer.flush()
        assert answered.wait(10.0)
        assert json.loads(answers.getvalue())["value"] == 1.0
        writer.close()
        thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.slow
def test_the_command_line_answers_and_lists() -> None:
    command = [sys.executable, str(ROOT / "millrace.py"), "score"]
    case = '{"completion": "A", "reference": "A"}\n{"completion": 1}\n'
    ran = subprocess.run([*command, "--verifier", "choice"], input=case, capture_output=True, text=True, check=False)  # noqa: S603 our own script
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["value"] == 1.0
    assert "line 2" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "token_f1" in run_here("score", "--list").stdout


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_that_arrive_in_pieces_are_put_together(end: bytes) -> None:
    class Pieces(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(min(7, size or 7))

    line = json.dumps({"completion": "\u00fc" * 20, "reference": "\u00fc" * 20}, ensure_ascii=False).encode()
    answers = io.BytesIO()
    assert run_score(verifier="exact", cases=Pieces(b"\n".join([line] * 5) + end), answers=answers) == 0
    assert [json.loads(found)["value"] for found in answers.getvalue().splitlines()] == [1.0] * 5


@pytest.mark.slow
def test_a_bad_line_ends_it_cleanly_while_more_is_being_written() -> None:
    command = [sys.executable, str(ROOT / "millrace.py"), "score", "--verifier", "exact"]
    good = b'{"completion": "x", "reference": "x"}\n'
    ran = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603 our own script
    assert ran.stdin is not None
    ran.stdin.write(good + b"{\n")
    ran.stdin.flush()
    assert ran.wait(60.0) == 2  # standard input is still open
    said, problems = ran.communicate()
    assert said.count(b"\n") == 1
    assert problems.count(b"\n") == 1


TOOLS = {"tools": [{"name": "save"}], "match": "exact"}


@pytest.mark.parametrize(
    ("verifier", "config", "case", "said"),
    [
        ("numeric", None, ("$3.4 \\times 10^3$", "3400"), {"answer": "3400", "reference": "3400"}),
        ("numeric", None, ("5 or 6", "5"), {"answer": "none: 2 different numbers", "reference": "5"}),
        ("choice", None, ("<think>A</think>(B)", "b"), {"answer": "B", "reference": "b"}),
        ("exact", None, ("a\u00a0b ", "a b"), {"answer": "a b", "reference": "a b"}),
        ("json_schema", {"schema": {}}, ("<think>[", None), {"answer": "its reasoning is never closed"}),
        ("json_schema", {"schema": {}}, ('{"b": 2, "a": 1}', None), {"answer": '{"a": 1, "b": 2}'}),
        (
            "tool_call",
            TOOLS,
            ('[TOOL_CALLS]save{"a": 1}', [{"name": "save", "arguments": {}}]),
            {
                "answer": '[{"arguments": {"a": 1}, "name": "save"}]',
                "family": "mistral",
                "reference": '[{"arguments": {}, "name": "save"}]',
            },
        ),
        (
            "tool_call",
            TOOLS,
            ("<tool_call>{", None),
            {"answer": "broken: call 1: the answer ends inside of it", "family": "hermes"},
        ),
        ("regex", {"pattern": "x"}, ("x", None), "regex explains nothing"),
    ],
)
def test_explain_says_what_was_parsed(tmp_path: Path, verifier: str, config: Any, case: Any, said: Any) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    completion, reference = case
    given = {"completion": completion, "reference": reference}
    _, [answer] = score([given], verifier=verifier, config=file if config else None, explain=True)
    assert answer["explained"] == said


def test_what_is_explained_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(TASK)
    _, [answer] = score([{"completion": json.dumps(["x" * 1_000_000]), "reference": "[]"}], task=file, explain=True)
    assert len(answer["explained"]["shape"]["answer"]) == 2004
    assert answer["explained"]["same"] == "json_exact explains nothing"
