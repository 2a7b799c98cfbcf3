"""Truncated sampling in the trainer: the ids that each sampled token could be drawn from. Pure.

Shapes: S sampled tokens of a row or of several, K ids at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from contracts.support import support_of, support_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Segment


def has_possible_support(segment: Segment, sampled: np.ndarray, vocabulary_size: int) -> bool:
    """False if the record is damaged, or a sampled token [S] lies outside its own support: its probability would be 0."""
    if not segment.sampling.is_truncated:
        return True
    if support_problem(segment.support, sampled):
        return False
    return bool(support_of(segment.support, len(sampled)).max() < vocabulary_size)


def support_in(segment: Segment) -> np.ndarray | None:
    """The supports [S, K] of a segment, -1 where a token has fewer ids; None: every token could be drawn."""
    return support_of(segment.support, segment.loss_mask.count(1)) if segment.sampling.is_truncated else None


def joined_support(rows: Sequence[tuple[np.ndarray | None, int]], device: torch.device | str) -> torch.Tensor | None:
    """The supports int64 [S, K] of rows, each with its number of sampled tokens; only -1 where every id could be drawn.

    None if no row has one.
    """
    known = [support for support, _ in rows if support is not None]
    if not known:
        return None
    found = np.full((sum(count for _, count in rows), max(each.shape[1] for each in known)), -1, np.int64)
    start = 0
    for support, count in rows:
        if support is not None:
            found[start : start + count, : support.shape[1]] = support
        start += count
    return torch.from_numpy(found).to(device)
