"""Refuse by name the experiences that must never reach a gradient. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contracts.ledger import EXPIRED
from contracts.packing import experts_problem, support_of, support_problem
from contracts.segments import is_body_lost
from pipelines.training.known.experiences import recorded_experts
from pipelines.training.state import NO_WEIGHT
from policy.routing import NO_REPLAY, Routing
from runtime.log.answers import BODY_LOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience, Segment, State
    from contracts.sampling import Span
    from pipelines.training.known.lineage import VersionTree

ROUNDING = 1e-3
"""A value this far above zero is not the logarithm of a probability."""
MIN_LOG_PROB = -100.0
"""exp(-100) is 4e-44: no sampler draws such a token."""
MAX_NUMBER = 1e9
"""Limit of rewards, scores and weights: larger than any product needs, and small enough that squares do not overflow."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Below the minimum, sampling is greedy in float32; above the maximum, it is noise."""
LAST_TIME = 1e11
"""UTC epoch seconds, in the year 5138."""


@dataclass(frozen=True)
class TrainingLimits:
    """Limits of the samples that the trainer accepts."""

    max_length: int
    """Tokens of a row, prompt included: the model's context."""
    vocabulary_size: int
    policy: str
    routing: Routing = NO_REPLAY
    needs_experts: bool = False
    """A sample without recorded experts is refused."""
    horizon_seconds: float = math.inf
    """Since generation. Nothing older is learned, whatever the reward's window."""


@dataclass(frozen=True)
class Refusal:
    """Why an experience is not trained: state and reason of its outcome."""

    state: State
    reason: str


def refuse(
    experience: Experience, tree: VersionTree, limits: TrainingLimits, now: float, *, is_correction: bool = False
) -> Refusal | None:
    """The reason why a scored experience must not be trained, or None. It never raises, whatever the record.

    A sample without weight would change nothing, yet count as trained. A correction to weight 0 takes the sample back.
    """
    if experience.policy != limits.policy:
        return Refusal("filtered", "other_policy")
    if (refusal := _refuse_source(experience)) is not None:
        return refusal
    if reason := _impossible_number(experience):
        return Refusal("filtered", reason)
    for segment in experience.segments:
        if (refusal := _refuse_segment(segment, limits, is_own=not experience.origin)) is not None:
            return refusal
    refusal = _refuse_origin(experience, tree, limits, now)
    return refusal or (None if is_correction or experience.weight > 0 else Refusal(*NO_WEIGHT))


def _refuse_source(experience: Experience) -> Refusal | None:
    """Of a provider's answer only text is learned, see `text.rendering.with_tokens`."""
    if is_body_lost(experience):
        return Refusal("stale", BODY_LOST)
    if experience.origin:
        streams = experience.streams
        is_lesson = streams is not None and not streams.refused
        return None if is_lesson else Refusal("off_support", streams.refused if streams else "provider")
    return None if has_provenance(experience) else Refusal("filtered", "no_provenance")


def _impossible_number(experience: Experience) -> str:
    reward, weight, share = experience.reward or 0.0, experience.weight, experience.share
    numbers = [number for score in experience.scores for number in (score.value or 0.0, score.weight)]
    # NaN compares false.
    checks = {
        "non_finite_reward": math.isfinite(reward) and math.isfinite(weight),
        "impossible_reward": abs(reward) <= MAX_NUMBER,
        "impossible_weight": 0 <= weight <= MAX_NUMBER and not (share and weight > MAX_NUMBER * share.credit),
        "impossible_stream": all(0 <= each <= MAX_NUMBER for each in _stream_weights(experience)),
        "impossible_score": all(abs(number) <= MAX_NUMBER for number in numbers),
        "impossible_time": abs(experience.generated_at) <= LAST_TIME,
    }
    return _first_failed(checks)


def _stream_weights(experience: Experience) -> tuple[float, ...]:
    its = experience.streams
    return () if its is None else (its.rl, its.ce, its.pair, its.thumb)


def _refuse_origin(experience: Experience, tree: VersionTree, limits: TrainingLimits, now: float) -> Refusal | None:
    versions = {span.version for segment in experience.segments for span in segment.spans}
    if not all(tree.exists(version) for version in versions):
        return Refusal("filtered", "unknown_version")
    if any(tree.revoked.get(version) == "poison" for version in versions):
        return Refusal("quarantined", "rollback")
    if now - experience.generated_at > limits.horizon_seconds:
        return Refusal("stale", EXPIRED)
    return None


def has_provenance(experience: Experience) -> bool:
    """True if every sampled token has the log-probability and the version it was sampled with."""
    is_named = bool(experience.engine and experience.dtype and experience.segments)
    return is_named and all(map(_has_provenance, experience.segments))


def _has_provenance(segment: Segment) -> bool:
    num_tokens = len(segment.token_ids) // 4
    if len(segment.loss_mask) != num_tokens or not len(segment.token_ids) == len(segment.logprobs) == 4 * num_tokens:
        return False
    return bool(segment.spans) and segment.spans[0].start == 0


def _refuse_segment(segment: Segment, limits: TrainingLimits, *, is_own: bool) -> Refusal | None:
    temperature = segment.sampling.temperature
    if not math.isfinite(temperature) or temperature > MAX_TEMPERATURE:
        return Refusal("filtered", "impossible_temperature")
    if reason := "greedy" if temperature < MIN_TEMPERATURE else segment.off_support:
        return Refusal("off_support", reason)
    if reason := _why_untrainable(segment, limits):
        return Refusal("filtered", reason)
    needs_experts = limits.needs_experts and is_own
    return Refusal("off_support", "no_experts") if needs_experts and not segment.experts else None


def _why_untrainable(segment: Segment, limits: TrainingLimits) -> str:
    token_ids, mask = np.frombuffer(segment.token_ids, "<i4"), np.frombuffer(segment.loss_mask, np.uint8)
    sampled = np.frombuffer(segment.logprobs, "<f4")[mask == 1]
    if not mask.any():
        return "empty_completion"
    # NaN compares false.
    checks = {
        "malformed_segment": mask.max() <= 1 and _are_in_order(segment.spans, len(sampled)),
        "empty_prompt": mask[0] == 0,
        "beyond_context": len(token_ids) <= limits.max_length,
        "unknown_token": token_ids.min() >= 0 and token_ids.max() < limits.vocabulary_size,
        "impossible_log_prob": np.all((sampled >= MIN_LOG_PROB) & (sampled <= ROUNDING)),
        "malformed_experts": _has_possible_experts(segment, limits.routing),
        "malformed_support": _has_possible_support(segment, token_ids[mask == 1], limits.vocabulary_size),
    }
    return _first_failed(checks)


def _first_failed(checks: Mapping[str, object]) -> str:
    return next((reason for reason, passes in checks.items() if not passes), "")


def _has_possible_experts(segment: Segment, routing: Routing) -> bool:
    if experts_problem(segment.experts, segment.expert_shape, len(segment.token_ids) // 4):
        return False
    is_known = bool(routing.layers) or not routing.problem
    return not is_known or segment.expert_shape is None or recorded_experts(segment, routing) is not None


def _are_in_order(spans: Sequence[Span], num_sampled: int) -> bool:
    """True if spans are sorted and start inside the sampled tokens. An empty span at the end is valid."""
    starts = [span.start for span in spans]
    return starts == sorted(starts) and max(starts, default=0) <= num_sampled


def _has_possible_support(segment: Segment, sampled: np.ndarray, vocabulary_size: int) -> bool:
    """False if the record is damaged, or a sampled token [S] lies outside its own support: its probability would be 0."""
    if not segment.sampling.is_truncated:
        return True
    is_whole = not support_problem(segment.support, sampled)
    return is_whole and bool(support_of(segment.support, len(sampled)).max() < vocabulary_size)
