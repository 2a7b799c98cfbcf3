"""The elements that differ between two versions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.errors import WeightsRefused
from weights.tensors import Tensor, Tensors

_WORD = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
_INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
_WITHOUT_SIGN = {"BF16": 0x7FFF, "F16": 0x7FFF, "F32": 0x7FFFFFFF}


class ChangedElements(NamedTuple):
    """The elements of one tensor whose bits changed."""

    name: str
    dtype: str
    """In safetensors' spelling, as `Tensor.dtype`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    indices: npt.NDArray[np.int64]
    """[changed], ascending, into the flattened tensor."""
    words: npt.NDArray[np.unsignedinteger]
    """[changed], the new bits: values, not differences."""


def check_same_tensors(base: Tensors, target: Tensors) -> None:
    """Check that a delta of elements can lead from one version to the other.

    Raises:
        WeightsRefused: `missing_tensor`, `unknown_tensor`, `wrong_shape` or `wrong_dtype`.
    """
    advice = "give the engine the full version instead"
    if missing := sorted(base.keys() - target.keys()):
        raise WeightsRefused("missing_tensor", f"the base has {missing[0]}, the target has not: {advice}")
    if unknown := sorted(target.keys() - base.keys()):
        raise WeightsRefused("unknown_tensor", f"the target has {unknown[0]}, the base has not: {advice}")
    for name, (dtype, shape, data) in target.items():
        if (shape, data.size) != (base[name].shape, base[name].data.size):
            raise WeightsRefused("wrong_shape", f"{name} was {base[name].shape} and becomes {shape}: {advice}")
        if dtype != base[name].dtype:
            raise WeightsRefused("wrong_dtype", f"{name} was {base[name].dtype} and becomes {dtype}: {advice}")


def changed_elements(base: Tensors, target: Tensors) -> Iterator[ChangedElements]:
    """The changes from `base` to `target`, tensor by tensor, in the order of names; unchanged tensors are left out.

    Raises:
        WeightsRefused: as `check_same_tensors`; `unsupported_dtype` for a changed tensor that is not BF16, F16 or F32;
            `nan` for an element that becomes NaN, because the receiver reads NaN as "unchanged".
    """
    check_same_tensors(base, target)
    for name in sorted(target):
        if not np.array_equal(base[name].data, target[name].data):
            yield _change(name, base[name], target[name])


def _change(name: str, base: Tensor, target: Tensor) -> ChangedElements:
    if (
        target.dtype not in _WORD
        or target.data.size != math.prod(target.shape) * np.dtype(_WORD[target.dtype]).itemsize
    ):
        raise WeightsRefused(
            "unsupported_dtype", f"{name} is {target.dtype}; changed elements can only be given as {', '.join(_WORD)}"
        )
    words = target.data.view(_WORD[target.dtype])
    indices = np.flatnonzero(base.data.view(_WORD[target.dtype]) != words)
    changed = words[indices]
    if (nans := np.flatnonzero((changed & _WITHOUT_SIGN[target.dtype]) > _INFINITY[target.dtype])).size:
        raise WeightsRefused(
            "nan",
            f"element {indices[nans[0]]} of {name} becomes NaN, which a patch cannot express: give the full version",
        )
    return ChangedElements(name, target.dtype, target.shape, indices, changed)
