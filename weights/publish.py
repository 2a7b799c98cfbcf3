"""Publishes versions. In: the bits of a version and of its parent. Out: edges in the store. Waits for: the store.

A version's step is published first: with it the version exists, and belongs to the first publisher. At an anchor the full copy
follows. New replicas lose nothing in between: they start from the anchor before. If the publisher dies there, the next version
becomes an anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from contracts.errors import InvalidValue, WeightsRefused
from weights.blocks import blocks_of, root_as
from weights.codec.container import layout_of
from weights.codec.delta import CODEC, encode
from weights.codec.history import History, Moves
from weights.parts import history_after, history_of, merge_parts, publish_part
from weights.reader import advance_history
from weights.stores.store import WeightStore
from weights.tensors import Tensor
from weights.versions.manifest import EPOCH_SCHEMA, NO_HISTORY, OLDEST_SCHEMA, Manifest
from weights.versions.signing import Signer

ANCHOR_EVERY = 25
"""Versions of a lineage from one full copy to the next: the most that a new replica has to decode."""


def publish_version(
    store: WeightStore,
    *,
    policy: str,
    run: str,
    version: int,
    parent: int | None,
    base: Mapping[str, Tensor] | None,
    target: Mapping[str, Tensor],
    step: int,
    epoch: int,
    num_samples: int,
    created_at: float,
    history: History | None = None,
    signer: Signer | None = None,
    parent_root: str | None = None,
) -> Manifest:
    """Publish `target` as a change of `base`, the parent's weights, and return the primary edge that is now stored.

    The chunks are stored under `epoch`, that of the trainer; 0: without an epoch. The version is also published in full if it has no
    parent, or if the lineage's last full copy is `ANCHOR_EVERY` versions back. Without `base` the parent is loaded from the store. An
    empty `base`: the version has nothing in common with its parent, as the first adapter on a base; it is published in full too.

    `history` is the history after the parent. It is advanced past this version, in place, once the version is durable. It is
    reset first if it is not the parent's, or if a fold leads to the parent: a replica that took the fold has no history and could
    not follow. `parent_root` is the parent's root, if the caller knows it: its manifest may then be unreadable. After a version of parts
    (`weights.parts`) this one is of one part.

    Raises WeightsRefused: `wrong_base`, the base is not what was published as the parent. InvalidValue: the parent is
    not earlier. Conflict, Unavailable, NotFound: see `WeightStore`; the history is as it was.
    """
    about = described(
        policy=policy, run=run, version=version, parent=parent, step=step, epoch=epoch, num_samples=num_samples, created_at=created_at
    )  # fmt: skip
    if parent is None:
        stored, _ = _publish(store, about, {}, target, history=None, signer=signer)
        if history is not None:
            history.reset()
        return stored
    base = store.load(policy, parent) if base is None else base
    first, *anchors = edges_to(store, about, history, has_base=bool(base), parent_root=parent_root)
    in_parts = _is_in_parts(store, policy, parent)
    if base and not in_parts:
        _check_root(first, base)
    stored, moves = _publish(store, first, base, target, history=history, signer=signer, in_parts=in_parts)
    for anchor in anchors:
        _publish(store, anchor, {}, target, history=None, signer=signer, in_parts=in_parts)
    if history is not None:
        # The stored edge may be from before a restart. The moves are those that receivers see only if the payload is the same.
        if moves is None:
            history.reset()
        else:
            advance_history(history, stored, moves)
    return stored


def described(
    *,
    policy: str,
    run: str,
    version: int,
    parent: int | None,
    step: int,
    epoch: int,
    num_samples: int,
    created_at: float,
) -> Manifest:
    """A version as a full copy, without its payload: what its edges are made from."""
    return Manifest(
        policy=policy,
        run=run,
        version=version,
        parent=parent,
        base_version=None,
        base_root=None,
        target_root="",
        codec=CODEC,
        history=None,
        history_after=NO_HISTORY,
        chunks=(),
        full_bytes=0,
        num_changed=0,
        num_weights=0,
        created_at=created_at,
        step=step,
        epoch=epoch,
        num_samples=num_samples,
    )


def edges_to(
    store: WeightStore, about: Manifest, history: History | None, *, has_base: bool, parent_root: str | None = None
) -> list[Manifest]:
    """The edges that a version with a parent is published by: its step, and a full copy if it is an anchor. Without payloads.

    `about`: of `described`. `history`: after the parent. `has_base`: it has something in common with its parent. Raises as `publish_version`.
    """
    parent = about.parent
    if parent is None:
        return [about]
    past = _usable(store, about.policy, parent, history)
    is_anchor = not has_base or _versions_since_full(store, about.policy, parent) + 1 >= ANCHOR_EVERY
    step = msgspec.structs.replace(
        about,
        base_version=parent,
        base_root=_published_root(store, about.policy, parent, parent_root),
        history=None if past is None else past.digest,
        history_after=NO_HISTORY if is_anchor else None,
    )
    return [step, about] if is_anchor else [step]


def publish_fold(
    store: WeightStore,
    *,
    policy: str,
    base_version: int,
    base: Mapping[str, Tensor],
    version: int,
    target: Mapping[str, Tensor],
    history: History | None = None,
    epoch: int | None = None,
    signer: Signer | None = None,
) -> Manifest:
    """Publish one edge from `base_version` to `version`, which exists; returns the stored edge. `epoch` None: that of the version.

    `history` is the history after `base_version`, if the replicas that will take the fold have it; it is only read. After it they have
    none, unless `version` is an anchor. So fold to the newest version before the next is published, which then begins a new history.
    Raises InvalidValue: the base is not earlier, or is the parent; WeightsRefused: `wrong_base`; Conflict: `target` is not what was
    published as `version`; NotFound, Unavailable.
    """
    primary = store.manifest(policy, version)
    if base_version == primary.parent:
        raise InvalidValue(
            f"version {base_version} is the parent of {version}: its step is there", param="base_version"
        )
    anchor = primary.history_after == NO_HISTORY
    fold = msgspec.structs.replace(
        primary,
        base_version=base_version,
        base_root=_published_root(store, policy, base_version),
        history=None if history is None else history.digest,
        history_after=NO_HISTORY if anchor else None,
        codec=CODEC,
        epoch=primary.epoch if epoch is None else epoch,
        key=None,
        signature=None,
    )
    in_parts = primary.parts is not msgspec.UNSET
    if not in_parts:
        _check_root(fold, base)
    return _publish(store, fold, base, target, history=history, signer=signer, in_parts=in_parts)[0]


def _publish(
    store: WeightStore,
    edge: Manifest,
    base: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    *,
    history: History | None,
    signer: Signer | None,
    in_parts: bool = False,
) -> tuple[Manifest, dict[str, Moves] | None]:
    """Encode and publish an edge; returns the stored one, and the moves, if it has this payload."""
    if in_parts:
        part, moves = publish_part(store, edge, blocks_of(base), blocks_of(target), history)
        stored, chunks = merge_parts(store, edge, layout_of(target), [part], signer), part.chunks
        return stored, moves if stored.chunks == chunks else None
    encoded = encode(None if edge.base_version is None else base, target, history_of(edge, history))
    manifest = msgspec.structs.replace(
        edge,
        schema=EPOCH_SCHEMA if edge.epoch else OLDEST_SCHEMA,
        target_root=encoded.target_root,
        history_after=history_after(edge, encoded.target_root),
        chunks=tuple(msgspec.structs.replace(chunk, epoch=edge.epoch) for chunk in encoded.chunks),
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
    )
    store.publish(manifest if signer is None else signer.sign(manifest), encoded.payload)
    stored = store.edge(manifest)
    is_same = [chunk.blake3 for chunk in stored.chunks] == [chunk.blake3 for chunk in encoded.chunks]
    return stored, encoded.moves if is_same else None


def _published_root(store: WeightStore, policy: str, version: int, known: str | None = None) -> str:
    """`known`: the root if the manifest of the version cannot be read any more."""
    try:
        return store.manifest(policy, version).target_root
    except WeightsRefused:
        if known is None:
            raise
        return known


def _check_root(edge: Manifest, base: Mapping[str, Tensor]) -> None:
    if root_as(base, edge.base_root) != edge.base_root:
        said = f"the base given is not what was published as version {edge.base_version}"
        raise WeightsRefused("wrong_base", said)


def _is_in_parts(store: WeightStore, policy: str, version: int) -> bool:
    """A lineage that several processes published stays one of parts: so the root of a version does not depend on their number."""
    with suppress(WeightsRefused):
        return store.manifest(policy, version).parts is not msgspec.UNSET
    return False


def _usable(store: WeightStore, policy: str, parent: int, history: History | None) -> History | None:
    """The history, or an empty one if some replica could not have it."""
    if history is None:
        return None
    try:
        primary, *others = store.edges(policy, parent)
    except WeightsRefused:
        return History()
    is_known = history.digest == primary.history_after and all(edge.kind != "fold" for edge in others)
    return history if is_known else History()


def _versions_since_full(store: WeightStore, policy: str, version: int) -> int:
    at: int | None = version
    for distance in range(ANCHOR_EVERY):
        if at is None:
            break
        try:
            manifest = store.manifest(policy, at)
        except WeightsRefused:
            return ANCHOR_EVERY
        # If the publisher died before the full copy, the version does not count as an anchor.
        if manifest.history_after == NO_HISTORY and any(edge.kind == "full" for edge in store.edges(policy, at)):
            return distance
        at = manifest.parent
    return ANCHOR_EVERY
