"""What every weight store agrees on: names of versions, what may be published, and how failures are worded. Pure."""

from __future__ import annotations

import re

from contracts.errors import Conflict, InvalidValue, NotFound, WeightsRefused
from contracts.weights.format import Manifest

VERSION = re.compile(r"v(\d{6,})")
_POLICY = re.compile(r"[a-z0-9][a-z0-9._-]*")


def policy_folder(policy: str) -> str:
    """The folder of a policy below the root of a store.

    Raises:
        InvalidValue: the name could lead out of it.
    """
    if not _POLICY.fullmatch(policy):
        raise InvalidValue(
            f"{policy!r} cannot name a policy: use a-z, 0-9, '.', '_', '-', beginning with a letter or digit",
            param="policy",
        )
    return policy


def version_folder(policy: str, version: int) -> str:
    """The folder of a version below the root of a store. Raises InvalidValue."""
    if version < 0:
        raise InvalidValue(f"versions count from 0, not {version}", param="version")
    return f"{policy_folder(policy)}/v{version:06d}"


def check_lineage(manifest: Manifest) -> None:
    """Refuse a parent that is not earlier."""
    if manifest.parent is not None and manifest.parent >= manifest.version:
        raise InvalidValue(f"version {manifest.version} cannot descend from {manifest.parent}", param="parent")


def check_same(stored: Manifest, offered: Manifest) -> None:
    """A trainer that restarts publishes again: the bits and the parent must agree, times and counts may not."""
    if (stored.target_root, stored.parent) != (offered.target_root, offered.parent):
        raise Conflict(
            f"policy {offered.policy!r} version {offered.version} is published with other weights: use the next number",
            stored_root=stored.target_root,
            offered_root=offered.target_root,
        )


def check_place(policy: str, version: int, manifest: Manifest) -> Manifest:
    """The manifest, if it is the one of the folder it was found in. Raises WeightsRefused."""
    if (manifest.policy, manifest.version) != (policy, version):
        raise WeightsRefused(
            "corrupt_manifest",
            f"the folder of {policy!r} version {version} holds {manifest.policy!r} version {manifest.version}",
        )
    return manifest


def no_version(policy: str, version: int, versions: list[int]) -> NotFound:
    """What to say of a version that does not exist."""
    return NotFound(
        f"policy {policy!r} has no version {version}; it has {versions or 'none'}", policy=policy, version=version
    )


def no_payload(policy: str, version: int) -> NotFound:
    """What to say of a version whose bytes are gone."""
    return NotFound(f"the payload of policy {policy!r} version {version} was removed from the store")
