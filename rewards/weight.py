"""Step 3: how much a verdict weighs, and what a vote that does not count leaves of it. Pure.

`signals/weighing.py` finds the weight inside the transaction, because it depends on what people said before. This file
describes a sample to it, and applies the weight that it returns.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from contracts.records import Score
from contracts.tasks import Task
from rewards.components import Components
from rewards.episode import UnpackedEpisode
from rewards.rubric import SILENT, RewardVerdict, combine, grade_of, users_value
from rewards.signals.silence import Expected
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weight


class WeightedVerdict(NamedTuple):
    """What the trainer learns from: scores, the verdict on them, and its weight in [0, 1]."""

    scores: tuple[Score, ...]
    verdict: RewardVerdict
    weight: float


def sample_of(
    task: Task, item: UnpackedEpisode, components: Components, verdict: RewardVerdict, cluster: str
) -> ScoredSample:
    """What `Weighing` needs to know about an episode."""
    episode, turn = item.episode, item.turn
    audits = [score.value for score in components.graders if task.audit is not None and score.name == task.audit.judge]
    # Only tasks that give silence a value from what others said need these two.
    grade = said = None
    if task.silence == "expected" and not episode.off_line:
        grade, said = grade_of(task, components.graders), users_value(task, components.graders, components.signals)
    return ScoredSample(
        task=task.name,
        tenant=turn.tenant,
        key=episode.key,
        revision=episode.revision,
        version=item.version,
        cluster=cluster,
        signals=episode.signals,
        scores=components.signals,
        finished_at=turn.finished_at,
        closed_at=episode.closed_at,
        provisional=episode.provisional,
        reward=verdict.reward,
        fault=verdict.fault,
        person=turn.person,
        ask_probability=turn.ask_probability,
        audited=audits[0] if audits else None,
        grade=grade,
        said=said if isinstance(said, float) else None,
        is_silent=verdict == SILENT,
    )


def weighted(task: Task, components: Components, verdict: RewardVerdict, weight: Weight) -> WeightedVerdict:
    """Apply a weight to a verdict.

    Where no vote counts, one of two things takes its place: what others said of answers that were graded alike, or,
    if the task lets graders alone decide about silence, the verdict without users.
    """
    if weight.expected is not None:
        return _with_expected(task, components, weight.expected, weight.value)
    if weight.value == 0.0 and weight.reason:
        return WeightedVerdict(components.scores, _without_users(task, components, weight.reason), 1.0)
    return WeightedVerdict(components.scores, verdict._replace(reward=weight.reward), weight.value)


def _with_expected(task: Task, components: Components, expected: Expected, weight: float) -> WeightedVerdict:
    verdict = combine(task, components.graders, [], expected=expected.value)
    silence = Score(
        name="silence",
        grader=f"signal/expected/1#{task.hash}",
        value=expected.value,
        reason=expected.in_words(),
    )
    ignored = (msgspec.structs.replace(score, weight=0.0) for score in components.signals)
    return WeightedVerdict((*components.graders, *ignored, silence), verdict, weight)


def _without_users(task: Task, components: Components, reason: str) -> RewardVerdict:
    """A refused vote counts as silence."""
    unlabelled = RewardVerdict(None, "unlabelled", "none", reason)
    if task.silence != "renormalise":
        return unlabelled
    verdict = combine(task, components.graders, [], has_signals=False)
    return unlabelled if verdict.reward is None else verdict
