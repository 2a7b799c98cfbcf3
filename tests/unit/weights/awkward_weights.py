"""Small versions of a policy with bit patterns that float arithmetic would not keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weights.tensors import Tensor, Tensors

MINUS_ZERO, INFINITY, NAN, SUBNORMAL = 0x8000, 0x7F80, 0x7FA5, 0x0001


def tensor(dtype: str, words: npt.NDArray[Any]) -> Tensor:
    return Tensor(dtype, words.shape, np.frombuffer(words.tobytes(), dtype=np.uint8).copy())


def bf16(seed: int, *shape: int) -> npt.NDArray[np.uint16]:
    floats = np.random.default_rng(seed).normal(0, 0.02, shape).astype("<f4")
    return (floats.view("<u4") >> 16).astype("<u2")


def version(number: int) -> Tensors:
    """Version 0, 1, 2, ...: each changes some elements of the one before; `layer.0.norm` never changes."""
    embed, query = bf16(1, 64, 32), bf16(2, 32, 32)
    for step in range(1, number + 1):
        changed = np.random.default_rng(100 + step).random(embed.shape) < 0.02
        embed[changed] += np.uint16(1)
        query[0, :4] = [(MINUS_ZERO, 0)[step % 2], (0, MINUS_ZERO)[step % 2], INFINITY ^ (step % 2) << 15, SUBNORMAL]
    return {
        "embed.weight": tensor("BF16", embed),
        "layer.0.norm": tensor("BF16", bf16(3, 32)),
        "layer.0.query": tensor("BF16", query),
    }
