"""What silence costs a task: the share of answers that graders know and nobody reacted to. Pure, but for what is read.

In: task files, and the newest scores of a home. Out: lines for whoever starts it. Waits for: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from contracts.tasks import Task
from contracts.tasks.gate import proves
from contracts.tasks.rewards import GraderRule
from rewards.replay.queries import StoredScore, newest_scores
from runtime.database import Database

MIN_GRADED, MIN_SHARE = 100, 0.1
"""Fewer graded answers, or less that is lost of them, are not worth a line."""
_NEWEST = 2_000


def warn_of_silence(task: Task, tell: Callable[[str], None]) -> None:
    """Where silence is paid for, say so by file and line."""
    if task.silence == "renormalise":
        tell(
            f"{task.where('silence')}: warning: task {task.name!r} pays for answers that nobody reacts to: where users are "
            "silent the graders alone decide, so whatever keeps people from reacting earns more than what they judge; "
            '`silence = "expected"` gives such answers what others said of answers graded alike'
        )


def propose(tasks: Mapping[str, Task], database: Database, tell: Callable[[str], None]) -> None:
    """Say for each task that leaves silence unlabelled what share of its graded answers that loses, if it is much."""
    for task in tasks.values():
        if task.silence == "unlabelled" and task.signals_weight > 0 and any(map(proves, deciding(task))):
            with database.snapshot() as connection:
                known = newest_scores(connection, task.name, _NEWEST)
            num_graded, num_lost = lost_of(task, known)
            if num_graded >= MIN_GRADED and num_lost >= MIN_SHARE * num_graded:
                tell(
                    f"{task.where('silence')}: of the last {num_graded:,} answers that task {task.name!r} could grade, "
                    f"{num_lost / num_graded:.0%} have no reward, because nobody reacted to them; "
                    '`silence = "expected"` keeps what graders know of them, at reduced weight (docs/rewards.md)'
                )


def deciding(task: Task) -> list[GraderRule]:
    """The graders that have a part in its reward."""
    return [rule for rule in task.grader_rules if rule.role == "gate" or (rule.role == "component" and rule.weight > 0)]


def lost_of(task: Task, known: Sequence[StoredScore]) -> tuple[int, int]:
    """How many answers every deciding grader has a score of, none refusing it, and how many of these have no reward."""
    gates = {rule.name for rule in deciding(task) if rule.role == "gate"}
    needed = {rule.name for rule in deciding(task)}
    graded = []
    for row in known:
        scored = {part["name"]: part["value"] for part in row.components if part["status"] == "scored"}
        if needed <= scored.keys() and not any(scored[name] == 0.0 for name in gates):
            graded.append(row)
    return len(graded), sum(row.reward is None for row in graded)
