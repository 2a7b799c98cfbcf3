"""Steps 1 and 2: the components of a reward, and how they combine: low + gates x (clipped weighted sum - low). Pure.

Silence is not a zero: where users' signals have a weight and none came, the reward is null, unless the task says otherwise. A failed
gate is the model's fault and earns the worst reward, whatever else is missing. A component that is missing through our own fault makes
the reward null, or it leaves its weight to the others if the task allows that and it is not a gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from contracts.draws import is_asked
from contracts.records import Fault, Score, ScoreStatus
from contracts.tasks import Task
from contracts.tasks.rewards import Role
from rewards.episode import UnpackedEpisode
from rewards.signals.mapping import About, score_signals


class Components(NamedTuple):
    """All scores of an episode."""

    graders: tuple[Score, ...]
    """Of verifiers, then of judges."""
    signals: tuple[Score, ...]
    """Of what users did. The signal with a weight above 0 decides."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """Those of graders, then those of signals."""
        return self.graders + self.signals


def components_of(task: Task, item: UnpackedEpisode) -> Components:
    """The components of an episode whose graders were asked."""
    turn = item.turn
    about = About(item.body.text, turn.finished_at, is_asked(turn.completion_id, turn.ask_probability))
    return Components(item.grader_scores, tuple(score_signals(task, about, item.episode.signals)))


class RewardVerdict(NamedTuple):
    """The reward in the task's range, or None and why; `reason` is short and has few values."""

    reward: float | None
    status: ScoreStatus
    fault: Fault
    reason: str = ""


class WeightedVerdict(NamedTuple):
    """What the trainer learns from: scores, the verdict on them, and its weight in [0, 1]."""

    scores: tuple[Score, ...]
    verdict: RewardVerdict
    weight: float
    is_heard: bool = True
    """False: no vote counts, so no edit does either."""


SILENT = RewardVerdict(None, "unlabelled", "none", "silence")
"""No user said anything about the answer, and the task gives that no value."""
OFF_LINE = RewardVerdict(None, "unlabelled", "none", "off_line")
"""Nobody spoke of a call that is not on its session's main line, and nobody can be expected to: that is no silence."""
NOTHING_TO_WEIGH = RewardVerdict(None, "unlabelled", "none", "nothing_to_weigh")


def verdict_of(task: Task, components: Components, *, off_line: bool = False) -> RewardVerdict:
    """The verdict before votes are weighed. `off_line`: see `Episode`."""
    if off_line and task.signals_weight > 0:
        return OFF_LINE
    return combine(task, components.graders, components.signals)


def is_refusal(score: Score) -> bool:
    """Whether a gate's score says that the model failed."""
    return score.status == "scored" and score.value == 0.0


def combine(
    task: Task,
    graders: Sequence[Score],
    signals: Sequence[Score],
    *,
    has_signals: bool = True,
    expected: float | None = None,
) -> RewardVerdict:
    """Combine the scores of a task's verifiers and judges with those of its signals.

    Without `has_signals`, neither what users did nor their silence counts. `expected` stands for silence, in the task's range of rewards.
    """
    rule = task.reward
    gates = _in_role(task, "gate", graders)
    if (failed := next(filter(is_refusal, gates), None)) is not None:
        return RewardVerdict(rule.low, "scored", "model", f"gate:{failed.name}")
    if (missing := _missing(gates)) is not None:
        return missing
    components = [score for score in _in_role(task, "component", graders) if score.weight > 0]
    kept = [score for score in components if not (score.fault == "infra" and rule.missing == "renormalise")]
    if (missing := _missing(kept)) is not None:
        return missing
    parts = [(score.weight, _in_range(task, score)) for score in kept]
    if has_signals and task.signals_weight > 0:
        said = users_value(task, graders, signals)
        if said is SILENT and expected is not None:
            said = expected
        if isinstance(said, float):
            parts.append((task.signals_weight, said))
        elif said is not SILENT or task.silence != "renormalise":
            return said
    if not parts:
        return _missing(components) or NOTHING_TO_WEIGH
    gate = min((score.value for score in gates if score.value is not None), default=1.0)
    clipped = min(rule.high, max(rule.low, _mean(parts)))
    return RewardVerdict(rule.low + gate * (clipped - rule.low), "scored", "none")


def grade_of(task: Task, graders: Sequence[Score]) -> float | None:
    """What gates and components alone make of an answer, in [0, 1] (of gates alone: the lowest); None if one is missing or a gate refused it."""
    verdict = combine(task, graders, [], has_signals=False)
    gates = _in_role(task, "gate", graders)
    if verdict == NOTHING_TO_WEIGH and gates:
        return min(score.value or 0.0 for score in gates)
    if verdict.reward is None or verdict.fault == "model":
        return None
    return (verdict.reward - task.reward.low) / (task.reward.high - task.reward.low)


def users_value(task: Task, graders: Sequence[Score], signals: Sequence[Score]) -> float | RewardVerdict:
    """What users said of an answer, in the task's range of rewards; or a verdict that says why it is unknown.

    Where no signal decides, a judge of the user's next message speaks for them; else it is the task's value of silence.
    """
    judged = _in_role(task, "signal", graders)
    spoken = [(1.0, _in_range(task, score)) for score in judged if score.status == "scored"]
    own = [(score.weight, score.value) for score in signals if score.weight > 0 and score.value is not None]
    if parts := own or spoken[:1]:
        return _mean(parts)
    # A judge that could not answer does not mean that the user was silent.
    if (missing := _missing(score for score in judged if score.status == "unscored")) is not None:
        return missing
    return SILENT if isinstance(task.silence, str) else float(task.silence)


def _in_role(task: Task, role: Role, graders: Sequence[Score]) -> list[Score]:
    names = {rule.name for rule in task.grader_rules if rule.role == role}
    return [score for score in graders if score.name in names]


def _missing(scores: Iterable[Score]) -> RewardVerdict | None:
    """The verdict if a needed score is missing: our own fault comes first, then the app's, then no fault."""
    missing = [score for score in scores if score.status != "scored"]
    for fault in ("infra", "user"):
        for score in missing:
            if score.status == "unscored" and score.fault == fault:
                return RewardVerdict(None, "unscored", score.fault, f"{fault}_fault:{score.name}")
    return RewardVerdict(None, "unlabelled", "none", f"missing:{missing[0].name}") if missing else None


def _in_range(task: Task, score: Score) -> float:
    return task.reward.low + (task.reward.high - task.reward.low) * (score.value or 0.0)


def _mean(parts: Sequence[tuple[float, float]]) -> float:
    return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
