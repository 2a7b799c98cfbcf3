"""Prepares a version in a vLLM worker while the old one serves. In: a file that the follower wrote. Out: verified tensors.

Waits for: the disk. A thread maps the file and computes its root, so that the pause reads only bytes that were verified and are in
memory. Decoding is not done here: one follower per host decodes, and all workers of the host map the same file.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

from contracts.errors import MillraceError, WeightsRefused
from engines.vllm.server.changes import ChangedElements, changed_elements, check_same_tensors
from weights.mapped import map_safetensors
from weights.tensors import Tensors, root_of


class HeldWeights(NamedTuple):
    """A version in the memory of a worker."""

    version: int
    root: str
    tensors: Tensors


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

    Raises:
        NotFound: there is no such file.
        WeightsRefused: `wrong_base`; `wrong_root`, the file holds other weights; or as `check_same_tensors`.
    """
    held = base.root if base is not None else None
    if base_root is not None and held != base_root:
        raise WeightsRefused(
            "wrong_base", f"this worker holds weights with the root {held}, the update to v{version} is for {base_root}"
        )
    tensors = map_safetensors(path, private=True)
    if (found := root_of(tensors)) != root:
        raise WeightsRefused("wrong_root", f"{path} holds weights with the root {found}, v{version} has {root}")
    if base is None or base_root is None:
        return StagedWeights(version, root, tensors, base_root, None)
    check_same_tensors(base.tensors, tensors)
    return StagedWeights(version, root, tensors, base_root, _changes(base.tensors, tensors) if as_changes else None)


def _changes(base: Tensors, target: Tensors) -> list[ChangedElements] | None:
    try:
        return list(changed_elements(base, target))
    except WeightsRefused:  # NaN, or a dtype that a patch cannot express: all of it is written then
        return None


class StagingThread:
    """Stages one version at a time beside the worker's own thread.

    Attributes:
        staged: the result, once it is there.
        error: why there is none.
    """

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
        self.join()
        self.staged, self.error = None, None

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
