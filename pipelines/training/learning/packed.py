"""Micro-batches of packed rows: no padding, common prefixes once, the head on sampled tokens only. Pure.

Shapes: N tokens of the packed rows, S sampled tokens; M layers with experts, K experts chosen per token. For the loss every sampled
token is a row of its own: B = S, T = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipelines.training.learning.batch import MicroBatch, Row, rows_of
from pipelines.training.learning.supports import joined_support
from policy.packing import LEAST_SHARED, Packing, common_prefix, pack
from policy.routing import ABSENT, NO_REPLAY, Routing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience


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
    """The ids that each was drawn from; -1 where it has fewer, or has any id."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass."""
        return len(self.packing.ids_N)


def sequences_of(batch: MicroBatch | PackedBatch) -> torch.Tensor | None:
    """The row of each token; None: each row of the micro-batch is one."""
    return batch.sequence_B if isinstance(batch, PackedBatch) else None


def packed_batches(
    experiences: Sequence[Experience],
    *,
    max_tokens: int,
    device: torch.device | str = "cpu",
    routing: Routing = NO_REPLAY,
    windowed: bool = False,
) -> list[PackedBatch]:
    """Group rows with common prefixes, so that each batch computes up to `max_tokens` tokens (one row at least).

    Args:
        experiences: as for `micro_batches`.
        max_tokens: after sharing.
        device: where the tensors go.
        routing: of the model that shall replay recorded experts.
        windowed: the model has layers with a sliding window.
    """
    rows = sorted(rows_of(experiences, routing), key=lambda row: (row.token_ids.astype(">i4").tobytes(), row.sample))
    groups: list[list[Row]] = []
    room = 0
    for row in rows:
        last = groups[-1][-1] if groups else None
        cost = len(row.token_ids) - (0 if last is None else _shared(last, row))
        if last is not None and cost <= room:
            groups[-1].append(row)
        else:
            cost = len(row.token_ids)
            groups.append([row])
            room = max_tokens
        room -= cost
    return [_packed(group, device, windowed=windowed) for group in groups]


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

    def joined(values: list[np.ndarray], dtype: type = np.int64) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(values).astype(dtype)).to(device)

    behaviour_S = joined([row.log_probs[at] for row, at in zip(rows, sampled, strict=True)], np.float32)
    temperatures = [np.full(count, row.temperature) for row, count in zip(rows, counts, strict=True)]
    return PackedBatch(
        packing=packing,
        states_S=joined([places[at - 1] for places, at in zip(packing.places, sampled, strict=True)]),
        labels_S=joined([row.token_ids[at] for row, at in zip(rows, sampled, strict=True)]),
        mask_BT=torch.ones((sum(counts), 1), dtype=torch.bool, device=device),
        behaviour_BT=behaviour_S[:, None],
        sample_B=joined([np.full(count, row.sample) for row, count in zip(rows, counts, strict=True)]),
        sequence_B=joined([np.full(count, number) for number, count in enumerate(counts)]),
        temperature_B=joined(temperatures, np.float32),
        experts_NMK=_experts(rows, packing, device) if replays else None,
        support_SK=joined_support([(row.support, count) for row, count in zip(rows, counts, strict=True)], device),
    )


def _experts(rows: list[Row], packing: Packing, device: torch.device | str) -> torch.Tensor:
    """The experts of all tokens [N, M, K]; `ABSENT` for rows without a record."""
    shape = next(row.experts.shape[1:] for row in rows if row.experts is not None)
    found = np.full((len(packing.ids_N), *shape), ABSENT, np.int16)
    for row, places in zip(rows, packing.places, strict=True):
        if row.experts is not None:
            found[places] = row.experts[: len(places)]
    return torch.from_numpy(found).to(device)
