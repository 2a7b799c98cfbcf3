"""Recorded expert choices: packed in records, checked wherever a record enters. Pure.

They are by far the largest part of a sample (48 layers with 8 experts are 768 bytes per token), and bodies are not compressed in
every record, so the packed form is compressed itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zstandard

from contracts.compression import decompressed

if TYPE_CHECKING:
    from contracts.sampling import ExpertShape

MAX_PACKED_BYTES = 400_000
"""Of one answer: a record of the log takes 1 MB, and an experience has the tokens too. A longer answer has no record of experts."""
_BYTES = 2
_MAX_BYTES = 64 * 2**20


def pack_experts(choices: bytes) -> bytes:
    """Choices (uint16, little-endian) as records have them: a zstd frame."""
    return zstandard.ZstdCompressor(level=3).compress(choices)


def experts_of(packed: bytes, shape: ExpertShape) -> np.ndarray:
    """The choices [tokens, layers, chosen], uint16. Bytes and shape must agree: see `experts_problem`."""
    return np.frombuffer(decompressed(packed, _MAX_BYTES), "<u2").reshape(
        shape.num_tokens, shape.num_layers, shape.num_chosen
    )


def experts_problem(packed: bytes, shape: ExpertShape | None, num_tokens: int) -> str:
    """Why bytes cannot be the expert choices of a row; empty if they can, or if nothing was recorded.

    Args:
        packed: see `pack_experts`.
        shape: what the choices claim to be.
        num_tokens: of the row. Its last token went through no model.
    """
    if shape is None:
        return f"experts: {len(packed)} bytes without a shape" if packed else ""
    dimensions = [shape.num_tokens, shape.num_layers, shape.num_chosen]
    try:
        num_bytes = len(decompressed(packed, _MAX_BYTES))
    except zstandard.ZstdError as error:
        return f"experts: {len(packed)} bytes cannot be decompressed: {error}"
    if min(dimensions) < 1 or num_bytes != _BYTES * shape.num_tokens * shape.num_layers * shape.num_chosen:
        return f"experts: {num_bytes} bytes are not an array {dimensions} of uint16"
    if shape.num_tokens != num_tokens - 1:
        return f"experts: recorded for {shape.num_tokens} tokens of {num_tokens}, where all but the last have some"
    return ""
