"""The graders that the release gate asks about a version's answers: those that a task names for its gate.

In: answers of one task, by several versions, in any order. Out: one value for each, the lowest that one of the graders gives.
Waits for: judges and sandboxes. Roles and weights do not count here, and nothing is remembered from batch to batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contracts.errors import InvalidSettings
from contracts.gating import GateAnswer, GateScore, Sentinel, SentinelFile
from contracts.records import Score
from contracts.tasks import Task
from contracts.tasks.gate import NEEDING_REFERENCE, without_reference
from rewards.grader import Grader
from rewards.judges.registry import gate_judge, new_http
from rewards.panel import graders_of
from rewards.verifiers.check import Answer

_BATCH = 64
"""Answers at a time, as many as in the reward worker: some graders start a process for each."""
_PROBES = ("0", "\\boxed{0}", "<answer>0</answer>")
"""Answers in the shapes that some verifiers need before they look at the reference. The reference is a probe too."""


class GateGraders:
    """The graders of the gated tasks of a home. See `contracts.gating.Grade`."""

    def __init__(self, tasks: Mapping[str, Task], *, with_reference: bool = True) -> None:
        """Build the graders.

        Args:
            tasks: by name.
            with_reference: False: only graders that need no reference, for prompts of users.

        Raises:
            InvalidTask: a config is wrong, a key is missing, or a judge was not admitted; with file and line.
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
        """Ask the verifiers of each sentinel about a probe, to find out whether they can grade an answer at all.

        Raises:
            InvalidSettings: they cannot; with file, line and reason.
        """
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
