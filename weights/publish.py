"""Publishes versions. In: the bits of a version and of its parent. Out: edges in the store. Waits for: the store.

A version's step is published first: with it the version exists, and belongs to the first publisher. At an anchor the full copy
follows. New replicas lose nothing in between: they start from the anchor before. If the publisher dies there, the next version
becomes an anchor.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from contracts.errors import InvalidValue, WeightsRefused
from weights.codec.delta import CODEC, Encoded, encode
from weights.codec.history import History
from weights.reader import advance_history
from weights.stores.store import WeightStore
from weights.tensors import Tensors, root_of
from weights.versions.manifest import NO_HISTORY, OLDEST_SCHEMA, SCHEMA, Manifest
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
    base: Tensors | None,
    target: Tensors,
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
    not follow. `parent_root` is the parent's root, if the caller knows it: its manifest may then be unreadable.

    Raises WeightsRefused: `wrong_base`, the base is not what was published as the parent. InvalidValue: the parent is
    not earlier. Conflict, Unavailable, NotFound: see `WeightStore`; the history is as it was.
    """
    about = Manifest(
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
    if parent is None:
        _publish(store, about, encode(None, target), signer)
        if history is not None:
            history.reset()
        return store.manifest(policy, version)
    return _publish_step(
        store, about, parent, base=base, target=target, history=history, signer=signer, parent_root=parent_root
    )


def publish_fold(
    store: WeightStore,
    *,
    policy: str,
    base_version: int,
    base: Tensors,
    version: int,
    target: Tensors,
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
    about = msgspec.structs.replace(
        primary,
        base_version=base_version,
        base_root=_checked_root(store, policy, base_version, base),
        history=None if history is None else history.digest,
        history_after=NO_HISTORY if anchor else None,
        codec=CODEC,
        epoch=primary.epoch if epoch is None else epoch,
        key=None,
        signature=None,
    )
    _publish(store, about, encode(base, target, history), signer)
    return next(edge for edge in store.edges(policy, version) if edge.base_version == base_version)


def _publish_step(
    store: WeightStore,
    about: Manifest,
    parent: int,
    *,
    base: Tensors | None,
    target: Tensors,
    history: History | None,
    signer: Signer | None,
    parent_root: str | None,
) -> Manifest:
    base = store.load(about.policy, parent) if base is None else base
    if base:
        base_root = _checked_root(store, about.policy, parent, base, known=parent_root)
    else:
        base_root = store.manifest(about.policy, parent).target_root
    past = _usable(store, about.policy, parent, history)
    is_anchor = not base or _versions_since_full(store, about.policy, parent) + 1 >= ANCHOR_EVERY
    encoded = encode(base, target, past)
    after = None if past is None else past.next_digest(encoded.target_root)
    step = msgspec.structs.replace(
        about,
        base_version=parent,
        base_root=base_root,
        history=None if past is None else past.digest,
        history_after=NO_HISTORY if is_anchor else after,
    )
    _publish(store, step, encoded, signer)
    if is_anchor:
        _publish(store, about, encode(None, target), signer)
    stored = store.manifest(about.policy, about.version)
    if history is not None:
        # The stored edge may be from before a restart. The moves are those that receivers see only if the payload is the same.
        if [chunk.blake3 for chunk in stored.chunks] == [chunk.blake3 for chunk in encoded.chunks]:
            advance_history(history, stored, encoded.moves)
        else:
            history.reset()
    return stored


def _publish(store: WeightStore, about: Manifest, encoded: Encoded, signer: Signer | None) -> None:
    manifest = msgspec.structs.replace(
        about,
        schema=SCHEMA if about.epoch else OLDEST_SCHEMA,
        target_root=encoded.target_root,
        chunks=tuple(msgspec.structs.replace(chunk, epoch=about.epoch) for chunk in encoded.chunks),
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
    )
    if signer is not None:
        manifest = signer.sign(manifest)
    store.publish(manifest, encoded.payload)


def _checked_root(store: WeightStore, policy: str, version: int, base: Tensors, known: str | None = None) -> str:
    """The root of the base, checked; `known`: the expected root if the manifest of the version cannot be read any more."""
    root, published = root_of(base), known
    with suppress(WeightsRefused):
        published = store.manifest(policy, version).target_root
    if root != published:
        raise WeightsRefused("wrong_base", f"the base given is not what was published as version {version}")
    return root


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
