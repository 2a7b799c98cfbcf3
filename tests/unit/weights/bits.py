"""Tensors of any type with the bit patterns that float arithmetic would not keep, and versions that change them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from weights.tensors import Tensor, Tensors, words_of

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "I64": 8, "F64": 8, "F4": 0}
"""Bytes of an element; 0: two elements a byte."""
# Per bytes of a word: zeros, subnormals, infinities, NaN with payloads, one, everything; with and without the sign.
SPECIALS = {
    1: [0x00, 0x80, 0x01, 0x81, 0x7C, 0xFC, 0x7F, 0xFF, 0x7D, 0x38],
    2: [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7C00, 0xFC00, 0x7FC1, 0x7F81, 0xFFFF, 0x3F80],
    4: [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF],
    8: [0, 1 << 63, 1, (1 << 63) + 1, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 1, (1 << 64) - 1],
}
DENSITIES = (0.0, 0.002, 0.03, 0.13, 0.25, 0.35, 1.0)

Words = npt.NDArray[Any]


def tensor_like(dtype: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Special bits and any bits, mixed; or like weights."""
    random, width = np.random.default_rng(seed), WIDTHS[dtype]
    size = math.prod(shape)
    num_bytes = size * width if width else -(-size // 2)
    data = random.integers(0, 256, num_bytes).astype(np.uint8)
    words = data.view(f"<u{width or 1}")
    some = random.random(words.size) < random.choice([0.0, 0.5, 1.0])
    words[some] = random.choice(np.array(SPECIALS[width or 1], words.dtype), words.size)[some]
    return Tensor(dtype, shape, data)


def moved(tensor: Tensor, density: float, seed: int) -> Tensor:
    """A fraction of the words elsewhere: near, far, or at a special pattern."""
    random = np.random.default_rng(seed)
    data = tensor.data.copy()
    words = words_of(tensor._replace(data=data))
    near = random.choice(np.array([1, 1, 1, -1, 2, -5, 100]), words.size).astype(words.dtype)
    far = random.integers(0, 256, words.nbytes).astype(np.uint8).view(words.dtype)
    special = random.choice(np.array(SPECIALS[words.itemsize], words.dtype), words.size)
    fate = random.random(words.size)
    changed = np.where(fate < 0.7, words + near, np.where(fate < 0.85, far, special)).astype(words.dtype)
    some = random.random(words.size) < density
    words[some] = changed[some]
    return tensor._replace(data=data)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.sampled_from([(), (0,), (0, 3), (1,), (3, 5), (31,), (700,), (40, 30), (5, 1, 9), (90, 64)]))
    return tensor_like(draw(st.sampled_from(list(WIDTHS))), shape, draw(st.integers(0, 2**32)))


@st.composite
def pairs_of_versions(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    """Tensors are kept, moved, replaced by anything, renamed, removed or added."""
    base = draw(st.dictionaries(st.text(max_size=4), tensors(), max_size=4))
    target = draw(st.dictionaries(st.text(max_size=4), tensors(), max_size=1))
    for name, tensor in base.items():
        match draw(st.sampled_from(["kept", "moved", "moved", "moved", "removed", "replaced", "renamed", "reshaped"])):
            case "kept":
                target[name] = tensor
            case "moved":
                target[name] = moved(tensor, draw(st.sampled_from(DENSITIES)), draw(st.integers(0, 2**32)))
            case "replaced":
                target[name] = draw(tensors())
            case "renamed":
                target[name + "'"] = tensor
            case "reshaped":
                target[name] = tensor._replace(shape=(*tensor.shape, 1))
    return base, target
