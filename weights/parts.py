"""Publishes a version in parts: each process encodes and stores its own rows, and one process merges and signs.

    plan_parts ──▶ publish_part, in every process ──facts──▶ merge_parts ──▶ one edge in the store

In: the blocks of rows of each process, in the base and in the target. Out: chunks that nobody sees, then the manifest that names them. Waits
for: the store. A process that dies before the merge leaves chunks that pruning removes. Every step can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

import msgspec

from contracts.errors import WeightsRefused
from weights.blocks import Entry, cut
from weights.codec.delta import encode
from weights.codec.history import History, Moves
from weights.cores import each
from weights.stores.store import WeightStore
from weights.tensors import ELEMENT_BYTES, Tensor, digest_of, root_of_leaves
from weights.versions.manifest import NO_HISTORY, SCHEMA, Leaf, Manifest, StoredPart
from weights.versions.signing import Signer

_OF_THE_EDGE = ("policy", "run", "version", "parent", "base_version", "base_root", "codec", "history", "step", "epoch")


def plan_parts(layout: Iterable[Entry], num_parts: int) -> list[list[Entry]]:
    """The blocks that each process publishes: about equally many bytes, the same at every version. Some may have none."""
    blocks = [block for entry in sorted(layout) for block in cut(entry)]
    sizes = [_size(block) for block in blocks]
    total = max(sum(sizes), 1)
    middles = (end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True))
    parts: list[list[Entry]] = [[] for _ in range(num_parts)]
    for block, middle in zip(blocks, middles, strict=True):
        parts[min(int(middle * num_parts / total), num_parts - 1)].append(block)
    return parts


def publish_part(
    store: WeightStore,
    edge: Manifest,
    base: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    history: History | None = None,
) -> tuple[Manifest, dict[str, Moves]]:
    """Encode and store the part of an edge that these blocks are; returns the edge with this part alone, and its moves.

    Args:
        store: takes the chunks.
        edge: of `weights.publish.edges_to`; the same in every process.
        base: the blocks that the parent has of this part; not looked at if the edge is a full copy.
        target: the blocks of this part, by `plan_parts`.
        history: of these blocks, after the parent; only read.

    Raises WeightsRefused: `wrong_base`, the base is not what was published; `wrong_history`. Others as `WeightStore.put_part`.
    """
    is_full, past = edge.base_version is None, history_of(edge, history)
    if not is_full:
        _check_base(store, edge, base)
    encoded = encode(None if is_full else base, target, past)
    part = msgspec.structs.replace(
        edge,
        schema=SCHEMA,
        target_root=encoded.target_root,
        chunks=tuple(msgspec.structs.replace(chunk, epoch=edge.epoch) for chunk in encoded.chunks),
        parts=(StoredPart(len(encoded.chunks), tuple(Leaf(*leaf) for leaf in encoded.leaves)),),
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
    )
    store.put_part(part, encoded.payload)
    return part, encoded.moves


def merge_parts(
    store: WeightStore,
    edge: Manifest,
    layout: Iterable[Entry],
    parts: Sequence[Manifest],
    signer: Signer | None = None,
) -> Manifest:
    """Publish the edge that these parts are, and return the one that is now stored.

    `edge`: as `publish_part` had it. `layout`: all tensors of the version. `parts`: what `publish_part` returned in each process.

    Raises WeightsRefused: `wrong_part`, it is of another edge, such as of another epoch or parent, or holds rows that the version does not
    have; `parts_overlap`; `parts_gap`. Others as `WeightStore.publish`; nothing was changed.
    """
    for number, part in enumerate(parts):
        for field in _OF_THE_EDGE:
            if (found := getattr(part, field)) != (wanted := getattr(edge, field)):
                said = f"part {number} of version {edge.version} is of {field} {found!r}, the version is of {wanted!r}"
                raise WeightsRefused("wrong_part", said)
    _check_whole(layout, parts)
    root = root_of_leaves(msgspec.structs.astuple(leaf) for part in parts for leaf in part.leaves)
    manifest = msgspec.structs.replace(
        edge,
        schema=SCHEMA,
        target_root=root,
        history_after=history_after(edge, root),
        chunks=tuple(chunk for part in parts for chunk in part.chunks),
        parts=tuple(one for part in parts for one in part.parts or ()),
        full_bytes=sum(part.full_bytes for part in parts),
        num_changed=sum(part.num_changed for part in parts),
        num_weights=sum(part.num_weights for part in parts),
    )
    store.publish(manifest if signer is None else signer.sign(manifest))
    return store.edge(manifest)


def history_of(edge: Manifest, history: History | None) -> History | None:
    """What an edge is coded with: `history`, or nothing. Raises WeightsRefused: `wrong_history`."""
    if edge.history in {None, NO_HISTORY}:
        return None
    if history is None or history.digest != edge.history:
        raise WeightsRefused("wrong_history", f"the edge is coded with the history {edge.history}, which is not here")
    return history


def history_after(edge: Manifest, target_root: str) -> str | None:
    """The digest after an edge that leads to this root."""
    if edge.history_after is not None or edge.history is None or edge.kind != "step":
        return edge.history_after
    return History(edge.history).next_digest(target_root)


def _check_whole(layout: Iterable[Entry], parts: Sequence[Manifest]) -> None:
    wanted = {block[0]: block for entry in layout for block in cut(entry)}
    holders: dict[str, int] = {}
    for number, part in enumerate(parts):
        for leaf in part.leaves:
            if (other := holders.setdefault(leaf.name, number)) != number:
                raise WeightsRefused("parts_overlap", f"parts {other} and {number} both hold {leaf.name!r}")
            if wanted.get(leaf.name) != leaf.entry:
                said = f"part {number} holds {leaf.name!r} as {leaf.dtype} of shape {leaf.shape}"
                raise WeightsRefused("wrong_part", f"{said}, which the version has not")
    if missing := sorted(wanted.keys() - holders.keys()):
        raise WeightsRefused("parts_gap", f"no part holds {missing[0]!r}, nor {len(missing) - 1} others")


def _check_base(store: WeightStore, edge: Manifest, base: Mapping[str, Tensor]) -> None:
    """Compare the blocks of the base with the leaves of the parent, if it was published in parts and can be read."""
    published: dict[str, Leaf] = {}
    with suppress(WeightsRefused):
        published = {leaf.name: leaf for leaf in store.manifest(edge.policy, edge.base_version or 0).leaves}
    names = [*base] if published else []
    digests = each(lambda name: digest_of(base[name]), names, [base[name].data.size for name in names])
    for name, digest in zip(names, digests, strict=True):
        if name not in published or published[name].digest != digest:
            raise WeightsRefused("wrong_base", f"{name!r} is not what was published as version {edge.base_version}")


def _size(entry: Entry) -> int:
    return ELEMENT_BYTES.get(entry[1], 1) * math.prod(entry[2])
