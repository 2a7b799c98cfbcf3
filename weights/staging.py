"""Decodes edges, of one payload or of parts. In: the base, a manifest, its payloads. Out: changes of whole tensors, verified.

Each part is verified against its own leaves, and the manifest says that these add up to its root (`weights.versions.parts`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from weights.blocks import Whole, blocks_of, root_as, wholes_of
from weights.codec.delta import KeepLayout, Staged, TensorChange, stage
from weights.codec.history import History
from weights.codec.kernels import Words
from weights.cores import each
from weights.tensors import Tensor, words_of
from weights.versions.manifest import Manifest, edges_of_parts

PayloadOf = Callable[[Manifest], bytes]
"""The payload of an edge, or of a part of one (`edges_of_parts`)."""


def stage_edge(
    base: Mapping[str, Tensor] | None,
    manifest: Manifest,
    payload_of: PayloadOf,
    history: History | None = None,
    *,
    base_root: str | None = None,
) -> Staged:
    """As `weights.codec.delta.stage`, for an edge of any form. The moves are named as the history is: of blocks, if it has parts."""
    if manifest.parts is msgspec.UNSET:
        return stage(base, manifest, payload_of(manifest), history, base_root=base_root)
    known = {} if base is None or manifest.base_root is None else base
    if manifest.base_root is not None and base_root is None and base is not None:
        base_root = root_as(base, manifest.base_root)
    blocks = blocks_of(known)
    staged = stage_parts(blocks, manifest, payload_of, history, base_root=base_root)
    changes = {name: change for part in staged for name, change in part.changes.items()}
    wholes = wholes_of(leaf.entry for leaf in manifest.leaves)
    return Staged(
        dict(_joined(wholes, changes, blocks)),
        tuple(sorted(known.keys() - wholes.keys())),
        {name: moves for part in staged for name, moves in part.moves.items()},
        manifest.target_root,
    )


def stage_parts(
    blocks: Mapping[str, Tensor],
    manifest: Manifest,
    payload_of: PayloadOf,
    history: History | None,
    *,
    base_root: str | None,
    parts: Sequence[Manifest] | None = None,
    keep: KeepLayout | None = None,
) -> list[Staged]:
    """The parts of an edge, on as many cores as there are. `blocks`: of the base, whose root is `base_root`. `parts`: None: all of them.

    Raises as `weights.codec.delta.stage`, which says what `keep` is: each part has its own layout, of blocks.
    """
    turn = threading.Lock()  # whoever fetches uses all connections, and two parts may have a chunk in common

    def one(edge: Manifest) -> Staged:
        names = [leaf.name for leaf in edge.leaves]
        held = {name: blocks[name] for name in names if name in blocks}
        known = None if manifest.base_root is None else held
        with turn:
            payload = payload_of(edge)
        return stage(known, edge, payload, history, base_root=base_root, keep=keep)

    edges = edges_of_parts(manifest) if parts is None else parts
    return each(one, edges, [manifest.full_bytes // len(edges) for _ in edges])


def _joined(
    wholes: Mapping[str, Whole], changes: Mapping[str, TensorChange], base: Mapping[str, Tensor]
) -> Iterator[tuple[str, TensorChange]]:
    """Changes of blocks as changes of the tensors that they are blocks of."""
    for name, whole in wholes.items():
        if whole.blocks == (name,):
            if name in changes:
                yield name, changes[name]
        elif any(block in changes for block in whole.blocks):
            yield name, TensorChange(whole.dtype, whole.shape, *_of_blocks(whole.blocks, changes, base))


def _of_blocks(
    names: Sequence[str], changes: Mapping[str, TensorChange], base: Mapping[str, Tensor]
) -> tuple[np.ndarray | None, Words]:
    found = [changes.get(name) for name in names]
    if any(change is not None and change.places is None for change in found):
        return None, np.concatenate([*_words_after(names, found, base)])
    sizes = [words_of(base[name]).size for name in names]
    starts = accumulate(sizes, initial=0)
    kept = [(change, start) for change, start in zip(found, starts, strict=False) if change is not None]
    wide = np.uint32 if sum(sizes) <= 2**32 else np.uint64
    places = [np.add(change.places, start, dtype=wide) for change, start in kept if change.places is not None]
    return np.concatenate(places), np.concatenate([change.words for change, _ in kept])


def _words_after(
    names: Sequence[str], changes: Iterable[TensorChange | None], base: Mapping[str, Tensor]
) -> Iterator[Words]:
    for name, change in zip(names, changes, strict=True):
        if change is not None and change.places is None:
            yield change.words
            continue
        words = words_of(base[name])
        if change is not None:
            words = words.copy()
            words[change.places] = change.words
        yield words
