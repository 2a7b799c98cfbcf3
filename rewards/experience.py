"""Step 4: the records that the worker sends, an experience to learn from and an outcome where there is no reward. Pure."""

from __future__ import annotations

from contracts.event_log import MAX_RECORD_BYTES, Message
from contracts.records import Experience, Generation, GenerationBody, Outcome, Segment, pack_floats
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, OUTCOMES
from rewards.episode import UnpackedEpisode
from rewards.rubric import RewardVerdict
from rewards.weight import WeightedVerdict
from runtime.log.outbox import message

BYTES_PER_TOKEN_ID = 4
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
    return Experience(
        key=episode.key,
        revision=episode.revision,
        policy=turn.policy,
        task=turn.task,
        task_hash=task.hash,
        tenant=turn.tenant,
        purpose=turn.purpose,
        baseline_key=turn.task if task.baseline_key == "task" else f"{turn.task}/{turn.tenant}",
        segments=(segment_of(turn, item.body),),
        scores=weighted.scores,
        reward=verdict.reward,
        weight=weighted.weight * (1.0 if item.share is None else item.share.credit),
        share=item.share,
        status=verdict.status,
        fault=verdict.fault,
        generated_at=turn.created_at,
        scored_at=at,
        engine=turn.engine,
        dtype=turn.dtype,
    )


def outcome_message(item: UnpackedEpisode, verdict: RewardVerdict, at: float) -> Message:
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


def segment_of(turn: Generation, body: GenerationBody) -> Segment:
    """Prompt and completion of a turn as one run of tokens; the loss mask covers the completion alone."""
    num_prompt, num_completion = (len(ids) // BYTES_PER_TOKEN_ID for ids in (body.prompt_ids, body.completion_ids))
    return Segment(
        token_ids=body.prompt_ids + body.completion_ids,
        loss_mask=bytes(num_prompt) + b"\x01" * num_completion,
        logprobs=pack_floats([0.0] * num_prompt) + body.logprobs,
        spans=turn.spans,
        sampling=turn.sampling,
        experts=body.experts,
        expert_shape=body.expert_shape,
        support=body.support,
    )
