"""From episodes that were graded to what is learned from them: components, verdict (`rubric.py`), then weight and experience.

Each step is a pure function of the task and the steps before. Only the weight also depends on the database: on who voted before, how fast
and how late (`signals/weighing.py`). Here a sample is described to it, and its weight applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection

from contracts.clusters import Clusters, words_of
from contracts.event_log import MAX_RECORD_BYTES, Message
from contracts.records import SIGNALLED, Experience, Outcome, Score, State
from contracts.segments import with_answer
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, OUTCOMES
from rewards import rubric
from rewards.episode import LostEpisode, UnpackedEpisode
from rewards.signals.silence import Expected
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing, Weight
from rewards.streams import streams_of
from runtime.log.outbox import message


class ScoredEpisode(NamedTuple):
    """An episode after all steps."""

    item: UnpackedEpisode
    cluster: str
    """What the prompt is about."""
    components: rubric.Components
    verdict: rubric.RewardVerdict
    """Before it was weighted: what is stored and watched."""
    learned: rubric.WeightedVerdict
    messages: list[Message]


class ScoringSteps:
    """The steps for some tasks. Safe for one thread."""

    def __init__(self, tasks: Mapping[str, Task], weighing: Weighing) -> None:
        self._tasks = tasks
        self._weighing = weighing
        self._clusters = {name: Clusters(task.curation.topics) for name, task in tasks.items()}

    def run(self, connection: Connection, items: Sequence[UnpackedEpisode], at: float) -> list[ScoredEpisode]:
        """Score episodes of known tasks, each revision once, in their order. `at`: UTC epoch seconds."""
        tasks = [self._tasks[item.turn.task] for item in items]
        clusters = [self._clusters[item.turn.task].of(words_of(item.body.messages)) for item in items]
        components = list(map(rubric.components_of, tasks, items))
        verdicts = [
            rubric.verdict_of(task, made, off_line=item.episode.off_line)
            for task, made, item in zip(tasks, components, items, strict=True)
        ]
        weights = self._weights(connection, items, map(sample_of, tasks, items, components, verdicts, clusters))
        learned = list(map(weighted, tasks, components, verdicts, weights))
        messages = [messages_of(*step, at) for step in zip(tasks, items, learned, strict=True)]
        return list(map(ScoredEpisode, items, clusters, components, verdicts, learned, messages))

    def _weights(
        self, connection: Connection, items: Sequence[UnpackedEpisode], samples: Iterable[ScoredSample]
    ) -> list[Weight]:
        """The weight of each. Only answers to users are weighed; the others count fully."""
        pairs = [(sample, item.turn.purpose == "user") for item, sample in zip(items, samples, strict=True)]
        weighed = iter(self._weighing.weigh(connection, [sample for sample, is_user in pairs if is_user]))
        return [next(weighed) if is_user else Weight(1.0, "", sample.reward) for sample, is_user in pairs]


def sample_of(
    task: Task, item: UnpackedEpisode, components: rubric.Components, verdict: rubric.RewardVerdict, cluster: str
) -> ScoredSample:
    """What `Weighing` needs to know about an episode."""
    episode, turn = item.episode, item.turn
    audits = [score.value for score in components.graders if task.audit is not None and score.name == task.audit.judge]
    # Only tasks that give silence a value from what others said need these two.
    grade = said = None
    if task.silence == "expected" and not episode.off_line:
        grade = rubric.grade_of(task, components.graders)
        said = rubric.users_value(task, components.graders, components.signals)
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
        is_silent=verdict == rubric.SILENT,
        prompt=words_of(item.body.messages) if task.learning.reads_edits else "",
        text=item.body.text if task.learning.reads_edits else "",
    )


def weighted(
    task: Task, components: rubric.Components, verdict: rubric.RewardVerdict, weight: Weight
) -> rubric.WeightedVerdict:
    """Apply a weight to a verdict.

    Where no vote counts, its place takes what others said of answers that were graded alike, or the verdict without users.
    """
    if weight.expected is not None:
        return _with_expected(task, components, weight.expected, weight.value)
    if weight.value == 0.0 and weight.reason:  # A refused vote counts as silence.
        alone = rubric.RewardVerdict(None, "unlabelled", "none", weight.reason)
        if task.silence == "renormalise":
            found = rubric.combine(task, components.graders, [], has_signals=False)
            alone = alone if found.reward is None else found
        return rubric.WeightedVerdict(components.scores, alone, 1.0, is_heard=False)
    # Where an earlier vote is in force, the text of the refused one is not learned either.
    is_heard = weight.reason in ("", "not_asked")
    return rubric.WeightedVerdict(components.scores, verdict._replace(reward=weight.reward), weight.value, is_heard)


def _with_expected(
    task: Task, components: rubric.Components, expected: Expected, weight: float
) -> rubric.WeightedVerdict:
    verdict = rubric.combine(task, components.graders, [], expected=expected.value)
    silence = Score(
        name="silence",
        grader=f"signal/expected/1#{task.hash}",
        value=expected.value,
        reason=expected.in_words(),
    )
    ignored = (replace(score, weight=0.0) for score in components.signals)
    return rubric.WeightedVerdict((*components.graders, *ignored, silence), verdict, weight, is_heard=False)


_PLAIN = Score(name="", grader="", value=None)
_TOO_LARGE = rubric.RewardVerdict(None, "unscored", "infra", "too_large")


def messages_of(task: Task, item: UnpackedEpisode, weighted: rubric.WeightedVerdict, at: float) -> list[Message]:
    """The experience of an episode; and an outcome if one that people judge has no reward, or if a provider answered. `at`: UTC epoch seconds."""
    experience = message(EXPERIENCES, item.episode.key, experience_of(task, item, weighted, at))
    if experience.num_bytes > MAX_RECORD_BYTES:
        return [outcome_message(item, _TOO_LARGE, at)]
    has_none = weighted.verdict.reward is None or item.turn.provided is not None
    if has_none and item.turn.purpose in SIGNALLED:
        return [experience, outcome_message(item, weighted.verdict, at)]
    return [experience]


def experience_of(task: Task, item: UnpackedEpisode, weighted: rubric.WeightedVerdict, at: float) -> Experience:
    """What the trainer learns from."""
    episode, turn, verdict = item.episode, item.turn, weighted.verdict
    head = Experience(
        key=episode.key,
        revision=episode.revision,
        policy=turn.policy,
        task=turn.task,
        task_hash=task.hash,
        tenant=turn.tenant,
        purpose=turn.purpose,
        baseline_key=turn.task if task.baseline_key == "task" else f"{turn.task}/{turn.tenant}",
        source=item.source,
        scores=tuple(map(_learned, weighted.scores)),
        reward=verdict.reward,
        weight=weighted.weight * (1.0 if item.share is None else item.share.credit),
        share=item.share,
        streams=streams_of(task, item, weighted),
        status=verdict.status,
        fault=verdict.fault,
        scored_at=at,
    )
    return head if item.source else with_answer(head, turn, item.body)


def _learned(score: Score) -> Score:
    """What the trainer needs of a score. How long it took stands in its row, and defaults are not written."""
    propensity = _PLAIN.propensity if score.propensity == _PLAIN.propensity else score.propensity
    return replace(score, seconds=_PLAIN.seconds, propensity=propensity)


def outcome_message(item: UnpackedEpisode | LostEpisode, verdict: rubric.RewardVerdict, at: float) -> Message:
    """Why nothing can be learned from an episode: it has no reward; or a provider answered, and no ratio trains on that.

    A trainer that learns from it in another way says so later, and its word counts.
    """
    states: dict[str, State] = {"unlabelled": "unlabelled", "scored": "off_support"}
    outcome = Outcome(
        key=item.episode.key,
        revision=item.episode.revision,
        epoch=0,
        state=states.get(verdict.status, "unscored"),
        reason="provider" if verdict.status == "scored" else verdict.reason,
        writer="rewards",
        at=at,
    )
    return message(OUTCOMES, item.episode.key, outcome)
