"""Snapshots: one signed list of a policy's versions, which expires, at `<root>/<policy>/snapshot.json`. Pure.

A manifest authenticates one edge, the snapshot all of them: edges that it does not list are not read. Its sequence number shows
that an older list was restored, its date that nobody renews it, and a key can retire while the versions that it signed stay
listed. `weights.issuer` issues snapshots, `weights.versions.vouching` checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.versions.layout import edge_name, policy_folder
from weights.versions.manifest import Manifest, parse_struct
from weights.versions.signing import Keyring, Signer, signed_bytes

SCHEMA = 1
VALID_SECONDS = 24 * 3600.0
RENEW_SECONDS = 3600.0
"""The holder of a signing key issues a new one after this time."""
CLOCK_SECONDS = 3 * 3600.0
"""The clocks of two machines may differ by less than this."""
MOST_BYTES = 2**26


class ListedVersion(msgspec.Struct, frozen=True):
    """A version: the root of its weights, and the digest of the manifest of every edge to it, by file name."""

    root: str
    parent: int | None
    edges: dict[str, str]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of a policy. JSON; times UTC epoch seconds."""

    schema: int = SCHEMA
    policy: str
    run: str
    sequence: int
    """Rises with every issue."""
    issued_at: float
    expires_at: float
    versions: dict[int, ListedVersion]
    pointers: dict[str, int]
    """Arm to the epoch of its pointer: a pointer with a lower epoch is stale."""
    key: str | None = None
    signature: str | None = None


def snapshot_path(policy: str) -> str:
    """The path of a snapshot below the root of a store. Raises InvalidValue."""
    return f"{policy_folder(policy)}/snapshot.json"


def digest_of_manifest(manifest: Manifest) -> str:
    """The blake3 of a manifest's fields, signature included, in their order and without whitespace."""
    return blake3(msgspec.json.encode(manifest)).hexdigest()


def list_version(edges: Iterable[Manifest]) -> ListedVersion:
    """The entry of a version, from all its edges."""
    ways = list(edges)
    digests = {edge_name(edge): digest_of_manifest(edge) for edge in sorted(ways, key=edge_name)}
    return ListedVersion(ways[0].target_root, ways[0].parent, digests)


def next_snapshot(
    before: Snapshot | None,
    *,
    policy: str,
    run: str,
    now: float,
    versions: Mapping[int, ListedVersion],
    pointers: Mapping[str, int],
    sequence: int = 0,
) -> Snapshot:
    """The snapshot after `before` and `sequence`, with these versions and pointers added or replaced; not signed yet."""
    return Snapshot(
        policy=policy,
        run=run,
        sequence=max(before.sequence if before else 0, sequence) + 1,
        issued_at=now,
        expires_at=now + VALID_SECONDS,
        versions=dict(sorted({**(before.versions if before else {}), **versions}.items())),
        pointers={**(before.pointers if before else {}), **pointers},
    )


def sign_snapshot(snapshot: Snapshot, signer: Signer) -> bytes:
    """The JSON of a snapshot, signed with this key."""
    return msgspec.json.encode(signer.sign(snapshot, "snapshot"))


def parse_snapshot(text: bytes, policy: str, keyring: Keyring | None) -> Snapshot:
    """Parse the snapshot of a policy; `keyring` None: any signature is accepted. Raises WeightsRefused: also `corrupt_snapshot`."""
    snapshot = parse_struct(text, Snapshot, "corrupt_snapshot", "snapshot")
    if snapshot.schema != SCHEMA:
        raise WeightsRefused(
            "corrupt_snapshot", f"the snapshot has schema {snapshot.schema}, this process reads {SCHEMA}"
        )
    if keyring is not None:
        name = f"the snapshot of {policy!r}"
        keyring.verify_bytes(snapshot.key, snapshot.signature, signed_bytes(snapshot, "snapshot"), name=name)
    if snapshot.policy != policy:
        raise WeightsRefused("corrupt_snapshot", f"the snapshot is of {snapshot.policy!r}, not of {policy!r}")
    return snapshot
