"""How the parts of a reward combine: low + gates x (clipped weighted sum - low), every part kept.

Silence is not a zero: where users' signals weigh something and none came, the reward is null, unless the task says what
silence means, or somebody who knows what to expect of such an answer (rewards/signals/silence.py) fills it in. A gate that fails is the model's fault and takes the worst reward, whatever else is missing. What is missing
by our own fault makes the reward null or, if the task says so and it is no gate, leaves its weight to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contracts.records import Fault, Score, ScoreStatus
from contracts.tasks import Task
from rewards.graders import Grader


class Verdict(NamedTuple):
    """The reward in the task's range, or None and why; `reason` is short and has few values."""

    reward: float | None
    status: ScoreStatus
    fault: Fault
    reason: str = ""


SILENT = Verdict(None, "unlabelled", "none", "silence")
"""Of an answer about which nothing was said, where the task gives that no value."""
NOTHING_TO_WEIGH = Verdict(None, "unlabelled", "none", "nothing_to_weigh")


def is_refusal(score: Score) -> bool:
    """Whether a gate's score is the model's failure."""
    return score.status == "scored" and score.value == 0.0


def combine(
    task: Task,
    graders: Sequence[Grader],
    checks: Sequence[Score],
    signals: Sequence[Score],
    *,
    has_signals: bool = True,
    expected: float | None = None,
) -> Verdict:
    """Combine the scores of the graders (in their order) with those of the signals, of which weights tell who decides.

    `has_signals` False: what users did has no part in it, neither their silence. `expected`: what stands for silence.
    """
    rule = task.reward
    graded = list(zip(graders, checks, strict=True))
    gates = [score for grader, score in graded if grader.role == "gate"]
    if (failed := next(filter(is_refusal, gates), None)) is not None:
        return Verdict(rule.low, "scored", "model", f"gate:{failed.name}")
    if (missing := _missing(gates)) is not None:
        return missing
    components = [score for grader, score in graded if grader.role == "component" and score.weight > 0]
    kept = [score for score in components if not (score.fault == "infra" and rule.missing == "renormalise")]
    if (missing := _missing(kept)) is not None:
        return missing
    span = rule.high - rule.low
    parts = [(score.weight, rule.low + span * (score.value or 0.0)) for score in kept]
    if has_signals and task.signals_weight > 0:
        said = said_of(task, signals, [score for grader, score in graded if grader.role == "signal"])
        if said is SILENT and expected is not None:
            said = expected
        if isinstance(said, float):
            parts.append((task.signals_weight, said))
        elif said is not SILENT or task.silence != "renormalise":
            return said
    if not parts:
        return _missing(components) or NOTHING_TO_WEIGH
    total = sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
    gate = min((score.value for score in gates if score.value is not None), default=1.0)
    clipped = min(rule.high, max(rule.low, total))
    return Verdict(rule.low + gate * (clipped - rule.low), "scored", "none")


def _missing(scores: Sequence[Score]) -> Verdict | None:
    """The verdict if something needed is not there: our own fault first, then the app's, then nobody's."""
    for fault in ("infra", "user"):
        for score in scores:
            if score.status == "unscored" and score.fault == fault:
                return Verdict(None, "unscored", score.fault, f"{fault}_fault:{score.name}")
    for score in scores:
        if score.status != "scored":
            return Verdict(None, "unlabelled", "none", f"missing:{score.name}")
    return None


def _as_signal(task: Task, score: Score) -> Score:
    value = task.reward.low + (task.reward.high - task.reward.low) * (score.value or 0.0)
    return Score(name=score.name, grader=score.grader, value=value)


def grade_of(task: Task, graders: Sequence[Grader], checks: Sequence[Score]) -> float | None:
    """What gates and components make of an answer by themselves, in [0, 1]; None if one is missing or a gate refused it.

    Of a task that has gates alone it is the least of their values.
    """
    gates = [score for grader, score in zip(graders, checks, strict=True) if grader.role == "gate"]
    verdict = combine(task, graders, checks, [], has_signals=False)
    if verdict == NOTHING_TO_WEIGH and gates:
        return min(score.value or 0.0 for score in gates)
    if verdict.reward is None or verdict.fault == "model":
        return None
    return (verdict.reward - task.reward.low) / (task.reward.high - task.reward.low)


def said_of(task: Task, signals: Sequence[Score], judged: Sequence[Score]) -> float | Verdict:
    """What users said, else what was judged of what they did next, else what silence means; or why it is not known."""
    spoken = [score for score in judged if score.status == "scored"]
    for scores in (signals, [_as_signal(task, score) for score in spoken[:1]]):
        parts = [(score.weight, score.value) for score in scores if score.weight > 0 and score.value is not None]
        if parts:
            return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
    # What could not be judged was not silence.
    if (missing := _missing([score for score in judged if score.status == "unscored"])) is not None:
        return missing
    return SILENT if isinstance(task.silence, str) else float(task.silence)
