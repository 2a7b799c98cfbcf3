"""What release asks of rewards: grades of a version's answers to sentinels, and marks of any answer.

`GateGraders` wait for judges and sandboxes. Roles and weights do not count here, and nothing is remembered from batch to batch.
`FastMarks` cost microseconds and wait for nothing: no judge, no sandbox, no reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contracts.errors import InvalidSettings
from contracts.gating import GateAnswer, GateScore, Sentinel, SentinelFile
from contracts.records import FinishReason, GenerationBody, Score
from contracts.tasks import Task
from contracts.tasks.gate import FORM_KINDS, NEEDING_REFERENCE, without_reference
from rewards.episode import answer_in
from rewards.grader import Grader
from rewards.judges.registry import gate_judge, new_http
from rewards.monitors.features import TOOL_KINDS, marks_of
from rewards.panel import graders_of
from rewards.verifiers.check import Answer

_BATCH = 64
"""Answers at a time, as many as in the reward worker: some graders start a process for each."""
_PROBES = ("0", "\\boxed{0}", "<answer>0</answer>")
"""Answers in the shapes that some verifiers need before they look at the reference. The reference is a probe too."""


class GateGraders:
    """The graders of the gated tasks of a home. See `contracts.gating.Grade`."""

    def __init__(self, tasks: Mapping[str, Task], *, with_reference: bool = True) -> None:
        """Build the graders. `with_reference` False: only those that need no reference, for prompts of users.

        Raises InvalidTask: a config is wrong, a key is missing, or a judge was not admitted; with file and line.
        """
        self._tasks = dict(tasks)
        self._names = {
            name: task.gate_graders if with_reference else without_reference(task.grader_rules, task.gate_graders)
            for name, task in tasks.items()
        }
        self._http = new_http()
        self._verifiers = {name: graders_of(task, self._names[name]) for name, task in tasks.items()}
        for task in tasks.values():
            self._judges(task)

    def __call__(self, task: str, answers: Sequence[GateAnswer]) -> list[GateScore]:
        """See `contracts.gating.Grade`."""
        seen = [_seen(answer) for answer in answers]
        graders = [*self._verifiers[task], *self._judges(self._tasks[task])]
        columns = [_ask(grader, seen) for grader in graders]
        return [_lowest(scores) for scores in zip(*columns, strict=True)]

    def check(self, sentinels: SentinelFile) -> None:
        """Ask the verifiers of each sentinel about a probe. Raises InvalidSettings if they cannot grade an answer at all; with file, line and reason."""
        for task in sentinels.tasks:
            items = [sentinels.items[place] for place in sentinels.places_of(task)]
            kinds = {rule.name: rule.kind for rule in self._tasks[task].verifiers}
            for grader in self._verifiers[task]:
                if kinds[grader.name] in NEEDING_REFERENCE:
                    _check_references(grader.name, items)
                _check_probes(grader, items)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _judges(self, task: Task) -> list[Grader]:
        named = [rule.name for rule in task.judges if rule.name in self._names[task.name]]
        return [
            Grader(name, "watch", 0.0, name, is_slow=True, check_all=gate_judge(task, name, self._http).check_all)
            for name in named
        ]


def _check_references(name: str, items: Sequence[Sentinel]) -> None:
    """Some verifiers look at the answer before the reference, so a probe cannot show that the reference is missing."""
    for item in items:
        if "reference" not in item.metadata:
            raise InvalidSettings(
                f"{item.where}: {name} cannot grade an answer to this sentinel: it has no `reference`"
            )


def _check_probes(grader: Grader, items: Sequence[Sentinel]) -> None:
    texts = [*_PROBES, None]
    rounds = [
        _ask(grader, [_seen(item.answered(text or item.metadata.get("reference", ""))) for item in items])
        for text in texts
    ]
    for item, *scores in zip(items, *rounds, strict=True):
        if reason := _why_not(scores):
            raise InvalidSettings(f"{item.where}: {grader.name} cannot grade an answer to this sentinel: {reason}")


def _seen(answer: GateAnswer) -> Answer:
    return Answer(answer.text, answer.metadata, answer.messages, answer.finish_reason)


def _ask(grader: Grader, answers: Sequence[Answer]) -> list[Score]:
    return [
        score for start in range(0, len(answers), _BATCH) for score in grader.score_all(answers[start : start + _BATCH])
    ]


def _lowest(scores: Sequence[Score]) -> GateScore:
    """No value if a grader failed; 0 if a grader has nothing to say, since that proves nothing for the answer."""
    for score in scores:
        if score.fault in {"infra", "user"}:
            return GateScore(None, f"{score.name}: {score.reason}")
    return GateScore(min(score.value if score.value is not None else 0.0 for score in scores))


def _why_not(scores: Sequence[Score]) -> str:
    """Why a sentinel cannot be graded; empty if it can, or if that cannot be known now."""
    if mistakes := [score.reason for score in scores if score.fault == "user"]:
        return mistakes[0]
    if all(score.status == "unlabelled" for score in scores):
        return scores[0].reason or "it has nothing to say"
    return ""


class FastMarks:
    """The form verifiers of every task. See `contracts.gating.MarkAnswer`. Verifiers that only watch do not count: a task may watch for what is not wrong."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        """Raises InvalidTask: the config of a verifier is wrong; with file and line."""
        self._form = {name: _graders(task, FORM_KINDS) for name, task in tasks.items()}
        self._calls = {name: _graders(task, TOOL_KINDS) for name, task in tasks.items()}

    def __call__(self, task: str, body: GenerationBody, finish_reason: FinishReason) -> dict[str, float]:
        """See `MarkAnswer`. A verifier that fails gives no mark."""
        answer = answer_in(body, finish_reason)
        said = marks_of(answer.text)
        found = {"empty": float(not answer.text.strip())}
        found |= {name: said.get(name, 0.0) for name in ("refuses", "invalid_tool_call")}
        shape = [score.value for score in _asked(self._form, task, answer) if score.value is not None]
        if shape:
            found["misshapen"] = 1.0 - min(shape)
        # A call unlike the reference has no fault of the model: it can run.
        if any(score.value == 0.0 and score.fault == "model" for score in _asked(self._calls, task, answer)):
            found["invalid_tool_call"] = 1.0
        return found


def _graders(task: Task, kinds: frozenset[str]) -> list[Grader]:
    names = [rule.name for rule in task.verifiers if rule.kind in kinds and rule.role in {"gate", "component"}]
    return graders_of(task, names)


def _asked(graders: Mapping[str, list[Grader]], task: str, answer: Answer) -> list[Score]:
    return [score for grader in graders.get(task, []) for score in grader.score_all([answer])]
