"""Step 4: the records that the worker sends, an experience to learn from and an outcome where there is no reward. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from contracts.event_log import MAX_RECORD_BYTES, Message
from contracts.records import Experience, Outcome, Score
from contracts.segments import with_answer
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, OUTCOMES
from rewards.episode import LostEpisode, UnpackedEpisode
from rewards.rubric import RewardVerdict, WeightedVerdict
from runtime.log.outbox import message

_PLAIN = Score(name="", grader="", value=None)
_TOO_LARGE = RewardVerdict(None, "unscored", "infra", "too_large")


def messages_of(task: Task, item: UnpackedEpisode, weighted: WeightedVerdict, at: float) -> list[Message]:
    """The experience of an episode, and an outcome if a user's episode has no reward. `at`: UTC epoch seconds."""
    experience = message(EXPERIENCES, item.episode.key, experience_of(task, item, weighted, at))
    if experience.num_bytes > MAX_RECORD_BYTES:
        return [outcome_message(item, _TOO_LARGE, at)]
    if weighted.verdict.reward is None and item.turn.purpose == "user":
        return [experience, outcome_message(item, weighted.verdict, at)]
    return [experience]


def experience_of(task: Task, item: UnpackedEpisode, weighted: WeightedVerdict, at: float) -> Experience:
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
        status=verdict.status,
        fault=verdict.fault,
        scored_at=at,
    )
    return head if item.source else with_answer(head, turn, item.body)


def _learned(score: Score) -> Score:
    """What the trainer needs of a score. How long it took stands in its row, and defaults are not written."""
    propensity = _PLAIN.propensity if score.propensity == _PLAIN.propensity else score.propensity
    return replace(score, seconds=_PLAIN.seconds, propensity=propensity)


def outcome_message(item: UnpackedEpisode | LostEpisode, verdict: RewardVerdict, at: float) -> Message:
    """Why an episode has no reward."""
    outcome = Outcome(
        key=item.episode.key,
        revision=item.episode.revision,
        epoch=0,
        state="unlabelled" if verdict.status == "unlabelled" else "unscored",
        reason=verdict.reason,
        writer="rewards",
        at=at,
    )
    return message(OUTCOMES, item.episode.key, outcome)
