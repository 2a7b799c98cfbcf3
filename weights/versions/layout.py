"""Rules of every weight store: names and paths, what may be published, and the errors. Pure."""

from __future__ import annotations

import re
from typing import Protocol

from blake3 import blake3

from contracts.errors import Conflict, InvalidValue, NotFound, WeightsRefused
from weights.versions.manifest import CHUNK_BYTES, Chunk, Manifest, parse_manifest
from weights.versions.parts import parts_fault

VERSION = re.compile(r"v(\d{6,})")
EDGE = re.compile(r"step\.json|full\.json|fold-\d{6,}\.json")
PRIMARIES = ("step.json", "full.json")
"""Names of the edge that makes a version exist; the second one is primary only if it has no parent."""
_NO_VERSION = 10**18
_MOST_NAMED = 12
_POLICY = re.compile(r"[a-z0-9][a-z0-9._-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = re.compile(r"(e\d{6,18}/)?[0-9a-f]{64}")


class Verifier(Protocol):
    """Decides which versions are accepted: `signing.Keyring`, `vouching.Snapshots`."""

    def verify(self, manifest: Manifest) -> None:
        """Return only if the manifest is accepted. Raises WeightsRefused."""


def policy_folder(policy: str) -> str:
    """The folder of a policy below the root of a store. Raises InvalidValue: the name could lead out of it."""
    if not _POLICY.fullmatch(policy):
        raise InvalidValue(
            f"{policy!r} cannot name a policy: use a-z, 0-9, '.', '_', '-', beginning with a letter or digit",
            param="policy",
        )
    return policy


def version_folder(policy: str, version: int) -> str:
    """The folder of a version below the root of a store. Raises InvalidValue."""
    if not 0 <= version < _NO_VERSION:
        raise InvalidValue(
            f"versions count from 0 and have at most 18 digits, not {str(version)[:30]}", param="version"
        )
    return f"{policy_folder(policy)}/v{version:06d}"


def chunk_folder(policy: str) -> str:
    """The folder of a policy's chunks below the root of a store. Raises InvalidValue."""
    return f"{policy_folder(policy)}/chunks"


def chunk_path(policy: str, name: str) -> str:
    """The path of a chunk below the root of a store, by `Chunk.name`. Raises InvalidValue: the name could lead elsewhere."""
    if not is_chunk(name):
        raise InvalidValue(f"{name[:80]!r} does not name a chunk", param="chunk")
    return f"{chunk_folder(policy)}/{name}"


def is_chunk(name: str) -> bool:
    """True for `<blake3>` and `e<epoch>/<blake3>`; False for leftovers of a killed writer."""
    return _CHUNK.fullmatch(name) is not None


def is_digest(name: str) -> bool:
    """True for a blake3 in hex, such as a root."""
    return _DIGEST.fullmatch(name) is not None


def edge_name(manifest: Manifest) -> str:
    """The file of a manifest in the folder of its version."""
    return f"fold-{manifest.base_version:06d}.json" if manifest.kind == "fold" else f"{manifest.kind}.json"


def edge_path(manifest: Manifest) -> str:
    """The path of a manifest below the root of a store. Raises InvalidValue."""
    return f"{version_folder(manifest.policy, manifest.version)}/{edge_name(manifest)}"


def is_primary(manifest: Manifest) -> bool:
    """True for the edge that makes its version exist."""
    return manifest.kind == "step" or (manifest.kind == "full" and manifest.parent is None)


def lineage_fault(manifest: Manifest) -> str | None:
    """What is wrong with the parent and the base of a manifest; None: nothing. Edges only lead to higher versions."""
    for role, number in (("parent", manifest.parent), ("base", manifest.base_version)):
        if number is not None and not 0 <= number < manifest.version:
            return f"version {manifest.version} names {number} as its {role}, which is not an earlier one"
    return None


def check_offer(manifest: Manifest, keyring: Verifier | None) -> None:
    """Return only if the manifest may be published.

    Raises InvalidValue: an invalid name, a parent or base that is not earlier, or chunks or parts that cannot be stored. WeightsRefused:
    the keyring's, because nobody could read it again.
    """
    version_folder(manifest.policy, manifest.version)
    for fault, param in ((lineage_fault(manifest), "parent"), (_fault(manifest), "manifest")):
        if fault is not None:
            raise InvalidValue(fault, param=param)
    if keyring is not None:
        keyring.verify(manifest)


def parts_of(manifest: Manifest, payload: bytes) -> list[tuple[Chunk, memoryview]]:
    """The manifest's chunks, each with its bytes. Raises WeightsRefused (`payload_size`, `payload_hash`) for other bytes."""
    if len(payload) != manifest.payload_bytes:
        raise WeightsRefused(
            "payload_size",
            f"the payload has {len(payload)} bytes, its manifest says {manifest.payload_bytes}: fetch it again",
        )
    parts, start, view = [], 0, memoryview(payload)
    for chunk in manifest.chunks:
        part = view[start : start + chunk.num_bytes]
        check_chunk(chunk, part)
        parts.append((chunk, part))
        start += chunk.num_bytes
    return parts


def check_chunk(chunk: Chunk, content: bytes | memoryview) -> None:
    """Raise WeightsRefused (`payload_size`, `payload_hash`) for bytes that are not the chunk's."""
    if len(content) != chunk.num_bytes:
        raise WeightsRefused(
            "payload_size",
            f"chunk {chunk.blake3} has {len(content)} bytes, not {chunk.num_bytes}: fetch it again",
            chunk=chunk.blake3,
        )
    if blake3(content).hexdigest() != chunk.blake3:
        raise WeightsRefused(
            "payload_hash",
            f"chunk {chunk.blake3} does not have the bytes of its hash: fetch it again; if that does not help, the store is damaged",
            chunk=chunk.blake3,
        )


def read_edge(text: bytes, policy: str, version: int, name: str, keyring: Verifier | None) -> Manifest:
    """Parse and verify the manifest in a file of a store. Raises WeightsRefused: also `broken_chain`, an ancestor is not earlier."""
    manifest = parse_manifest(text)
    if keyring is not None:
        keyring.verify(manifest)
    if (manifest.policy, manifest.version) != (policy, version):
        raise WeightsRefused(
            "corrupt_manifest",
            f"the folder of {policy!r} version {version} holds {manifest.policy!r} version {manifest.version}",
        )
    if (fault := lineage_fault(manifest)) is not None:
        raise WeightsRefused("broken_chain", fault)
    if edge_name(manifest) != name:
        raise WeightsRefused(
            "corrupt_manifest", f"{name} of {policy!r} version {version} has the content of {edge_name(manifest)}"
        )
    if (fault := _fault(manifest)) is not None:
        raise WeightsRefused("corrupt_manifest", fault)
    return manifest


def disagreement(primary: Manifest, edge: Manifest) -> WeightsRefused | None:
    """The error for an edge that leads to other weights than its version's primary; None: it does not."""
    if (edge.target_root, edge.parent) == (primary.target_root, primary.parent):
        return None
    return WeightsRefused(
        "corrupt_manifest",
        f"{edge_name(edge)} of {edge.policy!r} version {edge.version} leads to other weights than {edge_name(primary)}",
    )


def check_same(stored: Manifest, offered: Manifest) -> None:
    """A trainer that restarts publishes again: bits and parent must be equal, times and counts may differ. Raises Conflict."""
    if (stored.target_root, stored.parent) != (offered.target_root, offered.parent):
        raise Conflict(
            f"policy {offered.policy!r} version {offered.version} is published with other weights: use the next number",
            stored_root=stored.target_root,
            offered_root=offered.target_root,
        )


def no_version(policy: str, version: int, versions: list[int] | None) -> NotFound:
    """The error for a version that does not exist; `versions`: those that do, None if nobody can list them."""
    known = ""
    if versions is not None and len(versions) <= _MOST_NAMED:
        known = f"; it has {versions or 'none'}"
    elif versions is not None:  # a run has thousands
        known = f"; it has {len(versions)} versions up to {versions[-1]}: `millrace policy list` shows them"
    return NotFound(f"policy {policy!r} has no version {version}{known}", policy=policy, version=version)


def _fault(manifest: Manifest) -> str | None:
    """What is invalid in a manifest: it would lead the reader out of the store, or fill its memory. None: nothing."""
    if (manifest.base_version is None) != (manifest.base_root is None):
        return f"version {manifest.version} names a base without its root, or a root without its base"
    for chunk in manifest.chunks:
        if not is_chunk(chunk.name) or not 0 < chunk.num_bytes <= CHUNK_BYTES or chunk.epoch < 0:
            return f"{chunk.name[:80]!r} with {chunk.num_bytes} bytes is not a chunk of at most {CHUNK_BYTES} bytes"
    return parts_fault(manifest)
