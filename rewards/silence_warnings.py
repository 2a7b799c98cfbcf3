"""Warnings about what silence costs a task, told when a home starts.

A task either pays for answers without a reaction, which rewards discouraging reactions; or it loses the answers that
graders scored and no user reacted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from contracts.tasks import Task
from contracts.tasks.gate import proves
from contracts.tasks.rewards import GraderRule
from rewards.replay.queries import GradedRevision, newest_scores
from runtime.database import Database

MIN_GRADED, MIN_SHARE = 100, 0.1
"""Below this number of graded answers, or this share of lost ones, nothing is told."""
_NEWEST = 2_000


def warn_of_silence(task: Task, tell: Callable[[str], None]) -> None:
    """Warn, by file and line, if the task rewards answers that no user reacted to."""
    if task.silence == "renormalise":
        tell(
            f"{task.where('silence')}: warning: task {task.name!r} pays for answers that nobody reacts to: where users are "
            "silent the graders alone decide, so whatever keeps people from reacting earns more than what they judge; "
            '`silence = "expected"` gives such answers what others said of answers graded alike'
        )


def propose_expected(tasks: Mapping[str, Task], database: Database, tell: Callable[[str], None]) -> None:
    """Tell which share of its graded answers each task loses by leaving silence unlabelled, if the share is large."""
    for task in tasks.values():
        if task.silence == "unlabelled" and task.signals_weight > 0 and any(map(proves, deciding(task))):
            with database.snapshot() as connection:
                known = newest_scores(connection, task.name, _NEWEST)
            num_graded, num_lost = lost_of(task, known)
            if num_graded >= MIN_GRADED and num_lost >= MIN_SHARE * num_graded:
                tell(
                    f"{task.where('silence')}: of the last {num_graded:,} answers that task {task.name!r} could grade, "
                    f"{num_lost / num_graded:.0%} have no reward, because nobody reacted to them; "
                    '`silence = "expected"` gives them what users said of similar answers, at reduced weight (docs/rewards.md)'
                )


def deciding(task: Task) -> list[GraderRule]:
    """The graders that take part in the reward."""
    return [rule for rule in task.grader_rules if rule.role == "gate" or (rule.role == "component" and rule.weight > 0)]


def lost_of(task: Task, known: Sequence[GradedRevision]) -> tuple[int, int]:
    """How many answers were scored by every deciding grader and refused by no gate, and how many of these have no reward."""
    gates = {rule.name for rule in deciding(task) if rule.role == "gate"}
    needed = {rule.name for rule in deciding(task)}
    graded = []
    for row in known:
        scored = {score.name: score.value for score in row.scores if score.status == "scored"}
        if needed <= scored.keys() and not any(scored[name] == 0.0 for name in gates):
            graded.append(row)
    return len(graded), sum(row.reward is None for row in graded)
