"""From experiences to tensors, and the refusals: what must never reach a gradient, by name. Pure.

Shapes: B rows of a micro-batch, L tokens of a right-padded row, T = L - 1 predicted tokens (position t predicts
token t + 1). A row is one segment of one experience.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipelines.training.state import NO_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience, Segment, State

# What is above zero by more than this is not the logarithm of a probability.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Limits:
    """What the trainer can and will learn from."""

    max_version_lag: int
    max_age_seconds: float
    max_length: int
    """Tokens of a row, prompt included: the model's context."""
    vocabulary_size: int


@dataclass(frozen=True)
class Refusal:
    """Why an experience is not trained, as an outcome will say it."""

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


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one temperature. `sample_B` says which experience of the batch each row belongs to."""

    input_ids_BL: torch.Tensor
    attention_mask_BL: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_BT: torch.Tensor
    sample_B: torch.Tensor
    temperature: float


def version_lag(lineage: Sequence[int], version: int) -> int:
    """How many versions of the current lineage are newer than `version`.

    Counted along the lineage and not as a difference of ordinals: after a rollback ordinals jump ahead of the version
    that users are still served by, and its fresh samples must not look old.
    """
    return sum(1 for ancestor in lineage if ancestor > version)


def oldest_version(experience: Experience) -> int:
    """The version that made the oldest token."""
    return min(span.version for segment in experience.segments for span in segment.spans)


def newest_version(experience: Experience) -> int:
    """The version that made the newest token; -1 where no token says."""
    return max((span.version for segment in experience.segments for span in segment.spans), default=-1)


def refuse(experience: Experience, lineage: Sequence[int], limits: Limits, now: float) -> Refusal | None:
    """Name the reason why a scored experience must not be trained, or None."""
    if not has_provenance(experience):
        return Refusal("filtered", "no_provenance")
    if not math.isfinite((experience.reward or 0.0) * experience.weight):
        return Refusal("filtered", "non_finite_reward")
    for segment in experience.segments:
        if (refusal := _refuse_segment(segment, limits)) is not None:
            return refusal
    if version_lag(lineage, oldest_version(experience)) > limits.max_version_lag:
        return Refusal("stale", "version_lag")
    if now - experience.generated_at > limits.max_age_seconds:
        return Refusal("stale", "age")
    return None


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
    if len(segment.loss_mask) != num_tokens or len(segment.logprobs) != 4 * num_tokens:
        return False
    sampled = np.frombuffer(segment.logprobs, "<f4")[np.frombuffer(segment.loss_mask, np.uint8) == 1]
    if not segment.spans or segment.spans[0].start != 0:
        return False
    return bool(np.all(np.isfinite(sampled) & (sampled < ROUNDING)))


def _refuse_segment(segment: Segment, limits: Limits) -> Refusal | None:
    if not segment.sampling.on_support:
        return Refusal("off_support", "greedy" if segment.sampling.temperature <= 0 else "truncated")
    token_ids, mask = np.frombuffer(segment.token_ids, "<i4"), np.frombuffer(segment.loss_mask, np.uint8)
    if not mask.any():
        return Refusal("filtered", "empty_completion")
    if mask[0]:
        return Refusal("filtered", "empty_prompt")
    if len(token_ids) > limits.max_length:
        return Refusal("filtered", "beyond_context")
    if token_ids.min() < 0 or token_ids.max() >= limits.vocabulary_size:
        return Refusal("filtered", "unknown_token")
    return None


def prompt_of(experience: Experience) -> bytes:
    """The packed token ids before the first sampled token: equal bytes mean the same prompt."""
    segment = experience.segments[0]
    return segment.token_ids[: 4 * segment.loss_mask.index(1)]


def single_version(experience: Experience) -> int | None:
    """The one version that made every token, or None where versions are mixed."""
    versions = {span.version for segment in experience.segments for span in segment.spans}
    return versions.pop() if len(versions) == 1 else None


def num_tokens(experiences: Sequence[Experience]) -> int:
    """Sampled tokens: the loss's denominator, fixed before anything is masked out."""
    return sum(segment.loss_mask.count(1) for experience in experiences for segment in experience.segments)


def micro_batches(
    experiences: Sequence[Experience], *, max_tokens: int, device: torch.device | str = "cpu"
) -> list[MicroBatch]:
    """Group rows by temperature, longest first, so that rows * length stays within `max_tokens` (one row at least)."""
    rows = sorted(_rows(experiences), key=lambda row: (row.temperature, -len(row.token_ids), row.sample))
    groups: list[list[Row]] = []
    for row in rows:
        last = groups[-1] if groups else []
        fits = (
            last and row.temperature == last[0].temperature and (len(last) + 1) * len(last[0].token_ids) <= max_tokens
        )
        if fits:
            last.append(row)
        else:
            groups.append([row])
    return [_pad(group, device) for group in groups]


def _rows(experiences: Sequence[Experience]) -> list[Row]:
    return [
        Row(
            sample=sample,
            token_ids=np.frombuffer(segment.token_ids, "<i4"),
            mask=np.frombuffer(segment.loss_mask, np.uint8) == 1,
            log_probs=np.frombuffer(segment.logprobs, "<f4"),
            temperature=segment.sampling.temperature,
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
        temperature=rows[0].temperature,
    )
