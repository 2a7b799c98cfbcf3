"""How the parts of a reward combine: gates times a weighted mean, every part kept.

Silence is not a zero: without a signal that is worth something the reward is null, unless the task says what silence
means. A gate that fails is the model's fault and takes the worst reward, whether the user spoke or not. A part that is
missing by our own fault makes the reward null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contracts.records import Fault, Score, ScoreStatus
from contracts.tasks import Task

WORST = 0.0


class Verdict(NamedTuple):
    """The reward in [0, 1], or None and why."""

    reward: float | None
    status: ScoreStatus
    fault: Fault


def combine(task: Task, checks: Sequence[Score], signals: Sequence[Score]) -> Verdict:
    """Combine the verifiers' scores (in the order of `task.verifiers`) with those of the signals."""
    needed = [score for rule, score in zip(task.verifiers, checks, strict=True) if rule.role != "watch"]
    if any(score.fault == "infra" for score in needed):
        return Verdict(None, "unscored", "infra")
    gates = [score for rule, score in zip(task.verifiers, checks, strict=True) if rule.role == "gate"]
    if any(score.status == "scored" and score.value == WORST for score in gates):
        return Verdict(WORST, "scored", "model")
    if any(score.status != "scored" for score in needed):
        return Verdict(None, "unlabelled", "none")
    parts = [score for score in (*needed, *signals) if score.weight > 0 and score.value is not None]
    if not signals:
        if task.silence == "unlabelled":
            return Verdict(None, "unlabelled", "none")
        parts.append(Score(name="silence", grader="silence", value=float(task.silence)))
    total = sum(score.weight for score in parts)
    mean = sum(score.weight * (score.value or 0.0) for score in parts) / total
    gate = min((score.value for score in gates if score.value is not None), default=1.0)
    return Verdict(gate * mean, "scored", "none")
