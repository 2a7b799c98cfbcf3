"""What must hold for the parts of a manifest before anything of it is read. Pure."""

from __future__ import annotations

import msgspec

from contracts.errors import WeightsRefused
from weights.blocks import wholes_of
from weights.tensors import root_of_leaves
from weights.versions.manifest import SCHEMA, Manifest


def parts_fault(manifest: Manifest) -> str | None:
    """What is wrong with the parts of a manifest: they overlap, leave rows out, or do not add up to its root. None: nothing."""
    if (manifest.schema == SCHEMA) != (manifest.parts is not msgspec.UNSET):
        return f"schema {manifest.schema} has {'no' if manifest.schema == SCHEMA else 'no such thing as'} parts"
    if manifest.parts is msgspec.UNSET:
        return None
    counts = [part.num_chunks for part in manifest.parts]
    if min(counts, default=0) < 1 or sum(counts) != len(manifest.chunks):
        return f"its parts have {sum(counts)} chunks, and there are {len(manifest.chunks)}"
    try:
        wholes_of(leaf.entry for leaf in manifest.leaves)
    except WeightsRefused as error:
        return error.message
    root = root_of_leaves(msgspec.structs.astuple(leaf) for leaf in manifest.leaves)
    return None if root == manifest.target_root else f"its parts add up to {root}, not to {manifest.target_root}"
