"""Where versions live: the port, and a folder. In: manifests and payloads. Out: verified tensors. Waits for: the disk.

<root>/<policy>/v000012/payload.bin     first
<root>/<policy>/v000012/manifest.json   second; a version exists from the moment this name does
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from blake3 import blake3

from contracts.errors import Unavailable, WeightsRefused
from contracts.settings import Settings
from contracts.weights.codec import CODEC, check_payload, decode, encode
from contracts.weights.files import make_folder_durably, sync_folder, write_durably
from contracts.weights.format import Manifest, Tensors, parse_manifest, root_of
from contracts.weights.layout import (
    VERSION,
    check_lineage,
    check_place,
    check_same,
    no_payload,
    no_version,
    policy_folder,
    version_folder,
)

MAX_CHAIN = 20
"""Versions from a full one to the last delta on it: what a new replica may have to decode."""


class WeightStore(Protocol):
    """Published versions of policies. A version never changes once it is visible."""

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """Make a version durable, bytes first; a second time with the same weights and parent is a no-op.

        Raises:
            Conflict: the version exists with other weights or another parent.
            InvalidValue: a policy name that is none, or a parent that is not earlier.
            Unavailable: the disk is full or the store is away; the version stays invisible.
            WeightsRefused: the payload is not the one the manifest names.
        """

    def manifest(self, policy: str, version: int) -> Manifest:
        """Raises NotFound, which says what exists, and WeightsRefused for a damaged or newer manifest."""

    def payload(self, policy: str, version: int) -> bytes:
        """The payload as stored, not yet checked. Raises NotFound."""

    def versions(self, policy: str) -> list[int]:
        """Durable versions in ascending order; empty for an unknown policy."""

    def chain(self, policy: str, version: int) -> list[Manifest]:
        """From `version` back to the full version it is built on, both included.

        Raises:
            NotFound: a version on the way is gone.
            WeightsRefused: `broken_chain`, a delta does not name an earlier parent.
        """
        manifests = [self.manifest(policy, version)]
        while (last := manifests[-1]).kind == "delta":
            if last.parent is None or last.parent >= last.version:
                raise WeightsRefused("broken_chain", f"version {last.version} names {last.parent} as its parent")
            manifests.append(self.manifest(policy, last.parent))
        return manifests

    def load(self, policy: str, version: int) -> Tensors:
        """All tensors of a version, decoded from its full ancestor and verified at every step."""
        *deltas, full = self.chain(policy, version)
        tensors = decode(None, full, self.payload(policy, full.version))
        return self._decode_onto(tensors, deltas)

    def load_onto(self, policy: str, version: int, base_version: int, base: Tensors) -> Tensors:
        """As `load`, but decode only what lies after `base_version` when that is an ancestor.

        Raises:
            WeightsRefused: as `decode`; `wrong_base` when `base` is not that version's weights.
        """
        manifests = self.chain(policy, version)
        ancestors = [manifest.version for manifest in manifests[1:]]
        if base_version not in ancestors:
            return self.load(policy, version)
        return self._decode_onto(base, manifests[: ancestors.index(base_version) + 1])

    def _decode_onto(self, tensors: Tensors, deltas: list[Manifest]) -> Tensors:
        for manifest in reversed(deltas):
            tensors = decode(tensors, manifest, self.payload(manifest.policy, manifest.version))
        return tensors


class FolderWeightStore(WeightStore):
    """A folder on one disk. Publishers of a policy take turns; readers need no lock."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """See `WeightStore.publish`."""
        check_payload(manifest, payload)
        check_lineage(manifest)
        folder = self._folder(manifest.policy, manifest.version)
        with self._turn(manifest.policy):
            make_folder_durably(folder)
            if (folder / "manifest.json").exists():
                check_same(self.manifest(manifest.policy, manifest.version), manifest)
                # A publisher killed right after its rename has not made the name durable.
                sync_folder(folder)
                return
            try:
                write_durably(folder / "payload.bin", [payload])
                write_durably(folder / "manifest.json", [msgspec.json.format(msgspec.json.encode(manifest))])
            except Unavailable:
                (folder / "manifest.json").unlink(missing_ok=True)
                (folder / "payload.bin").unlink(missing_ok=True)
                raise

    def manifest(self, policy: str, version: int) -> Manifest:
        """See `WeightStore.manifest`."""
        try:
            text = (self._folder(policy, version) / "manifest.json").read_bytes()
        except FileNotFoundError as error:
            raise no_version(policy, version, self.versions(policy)) from error
        return check_place(policy, version, parse_manifest(text))

    def payload(self, policy: str, version: int) -> bytes:
        """See `WeightStore.payload`."""
        self.manifest(policy, version)
        try:
            return (self._folder(policy, version) / "payload.bin").read_bytes()
        except FileNotFoundError as error:
            raise no_payload(policy, version) from error

    def versions(self, policy: str) -> list[int]:
        """See `WeightStore.versions`."""
        manifests = self._policy_folder(policy).glob("v*/manifest.json")
        names = (VERSION.fullmatch(path.parent.name) for path in manifests)
        return sorted(int(name[1]) for name in names if name)

    def _policy_folder(self, policy: str) -> Path:
        return self._root / policy_folder(policy)

    def _folder(self, policy: str, version: int) -> Path:
        return self._root / version_folder(policy, version)

    @contextmanager
    def _turn(self, policy: str) -> Iterator[None]:
        folder = self._policy_folder(policy)
        make_folder_durably(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


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
) -> Manifest:
    """Publish `target` as a change of `base`, which must be the parent's weights, and return what is now stored.

    In full without a base or a parent, and whenever the chain since the last full version reaches `MAX_CHAIN`.

    Raises:
        WeightsRefused: `wrong_base`, the base is not what was published as the parent.
        Conflict, Unavailable, NotFound: see `WeightStore`.
    """
    base_root = _base_root(store, policy, parent, base)
    encoded = encode(base if base_root else None, target)
    manifest = Manifest(
        policy=policy,
        run=run,
        version=version,
        parent=parent,
        kind="delta" if base_root else "full",
        base_root=base_root,
        target_root=encoded.target_root,
        codec=CODEC,
        tensors=encoded.entries,
        payload_blake3=blake3(encoded.payload).hexdigest(),
        payload_bytes=len(encoded.payload),
        full_bytes=sum(tensor.data.size for tensor in target.values()),
        num_changed=encoded.num_changed,
        num_weights=sum(math.prod(tensor.shape) for tensor in target.values()),
        created_at=created_at,
        step=step,
        epoch=epoch,
        num_samples=num_samples,
    )
    store.publish(manifest, encoded.payload)
    return store.manifest(policy, version)


def _base_root(store: WeightStore, policy: str, parent: int | None, base: Tensors | None) -> str | None:
    """The root a delta starts from; None when the version has to be full."""
    if base is None or parent is None:
        return None
    manifests = store.chain(policy, parent)
    root = root_of(base)
    if root != manifests[0].target_root:
        raise WeightsRefused("wrong_base", f"the base given is not what was published as version {parent}")
    return root if len(manifests) < MAX_CHAIN else None


def open_weight_store(settings: Settings) -> WeightStore:
    """The store of a home: a bucket if `weights_url` names one, else a folder. Nothing is asked yet.

    Raises:
        InvalidSettings: `weights_url` or an AWS_* variable cannot be used.
    """
    if settings.weights_url is None:
        return FolderWeightStore(settings.weights)
    from contracts.weights.object_store import open_objects  # noqa: PLC0415 embedded need not load the client

    return open_objects(settings.weights_url)
