"""Presence of replicas: each writes a small object beside the versions with the version that it has.

In: the version that a replica serves now. Out: the replicas that a publisher folds for and keeps chunks for. Waits for: the
store.

<root>/<policy>/replicas/<key id>.json   signed with the replica's own key; <name>.json, if the publisher trusts no replica's key

A publisher that trusts replicas' keys (`<home>/keys/replicas/<key id>.pub`) reads only their objects, by name. Another one takes
the first `_MOST_UNSIGNED` objects as hints: it publishes folds for them, but they do not keep chunks from being pruned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from contracts.errors import InvalidValue, WeightsRefused
from weights.versions.layout import policy_folder
from weights.versions.manifest import parse_struct
from weights.versions.signing import Keyring, Signer, signed_bytes

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_MOST_BYTES = 2**12
_MOST_UNSIGNED = 64
_EARLY_SECONDS = 3 * 3600.0
"""How far ahead a replica's clock may be."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's own report. JSON."""

    name: str
    version: int
    history: str | None
    """Digest of its history after that version."""
    at: float
    """UTC epoch seconds."""
    key: str | None = None
    signature: str | None = None
    """Ed25519 over everything but itself and the policy, hex."""


class PresentReplicas(NamedTuple):
    """Replicas that reported recently, latest first."""

    replicas: list[Presence]
    is_signed: bool
    """True if each report is signed by a trusted key: only then do they keep chunks from being pruned."""


class PresenceStore(Protocol):
    """Where reports are stored: every weight store."""

    def write_small(self, path: str, text: bytes) -> None:
        """Replace an object. Raises Unavailable."""

    def read_small(self, path: str, most: int) -> bytes | None:
        """An object. Raises WeightsRefused, Unavailable."""

    def list_small(self, folder: str, most: int) -> list[str]:
        """Names in a folder. Raises Unavailable."""


def presence_path(policy: str, name: str) -> str:
    """The path of a report below the root of a store. Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"{name!r} cannot name a replica: use a-z, 0-9, '_', '-', up to 63 of them", param="name")
    return f"{policy_folder(policy)}/replicas/{name}.json"


def announce(store: PresenceStore, policy: str, presence: Presence, signer: Signer | None = None) -> None:
    """Write a replica's report, signed if it has a key. Raises InvalidValue, Unavailable."""
    path = presence_path(policy, presence.name)
    if signer is not None:
        path, presence = presence_path(policy, signer.key_id), signer.sign(presence, _kind(policy))
    store.write_small(path, msgspec.json.encode(presence))


def present_replicas(
    store: PresenceStore,
    policy: str,
    *,
    since: float,
    now: float,
    replicas: Keyring | None = None,
    on_junk: Callable[[str, WeightsRefused], None] = lambda _place, _reason: None,
) -> PresentReplicas:
    """Replicas that reported after `since` (UTC epoch seconds, as `now`).

    `replicas`: keys of trusted replicas; None or empty: every report is a hint. `on_junk`: called with path and reason for
    every object that is left out because it cannot be read or is not trusted. Raises Unavailable: the store is away.
    """
    trusted = replicas if replicas is not None and replicas.key_ids else None
    if trusted is not None:
        names = list(trusted.key_ids)
    else:
        files = store.list_small(f"{policy_folder(policy)}/replicas", _MOST_UNSIGNED)
        names = [file.removesuffix(".json") for file in files if file.endswith(".json")]
    found = []
    for name in names:
        if not _NAME.fullmatch(name):
            continue
        path = presence_path(policy, name)
        try:
            if (text := store.read_small(path, _MOST_BYTES)) is not None:
                found.append(_believed(text, policy, name, trusted))
        except WeightsRefused as error:
            on_junk(path, error)
    recent = [presence for presence in found if since < presence.at < now + _EARLY_SECONDS]
    return PresentReplicas(sorted(recent, key=lambda presence: presence.at, reverse=True), trusted is not None)


def _believed(text: bytes, policy: str, name: str, trusted: Keyring | None) -> Presence:
    presence = parse_struct(text, Presence, "corrupt_presence", "presence")
    if trusted is not None:
        what = f"the presence of {presence.name[:80]!r}"
        trusted.verify_bytes(presence.key, presence.signature, signed_bytes(presence, _kind(policy)), name=what)
        if presence.key != name:
            raise WeightsRefused("corrupt_presence", f"{what} is in the place of the key {name}")
    return presence


def _kind(policy: str) -> str:
    """A presence does not name its policy, but its signature covers it."""
    return f"presence\n{policy}"
