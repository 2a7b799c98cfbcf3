"""`millrace gate`: the rule by hand, for every sort of task, with a status that a script can read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from commands.gate import gate
from commands.home_gates import check_gate, gates_of
from contracts.errors import InvalidSettings
from contracts.tasks.loading import load_tasks
from rewards.judges.report import identity_of
from runtime.sentinels import read_sentinels
from tests.command_line import run_here
from tests.unit.rewards.judges.figures import FIGURES
from tests.unit.rewards.verifiers.tampers import HONEST
from tests.worlds.servers.judge import AskedJudge, JudgeServer, judge_server, verdict

ROOT = Path(__file__).parent.parent.parent.parent
SIGNALS = '[signals.accepted]\ntype = "bool"\nlabels = { true = 1.0, false = 0.0 }\n'
CALL = '{"name": "now", "arguments": {}}'
SUITE = '{"function": "f", "tests": [[2, 5]]}'
NUM = 16


def verifier(kind: str, *more: str) -> str:
    return "\n".join(["[[verifiers]]", 'name = "v"', f'kind = "{kind}"', 'role = "watch"', *more, ""])


class Desk:
    """Files for the command, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = folder / "t.toml"
        self.sentinels = folder / "s.jsonl"

    def declare(self, *parts: str) -> Path:
        self.task.write_text("\n".join(['name = "t"', SIGNALS, *parts]))
        return self.task

    def ask(self, *references: object) -> None:
        lines = [
            json.dumps({"messages": [{"role": "user", "content": f"{n}?"}], "reference": reference})
            for n, reference in enumerate(references)
        ]
        self.sentinels.write_text("\n".join(lines) + "\n")

    def answers(self, name: str, texts: Sequence[str]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps({"completion": text}) + "\n" for text in texts))
        return path

    def judge(self, new: Sequence[str], old: Sequence[str]) -> int:
        return gate(self.task, self.sentinels, self.answers("new.jsonl", new), self.answers("old.jsonl", old))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("part", "reference", "right", "wrong"),
    [
        pytest.param(
            *(verifier("math"), "\\frac{1}{2}", "It is \\boxed{0.5}", "It is \\boxed{2}"), marks=pytest.mark.slow
        ),
        pytest.param(
            *(verifier("code"), SUITE, f"```python\n{HONEST}\n```", "```python\npass\n```"), marks=pytest.mark.slow
        ),
        (verifier("json_exact"), {"a": 1}, '{"a": 1}', '{"a": 2}'),
        (verifier("choice"), "B", "The answer is B", "The answer is C"),
        (verifier("numeric"), "42", "The answer is 42", "The answer is 43"),
        (
            verifier("tool_call", 'config.match = "exact"', 'config.tools = [{ name = "now" }]'),
            f"[{CALL}]",
            f"<tool_call>{CALL}</tool_call>",
            "Noon, I think",
        ),
    ],
)
def test_a_version_that_lost_everything_is_refused_and_one_that_lost_nothing_is_not(  # noqa: PLR0917 a case has four
    desk: Desk, part: str, reference: object, right: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.declare(part)
    desk.ask(*[reference] * NUM)
    assert desk.judge([wrong] * NUM, [right] * NUM) == 1
    refused = printed(capsys)
    assert (refused["accepted"], refused["value"], refused["against"], refused["discordant"]) == (False, 0.0, 1.0, NUM)
    assert refused["reason"].startswith(f"t: worse beyond chance: 0.000 against 1.000, {NUM} lost and 0 won of {NUM}")
    assert desk.judge([right] * NUM, [right] * (NUM - 3) + [wrong] * 3) == 0
    accepted = printed(capsys)
    assert (accepted["accepted"], accepted["graders"], accepted["num"], accepted["alpha"]) == (True, ["v"], NUM, 0.005)
    assert 0.5 < accepted["least_difference"] < 0.9, "eight of sixteen"


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    def decide(asked: AskedJudge) -> str:
        return verdict({"fine": "great", "so-so": "fair"}.get(asked.answer.split()[0], "poor"))

    with judge_server(decide) as running:
        yield running


def declare_judge(desk: Desk, url: str) -> None:
    fields = [
        'name = "j"',
        'role = "watch"',
        f'url = "{url}"',
        'model = "m"',
        'criteria = "It is good."',
        "retries = 0",
    ]
    fields += ['levels = ["poor", "fair", "great"]', 'admission = "j.json"']
    desk.declare("\n".join(["[[judges]]", *fields, ""]), '[gate]\ngraders = ["j"]')
    (task,) = load_tasks((desk.task,)).values()
    identity = identity_of(task.judges[0])
    head = {"task": "t", "judge": "j", "at": "", "labels_file": "", "labels_sha256": "", "identity": identity}
    (desk.folder / "j.json").write_text(json.dumps({**head, "figures": FIGURES}))


def test_a_judge_with_levels_is_compared_by_permutation(
    desk: Desk, server: JudgeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_judge(desk, server.url)
    desk.ask(*[None] * NUM)
    fine = [f"fine words, number {n}" for n in range(NUM)]
    fair = [f"so-so words, number {n}" for n in range(NUM)]
    assert desk.judge(fair, fine) == 1
    found = printed(capsys)
    assert (found["test"], found["value"], found["against"]) == ("permutation", 0.5, 1.0)
    assert desk.judge(fine, fair) == 0


def test_a_judge_that_is_away_is_no_verdict(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    declare_judge(desk, "http://127.0.0.1:9/v1")
    desk.ask(*[None] * 3)
    assert desk.judge(["fine words"] * 3, ["poor words"] * 3) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"millrace: no verdict: {desk.sentinels}:" in said.err
    assert "not graded: j:" in said.err


def test_a_wrong_number_of_answers_is_named_by_file_and_line(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.declare(verifier("exact"))
    desk.ask("a", "b", "c")
    assert desk.judge(["a", "b"], ["a", "b", "c"]) == 2
    assert f"{desk.folder}/new.jsonl:2: it has 2 answers, and there are 3 sentinels" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{", '{"completion": 1}', '{"answer": "a"}', "[]"])
def test_a_line_that_is_no_answer_is_named(desk: Desk, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    desk.declare(verifier("exact"))
    desk.ask("a", "b")
    new, old = desk.folder / "new.jsonl", desk.answers("old.jsonl", ["a", "b"])
    new.write_text(f'{{"completion": "a"}}\n{line}\n')
    assert gate(desk.task, desk.sentinels, new, old) == 2
    assert f"no verdict: {new}:2: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "reference", "says"),
    [
        ("", "a", "task 't' is ungated"),
        (
            '[[verifiers]]\nname = "v"\nkind = "regex"\nconfig.pattern = "a"\n[gate]\ngraders = ["v"]',
            "a",
            "only the form",
        ),
        (verifier("json_exact"), "{", "s.jsonl:1: v cannot grade an answer to this sentinel"),
        (verifier("json_exact"), None, "s.jsonl:1: v cannot grade an answer to this sentinel: it has no `reference`"),
        (verifier("nosuch"), "a", "there is no verifier 'nosuch'"),
    ],
)
def test_a_task_or_sentinel_with_a_mistake_is_no_verdict(
    desk: Desk, part: str, reference: object, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.declare(part)
    desk.ask(reference)
    assert desk.judge(["a"], ["a"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_itself_ends_with_the_status(desk: Desk) -> None:
    desk.declare(verifier("exact"))
    desk.ask(*["a"] * NUM)
    new, old = desk.answers("new.jsonl", ["b"] * NUM), desk.answers("old.jsonl", ["a"] * NUM)

    def gate_of(answers: Path) -> list[str]:
        options = ("--task", desk.task, "--sentinels", desk.sentinels, "--answers", answers, "--against", old)
        return ["gate", *map(str, options)]

    command = [sys.executable, str(ROOT / "millrace.py"), *gate_of(new)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own script
    neither = run_here(*gate_of(desk.folder / "nosuch"))
    assert (refused.returncode, neither.returncode) == (1, 2), refused.stderr
    assert json.loads(refused.stdout)["accepted"] is False
    assert "No such file" in neither.stderr


def test_what_a_set_can_see_is_said_before_there_are_data(desk: Desk) -> None:
    desk.declare(verifier("exact"))
    desk.ask(*["a"] * 200)
    tasks = load_tasks((desk.task,))
    (found,) = gates_of(tasks, read_sentinels(desk.sentinels, tasks))
    assert found.is_gated
    assert found.says == (
        "gated by v on 200 sentinels; detects losses of 7.0 / 9.9 / 14.2 points where versions differ on 8% / 15% / 30% of them"
    )
    (without,) = gates_of(tasks, read_sentinels(None, tasks))
    assert (without.is_gated, without.says[:8]) == (False, "UNGATED:")


def test_a_start_refuses_sentinels_that_cannot_be_graded_also_those_that_the_home_has(desk: Desk) -> None:
    desk.declare(verifier("json_exact"))
    desk.ask("{}", "{")
    home = desk.folder / "home"
    with pytest.raises(InvalidSettings, match=r"s\.jsonl:2: v cannot grade"):
        check_gate([desk.task], home, desk.sentinels)
    home.mkdir()
    (home / "millrace.toml").write_text(
        f'[release]\nsentinels = "{desk.sentinels}"\ntolerance = 0.03\nmax_tokens = 32\n'
    )
    with pytest.raises(InvalidSettings, match=r"s\.jsonl:2: v cannot grade"):
        check_gate([desk.task], home, None)
