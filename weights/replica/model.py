"""Writes the file of a version while it is verified, in one pass over its bytes. In: an edge, its base. Out: a file. Waits for: the disk.

Each piece is written from the memory that was hashed, so the file holds what adds up to the root once an edge was taken. Until then it
holds anything, so nobody else may open it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from contracts.faults import FaultPoint
from weights.blocks import Entry, blocks_of, cut, wholes_of
from weights.codec.container import Layout, corrupt
from weights.codec.delta import stage
from weights.codec.history import History, Moves
from weights.codec.sparse import Keep
from weights.files import full_disk_named
from weights.staging import PayloadOf, stage_parts
from weights.tensors import ELEMENT_BYTES, Tensor, safetensors_header
from weights.versions.manifest import Manifest


class ModelFile:
    """A new file of the tensors of a version. Raises FileExistsError; Unavailable: the disk is full."""

    def __init__(self, path: Path, fault: FaultPoint) -> None:
        self._path, self._fault = path, fault
        self._starts: dict[Entry, int] | None = None
        with full_disk_named(path):  # never an existing one: somebody may read it, or a link leads elsewhere
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with full_disk_named(self._path):
            os.close(self._file)

    def take(
        self,
        base: Mapping[str, Tensor],
        manifest: Manifest,
        payload_of: PayloadOf,
        history: History,
        *,
        base_root: str | None,
    ) -> dict[str, Moves] | None:
        """Write the target of an edge; its moves. None: the file cannot have its layout. `base` may be what this file holds.

        Raises as `weights.staging.stage_edge`, and Unavailable: the disk is full. Then, and after None, the file is of no use.
        """
        try:
            if manifest.parts is msgspec.UNSET:
                payload, keep = payload_of(manifest), partial(self._keep_tensors, manifest.full_bytes)
                return stage(base, manifest, payload, history, base_root=base_root, keep=keep).moves
            wholes = wholes_of(leaf.entry for leaf in manifest.leaves)
            starts = self._begin([(name, *whole[:2]) for name, whole in wholes.items()], manifest.full_bytes)
            keep = partial(self._keep, _starts_of_blocks(starts))
            known = {} if manifest.base_root is None else blocks_of(base)
            staged = stage_parts(known, manifest, payload_of, history, base_root=base_root, keep=keep)
            return {name: moves for part in staged for name, moves in part.moves.items()}
        except _OtherLayout:
            return None

    def _begin(self, layout: Sequence[Entry], most: int) -> dict[Entry, int]:
        """Where each tensor begins. `most`: bytes of all of them."""
        if self._starts is None and all(dtype in ELEMENT_BYTES for _, dtype, _ in layout):
            text, starts, end = safetensors_header(layout)
            if end - len(text) > most:  # a piece of it could lie anywhere in the file
                raise corrupt(f"its tensors have {end - len(text)} bytes, and its manifest says {most}")
            self._write(0, 0, memoryview(text))
            self._fault("slot: model begun")
            self._starts = {entry: starts[entry[0]] for entry in layout}
        if self._starts is None or self._starts.keys() != set(layout):
            raise _OtherLayout
        return self._starts

    def _keep_tensors(self, most: int, layout: Layout) -> Callable[[str], Keep]:
        return self._keep(self._begin(layout, most), layout)

    def _keep(self, starts: Mapping[Entry, int], layout: Layout) -> Callable[[str], Keep]:
        if not starts.keys() >= set(layout):
            raise corrupt("it has other tensors than its manifest says")
        start_of = {entry[0]: starts[entry] for entry in layout}
        return lambda name: partial(self._write, start_of[name])

    def _write(self, tensor: int, start: int, content: memoryview) -> None:
        with full_disk_named(self._path):
            while content:
                done = os.pwrite(self._file, content, tensor + start)
                start, content = start + done, content[done:]


class _OtherLayout(Exception):
    """The file has other tensors than the version, or their bytes do not follow from their shapes."""


def _starts_of_blocks(starts: Mapping[Entry, int]) -> dict[Entry, int]:
    found = dict[Entry, int]()
    for entry, start in starts.items():
        at = start
        for block in cut(entry):
            found[block] = at
            at += ELEMENT_BYTES[block[1]] * math.prod(block[2])
    return found
