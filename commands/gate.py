"""`millrace gate`: apply the gate's rule to answers from files.

In: a task, sentinels, and the answers of two versions, one {"completion": ...} per line in the order of the sentinels.
Out: one JSON object.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.errors import InvalidSettings, InvalidTask, MillraceError
from contracts.files import read_small
from contracts.gating import SentinelFile
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from pipelines.release.asking import SentinelAnswer
from pipelines.release.grading import grade_together
from pipelines.release.rules import LIVE, GateComparison, GatedTask, decide
from rewards.gating import GateGraders
from runtime.sentinels import read_sentinels

_ACCEPTED, _REFUSED, _NO_VERDICT = 0, 1, 2
_NEW, _OLD = 1, 0


def gate(
    task: Annotated[Path, typer.Option(help="The task file.")],
    sentinels: Annotated[Path, typer.Option(help="JSON lines with messages and reference, all of this task.")],
    answers: Annotated[
        Path,
        typer.Option(help='Answers of the new version: {"completion": ...} per line, in the order of the sentinels.'),
    ],
    against: Annotated[Path, typer.Option(help="Answers of the old version, in the same form.")],
) -> int:
    """Compare the answers of two versions as the gate does, and print why.

    Exit status 0: accepted. 1: refused. 2: no verdict, because of a fault or a mistake; standard error says which.
    """
    try:
        with redirect_stdout(sys.stderr):  # graders may print; standard output is for the verdict alone
            verdict = judge_files(task, sentinels, answers, against)
    except MillraceError as error:
        print(f"millrace: no verdict: {error.message}", file=sys.stderr)
        return _NO_VERDICT
    print(json.dumps(verdict, ensure_ascii=False))
    return _ACCEPTED if verdict["accepted"] else _REFUSED


def judge_files(task_file: Path, sentinels: Path, answers: Path, against: Path) -> dict[str, Any]:
    """The gate's verdict on `answers`, as JSON types.

    Raises MillraceError: a file is missing or wrong, or a grader failed: there is no verdict.
    """
    (task,) = load_tasks((task_file,)).values()
    if not task.gate_graders:
        raise InvalidTask(
            f"{task_file}: task {task.name!r} is ungated: none of its graders says whether an answer is right"
        )
    cases = read_sentinels(sentinels, {task.name: task})
    if not cases.items:
        raise InvalidSettings(f"{sentinels}: it has no sentinels")
    given = {_NEW: _read_answers(answers, cases), _OLD: _read_answers(against, cases)}
    with closing(GateGraders({task.name: task})) as graders:
        graders.check(cases)
        values = grade_together(graders, cases, task.name, given)
    question = GatedTask(task.name, task.gate_graders, task.gate.margin, {LIVE: _OLD}, values)
    decision = decide([question], _NEW, {})
    (comparison,) = decision.comparisons
    return _as_json(task, comparison, accepted=decision.accepted)


def _as_json(task: Task, found: GateComparison, *, accepted: bool) -> dict[str, Any]:
    facts = found.facts
    names = ("value", "against", "num", "discordant", "wins", "losses", "p", "alpha", "least_difference", "test")
    verdict = "no worse beyond chance" if accepted else "worse beyond chance"
    reason = (
        f"{task.name}: {verdict}: {found.value:.3f} against {found.against:.3f}, {facts['losses']} lost and {facts['wins']} won of "
        f"{facts['num']}, p = {facts['p']:.2g} (limit {facts['alpha']:.2g})"
    )
    figures = {name: facts[name] for name in names}
    return {"accepted": accepted, "reason": reason, **figures, "graders": list(task.gate_graders)}


def _read_answers(path: Path, sentinels: SentinelFile) -> tuple[SentinelAnswer, ...]:
    """Raises InvalidSettings, with file and line."""
    try:
        lines = read_small(path).splitlines()
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    answers = [_answer(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    if len(answers) != len(sentinels.items):
        raise InvalidSettings(
            f"{path}:{len(answers)}: it has {len(answers)} answers, and there are {len(sentinels.items)} sentinels; it needs one "
            "line for each, in their order"
        )
    return tuple(answers)


def _answer(where: str, line: bytes) -> SentinelAnswer:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("completion"), str):
        raise InvalidSettings(f'{where}: an answer is {{"completion": "..."}}')
    return SentinelAnswer(found["completion"], "stop", finite=True)
