"""`millrace gate`: the gate's rule by hand, on answers from files. Status 0 accepted, 1 refused, 2 no verdict.

In: a task, sentinels, and the answers of two versions, one {"completion": ...} a line in the sentinels' order. Out: one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from contracts.errors import InvalidSettings, InvalidTask, MillraceError
from contracts.gating import SentinelFile
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from pipelines.release.asking import Answer
from pipelines.release.grading import grade_together
from pipelines.release.rules import LIVE, Comparison, Question, decide
from rewards.gate_graders import GateGraders
from runtime.sentinels import read_sentinels

_ACCEPTED, _REFUSED, _NO_VERDICT = 0, 1, 2
_NEW, _OLD = 1, 0


def run_gate(task: Path, sentinels: Path, answers: Path, against: Path) -> int:
    """Print the verdict; the exit status. What keeps it from one is said on standard error."""
    try:
        with redirect_stdout(sys.stderr):  # what graders log is not for whoever reads the verdict
            found = judge_files(task, sentinels, answers, against)
    except MillraceError as error:
        print(f"millrace: no verdict: {error.message}", file=sys.stderr)
        return _NO_VERDICT
    print(json.dumps(found, ensure_ascii=False))
    return _ACCEPTED if found["accepted"] else _REFUSED


def judge_files(task: Path, sentinels: Path, answers: Path, against: Path) -> dict[str, Any]:
    """What the gate says of `answers`.

    Raises:
        MillraceError: something is missing or wrong, or a grader could not do its work: no verdict.
    """
    (only,) = load_tasks((task,)).values()
    if not only.gate_graders:
        raise InvalidTask(f"{task}: task {only.name!r} is ungated: none of its graders says whether an answer is right")
    asked = read_sentinels(sentinels, {only.name: only})
    if not asked.items:
        raise InvalidSettings(f"{sentinels}: it has no sentinels")
    said = {_NEW: _read_answers(answers, asked), _OLD: _read_answers(against, asked)}
    graders = GateGraders({only.name: only})
    try:
        graders.check(asked)
        shuffler = random.Random()  # noqa: S311 an order that graders cannot know, not a secret
        values = grade_together(graders, asked, only.name, said, shuffler)
    finally:
        graders.close()
    question = Question(only.name, only.gate_graders, only.gate.margin, {LIVE: _OLD}, values)
    decision = decide([question], _NEW, {})
    (comparison,) = decision.comparisons
    return _told(only, comparison, accepted=decision.accepted)


def _told(task: Task, found: Comparison, *, accepted: bool) -> dict[str, Any]:
    facts = found.facts
    names = ("value", "against", "num", "discordant", "wins", "losses", "p", "alpha", "least_difference", "test")
    losses, wins, limit = facts["losses"], facts["wins"], facts["alpha"]
    verdict = "no worse beyond chance" if accepted else "worse beyond chance"
    reason = (
        f"{task.name}: {verdict}: {found.value:.3f} against {found.against:.3f}, {losses} lost and {wins} won of {facts['num']}, "
        f"p = {facts['p']:.2g} (limit {limit:.2g})"
    )
    return {
        "accepted": accepted,
        "reason": reason,
        **{name: facts[name] for name in names},
        "graders": list(task.gate_graders),
    }


def _read_answers(path: Path, sentinels: SentinelFile) -> tuple[Answer, ...]:
    """Raises InvalidSettings, with file and line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    answers = [_answer(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    if len(answers) != len(sentinels.items):
        raise InvalidSettings(
            f"{path}:{len(answers)}: it has {len(answers)} answers, and there are {len(sentinels.items)} sentinels; it takes one "
            "line for each, in their order"
        )
    return tuple(answers)


def _answer(where: str, line: bytes) -> Answer:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("completion"), str):
        raise InvalidSettings(f'{where}: an answer is {{"completion": "..."}}')
    return Answer(found["completion"], "stop", finite=True)
