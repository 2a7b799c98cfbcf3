"""Turn experiences into tensors: rows padded to one length, or packed without padding. Pure.

Packed rows compute common prefixes once, and the head on sampled tokens only; for the loss every sampled token is a row of its own:
B = S, T = 1. A row is one segment of one experience.

Shapes: B rows of a micro-batch, L tokens of a right-padded row, T = L - 1 predicted tokens (position t predicts token t + 1), N tokens
of the packed rows, S sampled tokens; M layers with experts, K experts chosen per token, or ids of a support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from contracts.packing import support_of
from pipelines.training.known.experiences import recorded_experts
from pipelines.training.learning.loss import per_token, sampled
from policy.off_device import onto
from policy.packing import LEAST_SHARED, Packing, common_prefix, pack
from policy.routing import ABSENT, NO_REPLAY, Routing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from contracts.records import Segment
    from pipelines.training.known.experiences import Segmented
    from policy.logprobs import TokenScorer, TokenScores


Layout = tuple[torch.Tensor | None, tuple[torch.Tensor, int] | None]
"""Mask and sequences of rows, as `policy_loss` takes them."""


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
    """Padded rows. `sample_B` says which experience of the batch each row belongs to."""

    input_ids_BL: torch.Tensor
    attention_mask_BL: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_BT: torch.Tensor
    sample_B: torch.Tensor
    temperature_B: torch.Tensor
    experts_BLMK: torch.Tensor | None = None
    """`ABSENT` where the engine recorded nothing; None if it did so for no row."""
    support_NK: torch.Tensor | None = None
    """The ids that each of the N sampled tokens was drawn from, row after row; -1 where it has fewer, or has any id."""
    scored_N: torch.Tensor | None = None
    """Where `mask_BT` is True, counted row after row."""
    sequence_B: ClassVar[None] = None
    """Each row is a sequence of its own."""

    @property
    def layout(self) -> Layout:
        """Its mask."""
        return self.mask_BT, None

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.input_ids_BL.numel()

    def scored_by(self, scorer: TokenScorer) -> TokenScores:
        """Its scores at its temperatures, over its supports, through the experts that were recorded."""
        rows = self.input_ids_BL, self.attention_mask_BL, self.mask_BT
        return scorer(*rows, self.temperature_B, self.experts_BLMK, support_NK=self.support_NK, scored_N=self.scored_N)


@dataclass(frozen=True)
class PackedBatch:
    """Packed rows, and what the loss needs of each sampled token."""

    packing: Packing
    states_S: torch.Tensor
    """Places of the states that predict them."""
    labels_S: torch.Tensor
    mask_BT: torch.Tensor
    behaviour_BT: torch.Tensor
    sample_B: torch.Tensor
    sequence_B: torch.Tensor
    """The row of each token."""
    temperature_B: torch.Tensor
    experts_NMK: torch.Tensor | None = None
    support_SK: torch.Tensor | None = None
    """As `MicroBatch.support_NK`."""

    @property
    def layout(self) -> Layout:
        """All rows are sampled tokens: no mask, so no waiting for the device."""
        return None, (self.sequence_B, len(self.packing.places))

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass."""
        return len(self.packing.ids_N)

    def scored_by(self, scorer: TokenScorer) -> TokenScores:
        """As `MicroBatch.scored_by`."""
        tokens = self.states_S, self.labels_S, self.temperature_B
        return scorer.score_packed(self.packing, *tokens, self.experts_NMK, support_SK=self.support_SK)


class BatchScores(NamedTuple):
    """Of a micro-batch, without gradients."""

    log_probs_BT: torch.Tensor
    sums_K: torch.Tensor = torch.empty(0)
    """As in `loss.MicroSums`, where a loss was computed."""


Compute = Callable[[MicroBatch | PackedBatch, float], BatchScores]
"""Computes over a batch, with the share of its gradient that counts."""


def micro_batches(
    experiences: Sequence[Segmented],
    *,
    max_tokens: int,
    device: torch.device | str = "cpu",
    routing: Routing = NO_REPLAY,
) -> list[MicroBatch]:
    """Group rows, longest first, so that rows * length stays within `max_tokens` (one row at least).

    `routing`: of the model that shall replay recorded experts.
    """
    groups: list[list[Row]] = []
    for row in sorted(rows_of(experiences, routing), key=lambda row: (-len(row.token_ids), row.sample)):
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0].token_ids) <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_padded(group, device) for group in groups]


def packed_batches(
    experiences: Sequence[Segmented],
    *,
    max_tokens: int,
    device: torch.device | str = "cpu",
    routing: Routing = NO_REPLAY,
    windowed: bool = False,
) -> list[PackedBatch]:
    """Group rows with common prefixes, so that each batch computes up to `max_tokens` tokens (one row at least).

    `max_tokens` is after sharing. `routing`: as for `micro_batches`. `windowed`: the model has layers with a sliding window.
    """
    groups: list[list[Row]] = []
    room = 0
    for row in sorted(
        rows_of(experiences, routing), key=lambda row: (row.token_ids.astype(">i4").tobytes(), row.sample)
    ):
        cost = len(row.token_ids) - (_shared(groups[-1][-1], row) if groups else 0)
        if groups and cost <= room:
            groups[-1].append(row)
        else:
            cost = len(row.token_ids)
            groups.append([row])
            room = max_tokens
        room -= cost
    return [_packed(group, device, windowed=windowed) for group in groups]


def rows_of(experiences: Sequence[Segmented], routing: Routing) -> list[Row]:
    """One row per segment. `routing`: of the model that shall replay recorded experts."""
    return [
        Row(
            sample=sample,
            token_ids=np.frombuffer(segment.token_ids, "<i4"),
            mask=np.frombuffer(segment.loss_mask, np.uint8) == 1,
            log_probs=np.frombuffer(segment.logprobs, "<f4"),
            temperature=segment.sampling.temperature,
            experts=recorded_experts(segment, routing) if routing.replayable else None,
            support=_support_in(segment),
        )
        for sample, experience in enumerate(experiences)
        for segment in experience.segments
    ]


def text_tokens(
    batch: MicroBatch | PackedBatch, log_probs_BT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of text: log-prob, weight (float64) and row of each token [S]. Its weights stand where answers have their logged log-probs."""
    mask_BT = batch.layout[0]
    weight_S = sampled(batch.behaviour_BT, mask_BT).double()
    return sampled(log_probs_BT, mask_BT), weight_S, per_token(batch.sample_B, mask_BT)


def samples_of(batches: Sequence[MicroBatch | PackedBatch]) -> torch.Tensor:
    """The sample [S] of each sampled token."""
    return torch.cat([per_token(batch.sample_B, batch.layout[0]) for batch in batches])


def _padded(rows: list[Row], device: torch.device | str) -> MicroBatch:
    num, length = len(rows), max(len(row.token_ids) for row in rows)
    input_ids, attention = np.zeros((2, num, length), np.int64)
    mask, behaviour = np.zeros((num, length), np.bool_), np.zeros((num, length), np.float32)
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
        experts_BLMK=_joined_experts(rows, np.arange(num * length).reshape(num, length), (num, length), device),
        support_NK=_joined_support(rows, device),
        scored_N=torch.from_numpy(np.flatnonzero(mask[:, 1:])).to(device),
    )


def _joined_experts(
    rows: list[Row], places: Iterable[np.ndarray], shape: tuple[int, ...], device: torch.device | str
) -> torch.Tensor | None:
    """The experts [*shape, M, K] of rows whose tokens have these places, `ABSENT` without a record; None if no row has one."""
    kinds = [row.experts.shape[1:] for row in rows if row.experts is not None]
    if not kinds:
        return None
    found = np.full((*shape, *kinds[0]), ABSENT, np.int16)
    flat = found.reshape(-1, *kinds[0])
    for row, at in zip(rows, places, strict=True):
        if row.experts is not None:
            flat[at[: len(row.experts)]] = row.experts[: len(at)]
    return onto(torch.from_numpy(found), device)


def _shared(first: Row, second: Row) -> int:
    """Tokens that the second row need not compute after the first. Rows with recorded experts share nothing."""
    if first.experts is not None or second.experts is not None:
        return 0
    common = common_prefix(first.token_ids, second.token_ids)
    return common if common >= LEAST_SHARED else 0


def _packed(rows: list[Row], device: torch.device | str, *, windowed: bool) -> PackedBatch:
    replays = any(row.experts is not None for row in rows)
    # The last token of a row predicts nothing.
    packing = pack([row.token_ids[:-1] for row in rows], share=not replays, windowed=windowed, device=device)
    sampled = [np.flatnonzero(row.mask) for row in rows]
    counts = [len(each) for each in sampled]

    def joined(values: Iterable[np.ndarray], dtype: type = np.int64) -> torch.Tensor:
        return onto(torch.from_numpy(np.concatenate([*values]).astype(dtype)), device)

    def repeated(values: Iterable[float], dtype: type = np.int64) -> torch.Tensor:
        return onto(torch.from_numpy(np.repeat(np.array([*values], dtype), counts)), device)

    return PackedBatch(
        packing=packing,
        states_S=joined(places[at - 1] for places, at in zip(packing.places, sampled, strict=True)),
        labels_S=joined(row.token_ids[at] for row, at in zip(rows, sampled, strict=True)),
        mask_BT=torch.ones((sum(counts), 1), dtype=torch.bool, device=device),
        behaviour_BT=joined((row.log_probs[at] for row, at in zip(rows, sampled, strict=True)), np.float32)[:, None],
        sample_B=repeated(row.sample for row in rows),
        sequence_B=repeated(range(len(rows))),
        temperature_B=repeated((row.temperature for row in rows), np.float32),
        experts_NMK=_joined_experts(rows, packing.places, (len(packing.ids_N),), device),
        support_SK=_joined_support(rows, device),
    )


def _support_in(segment: Segment) -> np.ndarray | None:
    """The supports [S, K] of a segment, -1 where a token has fewer ids; None: every token could be drawn."""
    return support_of(segment.support, segment.loss_mask.count(1)) if segment.sampling.is_truncated else None


def _joined_support(rows: list[Row], device: torch.device | str) -> torch.Tensor | None:
    """The supports int64 [S, K] of the rows' sampled tokens; only -1 where every id could be drawn; None if no row has one."""
    width = max((row.support.shape[1] for row in rows if row.support is not None), default=None)
    if width is None:
        return None
    found = [np.full((int(row.mask.sum()), width), -1, np.int64) for row in rows]
    for each, row in zip(found, rows, strict=True):
        if row.support is not None:
            each[:, : row.support.shape[1]] = row.support
    return onto(torch.from_numpy(np.concatenate(found)), device)
