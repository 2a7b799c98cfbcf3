"""Turn experiences into tensors, and refuse by name those that must never reach a gradient. Pure.

Shapes: B rows of a micro-batch, L tokens of a right-padded row, T = L - 1 predicted tokens (position t predicts
token t + 1), M layers with experts, K experts chosen per token. A row is one segment of one experience.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from contracts.experts import experts_of, experts_problem
from contracts.ledger import EXPIRED
from contracts.segments import is_body_lost
from pipelines.training.learning.supports import has_possible_support, joined_support, support_in
from pipelines.training.state import NO_WEIGHT
from policy.routing import ABSENT, NO_REPLAY, Routing
from runtime.log.answers import BODY_LOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience, Segment, State
    from contracts.sampling import Span
    from pipelines.training.versions.versions import VersionTree

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
    """The model's experts."""
    needs_experts: bool = False
    """A sample without recorded experts is refused."""
    horizon_seconds: float = math.inf
    """Since generation. Nothing older is learned, whatever the reward's window."""


@dataclass(frozen=True)
class Refusal:
    """Why an experience is not trained: state and reason of its outcome."""

    state: State
    reason: str


@dataclass(frozen=True)
class Row:
    """One segment, unpacked. `mask` selects the sampled tokens; `log_probs` are the behaviour policy's."""

    sample: int
    token_ids: np.ndarray
    mask: np.ndarray
    log_probs: np.ndarray
    temperature: float
    experts: np.ndarray | None
    """The engine's choices [tokens - 1, M, K], or None."""
    support: np.ndarray | None = None
    """Which ids each sampled token was drawn from [sampled, most], -1 where there are fewer; None: any id."""


@dataclass(frozen=True)
class MicroBatch:
    """Padded rows. `sample_B` says which experience of the batch each row belongs to.

    `experts_BLMK` has `ABSENT` where the engine recorded nothing; it is None if it recorded nothing for any row.
    """

    input_ids_BL: torch.Tensor
    attention_mask_BL: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_BT: torch.Tensor
    sample_B: torch.Tensor
    temperature_B: torch.Tensor
    experts_BLMK: torch.Tensor | None = None
    support_NK: torch.Tensor | None = None
    """The ids that each of the N sampled tokens was drawn from, row after row; -1 where it has fewer, or has any id."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.input_ids_BL.numel()


def newest_version(experience: Experience) -> int:
    """The version that generated the newest token; -1 if no token has a version."""
    return max((span.version for segment in experience.segments for span in segment.spans), default=-1)


def first_version(experience: Experience) -> int:
    """The version that generated the first token."""
    return experience.segments[0].spans[0].version


def refuse(experience: Experience, tree: VersionTree, limits: TrainingLimits, now: float) -> Refusal | None:
    """The reason why a scored experience must not be trained, or None. It never raises, whatever the record."""
    if experience.policy != limits.policy:
        return Refusal("filtered", "other_policy")
    if is_body_lost(experience):
        return Refusal("stale", BODY_LOST)
    if not has_provenance(experience):
        return Refusal("filtered", "no_provenance")
    if (refusal := _refuse_numbers(experience)) is not None:
        return refusal
    for segment in experience.segments:
        if (refusal := _refuse_segment(segment, limits)) is not None:
            return refusal
    return _refuse_origin(experience, tree, limits, now)


def _refuse_numbers(experience: Experience) -> Refusal | None:
    reward, weight = experience.reward or 0.0, experience.weight
    if not (math.isfinite(reward) and math.isfinite(weight)):
        return Refusal("filtered", "non_finite_reward")
    if abs(reward) > MAX_NUMBER:
        return Refusal("filtered", "impossible_reward")
    if not 0 <= weight <= MAX_NUMBER or (experience.share and weight > MAX_NUMBER * experience.share.credit):
        return Refusal("filtered", "impossible_weight")
    numbers = [number for score in experience.scores for number in (score.value or 0.0, score.weight)]
    if not all(abs(number) <= MAX_NUMBER for number in numbers):
        return Refusal("filtered", "impossible_score")
    # NaN compares false.
    return None if abs(experience.generated_at) <= LAST_TIME else Refusal("filtered", "impossible_time")


def _refuse_origin(experience: Experience, tree: VersionTree, limits: TrainingLimits, now: float) -> Refusal | None:
    versions = {span.version for segment in experience.segments for span in segment.spans}
    if not all(tree.exists(version) for version in versions):
        return Refusal("filtered", "unknown_version")
    if any(tree.revoked.get(version) == "poison" for version in versions):
        return Refusal("quarantined", "rollback")
    if now - experience.generated_at > limits.horizon_seconds:
        return Refusal("stale", EXPIRED)
    return None


def version_lag(experience: Experience, tree: VersionTree) -> int:
    """How many versions lie between the current weights and the farthest of those that made its tokens.

    Raises:
        KeyError: one of them was never cut.
    """
    return max(tree.distance(span.version) for segment in experience.segments for span in segment.spans)


def is_old(experience: Experience, tree: VersionTree, most: int) -> bool:
    """True if one of its versions is more than `most` versions away. It never raises: what is broken is refused elsewhere."""
    versions = {span.version for segment in experience.segments for span in segment.spans}
    return any(tree.exists(version) and tree.distance(version) > most for version in versions)


def refuse_weight(experience: Experience) -> Refusal | None:
    """Name a sample that is not meant to count: a step over it would teach nothing, and say it had."""
    return None if experience.weight > 0 else Refusal(*NO_WEIGHT)


def has_provenance(experience: Experience) -> bool:
    """True if every sampled token has the log-probability and the version it was sampled with."""
    if not (experience.engine and experience.dtype and experience.segments):
        return False
    return all(_has_provenance(segment) for segment in experience.segments)


def _has_provenance(segment: Segment) -> bool:
    num_tokens = len(segment.token_ids) // 4
    if len(segment.loss_mask) != num_tokens or not len(segment.token_ids) == len(segment.logprobs) == 4 * num_tokens:
        return False
    starts = [span.start for span in segment.spans]
    return bool(starts) and starts[0] == 0


def _refuse_segment(segment: Segment, limits: TrainingLimits) -> Refusal | None:
    temperature = segment.sampling.temperature
    if not math.isfinite(temperature) or temperature > MAX_TEMPERATURE:
        return Refusal("filtered", "impossible_temperature")
    if reason := "greedy" if temperature < MIN_TEMPERATURE else segment.off_support:
        return Refusal("off_support", reason)
    if reason := _why_untrainable(segment, limits):
        return Refusal("filtered", reason)
    return Refusal("off_support", "no_experts") if limits.needs_experts and not segment.experts else None


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
        "malformed_support": has_possible_support(segment, token_ids[mask == 1], limits.vocabulary_size),
    }
    return next((reason for reason, passes in checks.items() if not passes), "")


def _has_possible_experts(segment: Segment, routing: Routing) -> bool:
    if experts_problem(segment.experts, segment.expert_shape, len(segment.token_ids) // 4):
        return False
    is_known = bool(routing.layers) or not routing.problem
    return not is_known or segment.expert_shape is None or _choices(segment, routing) is not None


def _choices(segment: Segment, routing: Routing) -> np.ndarray | None:
    shape = segment.expert_shape
    return None if shape is None else routing.choices(experts_of(segment.experts, shape))


def _are_in_order(spans: Sequence[Span], num_sampled: int) -> bool:
    """True if spans are sorted and start inside the sampled tokens. An empty span at the end is valid."""
    starts = [span.start for span in spans]
    return starts == sorted(starts) and starts[-1] <= num_sampled


def prompt_of(experience: Experience) -> bytes:
    """The packed token ids before the first sampled token: equal bytes mean the same prompt."""
    segment = experience.segments[0]
    return segment.token_ids[: 4 * segment.loss_mask.index(1)]


def episode_of(experience: Experience) -> str:
    """Calls of a session that was judged as a whole have the same one; any other sample is an episode of its own."""
    share = experience.share
    return experience.key if share is None else f"{experience.tenant}\0{experience.task}\0{share.session}"


def group_of(experience: Experience) -> str:
    """Sessions that try the same thing have the same one; empty: in no group."""
    share = experience.share
    return f"{experience.tenant}\0{experience.task}\0{share.group}" if share is not None and share.group else ""


def weights_once(experiences: Sequence[Experience]) -> list[float]:
    """The weight of each in what counts a session once: its calls, without their credit, share one."""
    calls = Counter(episode_of(item) for item in experiences)
    return [
        item.weight if item.share is None else item.weight / item.share.credit / calls[episode_of(item)]
        for item in experiences
    ]


def single_version(experience: Experience) -> int | None:
    """The version that generated every token, or None if there are several."""
    versions = {span.version for segment in experience.segments for span in segment.spans}
    return versions.pop() if len(versions) == 1 else None


def num_tokens(experiences: Sequence[Experience]) -> int:
    """Sampled tokens: the loss's denominator, fixed before anything is masked out."""
    return sum(segment.loss_mask.count(1) for experience in experiences for segment in experience.segments)


def micro_batches(
    experiences: Sequence[Experience],
    *,
    max_tokens: int,
    device: torch.device | str = "cpu",
    routing: Routing = NO_REPLAY,
) -> list[MicroBatch]:
    """Group rows, longest first, so that rows * length stays within `max_tokens` (one row at least).

    `routing`: of the model that shall replay recorded experts.
    """
    rows = sorted(rows_of(experiences, routing), key=lambda row: (-len(row.token_ids), row.sample))
    groups: list[list[Row]] = []
    for row in rows:
        last = groups[-1] if groups else []
        if last and (len(last) + 1) * len(last[0].token_ids) <= max_tokens:
            last.append(row)
        else:
            groups.append([row])
    return [_pad(group, device) for group in groups]


def rows_of(experiences: Sequence[Experience], routing: Routing) -> list[Row]:
    """One row per segment. `routing`: of the model that shall replay recorded experts."""
    return [
        Row(
            sample=sample,
            token_ids=np.frombuffer(segment.token_ids, "<i4"),
            mask=np.frombuffer(segment.loss_mask, np.uint8) == 1,
            log_probs=np.frombuffer(segment.logprobs, "<f4"),
            temperature=segment.sampling.temperature,
            experts=_choices(segment, routing) if routing.replayable else None,
            support=support_in(segment),
        )
        for sample, experience in enumerate(experiences)
        for segment in experience.segments
    ]


def _pad(rows: list[Row], device: torch.device | str) -> MicroBatch:
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    input_ids, attention = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    mask, behaviour = np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    for index, row in enumerate(rows):
        end = len(row.token_ids)
        input_ids[index, :end] = row.token_ids
        attention[index, :end] = 1
        mask[index, :end] = row.mask
        behaviour[index, :end] = np.where(row.mask, row.log_probs, 0.0)
    return MicroBatch(
        input_ids_BL=torch.from_numpy(input_ids).to(device),
        attention_mask_BL=torch.from_numpy(attention).to(device),
        mask_BT=torch.from_numpy(mask[:, 1:].copy()).to(device),
        behaviour_BT=torch.from_numpy(behaviour[:, 1:].copy()).to(device),
        sample_B=torch.tensor([row.sample for row in rows], device=device),
        temperature_B=torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device),
        experts_BLMK=_pad_experts(rows, shape[1], device),
        support_NK=joined_support([(row.support, int(row.mask.sum())) for row in rows], device),
    )


def _pad_experts(rows: list[Row], length: int, device: torch.device | str) -> torch.Tensor | None:
    """The experts of all rows [B, L, M, K], or None. The last token of a row went through no model: it has none."""
    recorded = [(index, row.experts) for index, row in enumerate(rows) if row.experts is not None]
    if not recorded:
        return None
    found = np.full((len(rows), length, *recorded[0][1].shape[1:]), ABSENT, np.int16)
    for index, experts in recorded:
        found[index, : len(experts)] = experts
    return torch.from_numpy(found).to(device)
