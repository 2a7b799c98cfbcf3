"""Who keeps a copy far away, and how far it got: a small object per replica beside the versions.

In: what a replica serves now. Out: what the publisher looks at before it folds or forgets. Waits for: the store.

<root>/<policy>/replicas/<name>.json   written by that replica alone, again and again

It is a hint and is not signed: a false one costs the publisher a fold, or keeps old bytes.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from contracts.errors import InvalidValue
from contracts.weights.layout import policy_folder

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LONGEST = 64


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as it said of itself. JSON."""

    name: str
    version: int
    history: str | None
    """Digest of the history it knows after that version."""
    at: float
    """UTC epoch seconds."""


class PresenceStore(Protocol):
    """Where they lie: every weight store."""

    def write_presence(self, policy: str, name: str, text: bytes) -> None:
        """Replace the object of a replica. Raises Unavailable."""

    def presences(self, policy: str) -> list[bytes]:
        """All of them. Raises Unavailable."""


def presence_path(policy: str, name: str) -> str:
    """Where it lies below the root of a store. Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"{name!r} cannot name a replica: use a-z, 0-9, '_', '-', up to 63 of them", param="name")
    return f"{policy_folder(policy)}/replicas/{name}.json"


def announce(store: PresenceStore, policy: str, presence: Presence) -> None:
    """Say how far a replica got. Raises InvalidValue, Unavailable."""
    store.write_presence(policy, presence.name, msgspec.json.encode(presence))


def present(store: PresenceStore, policy: str, since: float) -> list[Presence]:
    """Replicas that said something after `since`, UTC epoch seconds, the last first; what cannot be read is left out."""
    found = []
    for text in store.presences(policy):
        try:
            presence = msgspec.json.decode(text, type=Presence)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if presence.at > since:
            found.append(presence)
    return sorted(found, key=lambda presence: presence.at, reverse=True)[:_LONGEST]
