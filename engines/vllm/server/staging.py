"""Prepares a version in a vLLM worker while the old one serves. In: a file that the follower wrote. Out: verified tensors.

Waits for: the disk. A thread maps the file and computes its root, so that the pause reads only bytes that were verified and are in
memory. One follower per host decodes, and all workers of the host map the same file.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.errors import MillraceError, WeightsRefused
from weights.blocks import root_as
from weights.mapped import map_safetensors
from weights.tensors import Tensor, Tensors

_WORD = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
_INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
_WITHOUT_SIGN = {"BF16": 0x7FFF, "F16": 0x7FFF, "F32": 0x7FFFFFFF}


class HeldWeights(NamedTuple):
    """A version in the memory of a worker."""

    version: int
    root: str
    tensors: Tensors


class ChangedElements(NamedTuple):
    """The elements of one tensor whose bits changed; `dtype` and `shape` are those of the tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    indices: npt.NDArray[np.int64]
    """[changed], ascending, into the flattened tensor."""
    words: npt.NDArray[np.unsignedinteger]
    """[changed], the new bits: values, not differences."""


class StagedWeights(NamedTuple):
    """A verified version that can be written."""

    version: int
    root: str
    tensors: Tensors
    base_root: str | None
    """The weights that it must replace; None: any."""
    changes: list[ChangedElements] | None
    """The elements that differ from the base; None: write all of it."""


def stage(
    version: int, root: str, path: Path, base: HeldWeights | None, base_root: str | None, *, as_changes: bool
) -> StagedWeights:
    """Map and verify a version.

    Args:
        version: its number.
        root: of its tensors, as its signed manifest says; the follower has checked the signature.
        path: its safetensors file.
        base: what the worker holds.
        base_root: what it must hold; None: the version may replace anything.
        as_changes: list the elements that differ from the base, for a worker that writes only those.

    Raises WeightsRefused: `wrong_base`; or as `check_same_tensors`. Others as `read_verified`.
    """
    held = base.root if base is not None else None
    if base_root is not None and held != base_root:
        raise WeightsRefused(
            "wrong_base", f"this worker holds weights with the root {held}, the update to v{version} is for {base_root}"
        )
    tensors, changes = read_verified(path, root, version), None
    if base is not None and base_root is not None:
        check_same_tensors(base.tensors, tensors)
        if as_changes:
            with suppress(WeightsRefused):  # NaN, or a dtype that a patch cannot express: all of it is written then
                changes = list(changed_elements(base.tensors, tensors))
    return StagedWeights(version, root, tensors, base_root, changes)


def read_verified(path: Path, root: str, version: int | None = None) -> Tensors:
    """Map a file. Raises NotFound; WeightsRefused: `wrong_root`, it holds other weights; names the version, if it is given."""
    tensors = map_safetensors(path, private=True)
    if (found := root_as(tensors, root)) != root:
        wanted = f"not {root}" if version is None else f"v{version} has {root}"
        raise WeightsRefused("wrong_root", f"{path} holds weights with the root {found}, {wanted}")
    return tensors


def check_same_tensors(base: Tensors, target: Tensors) -> None:
    """Raises WeightsRefused, `missing_tensor`, `unknown_tensor`, `wrong_shape` or `wrong_dtype`, if no changes of elements lead to `target`."""
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

    Raises WeightsRefused: as `check_same_tensors`; `unsupported_dtype` for a changed tensor that is not BF16, F16 or F32; `nan` for an
    element that becomes NaN, because vLLM reads NaN as "unchanged".
    """
    check_same_tensors(base, target)
    for name in sorted(target):
        if not np.array_equal(base[name].data, target[name].data):
            yield _change(name, base[name], target[name])


def _change(name: str, base: Tensor, target: Tensor) -> ChangedElements:
    dtype = target.dtype
    if dtype not in _WORD or target.data.size != math.prod(target.shape) * np.dtype(_WORD[dtype]).itemsize:
        says = f"{name} is {dtype}; changed elements can only be given as {', '.join(_WORD)}"
        raise WeightsRefused("unsupported_dtype", says)
    words = target.data.view(_WORD[dtype])
    indices = np.flatnonzero(base.data.view(_WORD[dtype]) != words)
    changed = words[indices]
    if (nans := np.flatnonzero((changed & _WITHOUT_SIGN[dtype]) > _INFINITY[dtype])).size:
        says = f"element {indices[nans[0]]} of {name} becomes NaN, which a patch cannot express: give the full version"
        raise WeightsRefused("nan", says)
    return ChangedElements(name, dtype, target.shape, indices, changed)


class StagingThread:
    """Stages one version at a time beside the worker's own thread. `staged`: the result, once it is there; `error`: why there is none."""

    def __init__(self) -> None:
        self.staged: StagedWeights | None = None
        self.error: MillraceError | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """True while a version is being verified."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self, version: int, root: str, path: Path, base: HeldWeights | None, base_root: str | None, *, as_changes: bool
    ) -> None:
        """Start to stage; what was staged before is dropped. Arguments as of `stage`."""
        self.drop()

        def work() -> None:
            try:
                self.staged = stage(version, root, path, base, base_root, as_changes=as_changes)
            except MillraceError as error:
                self.error = error
            except Exception as error:  # noqa: BLE001 the driver is told whatever went wrong in this thread
                self.error = WeightsRefused("not_staged", f"v{version} was not staged: {error!r}")

        self._thread = threading.Thread(target=work, name="millrace-staging", daemon=True)
        self._thread.start()

    def refuse(self, error: MillraceError) -> None:
        """Stage nothing, for this reason."""
        self.drop()
        self.error = error

    def join(self) -> None:
        """Wait for the version that is being staged."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def drop(self) -> None:
        """Forget what was staged."""
        self.join()
        self.staged, self.error = None, None
