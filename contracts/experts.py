"""Recorded expert choices: packed in records, checked wherever a record enters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from contracts.sampling import ExpertShape

_BYTES = 2


def experts_of(packed: bytes, shape: ExpertShape) -> np.ndarray:
    """The choices [tokens, layers, chosen], uint16. Bytes and shape must agree."""
    return np.frombuffer(packed, "<u2").reshape(shape.num_tokens, shape.num_layers, shape.num_chosen)


def experts_problem(packed: bytes, shape: ExpertShape | None, num_tokens: int) -> str:
    """Why bytes cannot be the expert choices of a row; empty if they can, or if nothing was recorded.

    Args:
        packed: uint16, little-endian.
        shape: what the bytes claim to be.
        num_tokens: of the row. Its last token went through no model.
    """
    if shape is None:
        return f"experts: {len(packed)} bytes without a shape" if packed else ""
    dimensions = [shape.num_tokens, shape.num_layers, shape.num_chosen]
    if min(dimensions) < 1 or len(packed) != _BYTES * shape.num_tokens * shape.num_layers * shape.num_chosen:
        return f"experts: {len(packed)} bytes are not an array {dimensions} of uint16"
    if shape.num_tokens != num_tokens - 1:
        return f"experts: recorded for {shape.num_tokens} tokens of {num_tokens}, where all but the last have some"
    return ""
