"""Pointers: a signed object beside the versions says which version serves, for readers without database access.

In: moves of an arm. Out: the version to follow. Waits for: the store.

<root>/<policy>/pointers/live.json   a copy of the assignment, moved by compare-and-set after it; its epoch only rises

An attacker who can write to the store can restore an older pointer with its valid signature, so a reader remembers on disk the
highest epoch that it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from contracts.errors import InvalidValue, StaleWrite, WeightsRefused
from weights.files import write_durably
from weights.versions.layout import policy_folder
from weights.versions.manifest import parse_struct
from weights.versions.signing import Keyring, Signer, signed_bytes

SCHEMA = 1
MOST_BYTES = 2**16
"""The longest pointer; a longer object is refused."""
_ARM = re.compile(r"[a-z][a-z0-9_-]*")


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The version of an arm. JSON."""

    schema: int = SCHEMA
    policy: str
    run: str
    arm: str
    version: int
    epoch: int
    """Rises with every move."""
    key: str | None = None
    signature: str | None = None


class PointerSource(Protocol):
    """Where pointers are read: every weight store."""

    def read_small(self, path: str, most: int) -> bytes | None:
        """A small object; None: there is none. Raises WeightsRefused, Unavailable."""


class PointerStore(PointerSource, Protocol):
    """Where pointers are moved: every weight store that can be written."""

    def update_small(self, path: str, most: int, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a small object by what `change` makes of it; False: somebody else was faster. Raises Unavailable."""


def pointer_path(policy: str, arm: str) -> str:
    """Where a pointer lies below the root of a store. Raises InvalidValue."""
    if not _ARM.fullmatch(arm):
        raise InvalidValue(f"{arm!r} cannot name an arm: use a-z, 0-9, '_', '-'", param="arm")
    return f"{policy_folder(policy)}/pointers/{arm}.json"


def move_pointer(store: PointerStore, wanted: Pointer, signer: Signer | None, keyring: Keyring | None) -> None:
    """Make `wanted` the pointer of its arm; a second time it is a no-op. A stored pointer that does not verify is replaced.

    Raises StaleWrite: the pointer has this epoch or a higher one already, or somebody else moves it at this moment.
    Unavailable: the disk is full or the store is away; it is safe to try again.
    """
    policy, arm = wanted.policy, wanted.arm
    signed = signer.sign(wanted, "pointer") if signer else msgspec.structs.replace(wanted, key=None, signature=None)

    def change(stored: bytes | None) -> bytes | None:
        found = None
        with suppress(WeightsRefused):
            found = None if stored is None else parse_pointer(stored, policy, arm, keyring)
        if found is not None and found.epoch >= wanted.epoch:
            if _is_same(found, wanted):
                return None
            raise StaleWrite(
                f"{policy}/{arm} points at version {found.version} since epoch {found.epoch}: epoch {wanted.epoch} comes "
                "too late",
                policy=policy,
                arm=arm,
            )
        return msgspec.json.encode(signed)

    if not store.update_small(pointer_path(policy, arm), MOST_BYTES, change):
        raise StaleWrite(
            f"the pointer {policy}/{arm} was moved by somebody else; read it again", policy=policy, arm=arm
        )


def read_pointer(store: PointerSource, policy: str, arm: str, keyring: Keyring | None) -> Pointer | None:
    """The pointer of an arm; None: there is none. Raises as `parse_pointer`, and Unavailable: the store is away."""
    text = _read(store, policy, arm)
    return None if text is None else parse_pointer(text, policy, arm, keyring)


def parse_pointer(text: bytes, policy: str, arm: str, keyring: Keyring | None) -> Pointer:
    """Parse the pointer of an arm; `keyring` None: any signature is accepted. Raises WeightsRefused: also `wrong_pointer`."""
    pointer = parse_struct(text, Pointer, "corrupt_pointer", "pointer")
    if pointer.schema != SCHEMA:
        raise WeightsRefused("corrupt_pointer", f"the pointer has schema {pointer.schema}, this process reads {SCHEMA}")
    if keyring is not None:
        keyring.verify_bytes(
            pointer.key, pointer.signature, signed_bytes(pointer, "pointer"), name=f"the pointer {policy}/{arm}"
        )
    if (pointer.policy, pointer.arm) != (policy, arm):
        raise WeightsRefused(
            "wrong_pointer", f"the store has {pointer.policy}/{pointer.arm} in the place of {policy}/{arm}"
        )
    return pointer


class PointerReader:
    """Follows one arm; `memory` is a file that only this reader uses."""

    def __init__(self, store: PointerSource, policy: str, arm: str, keyring: Keyring | None, memory: Path) -> None:
        self._store, self.policy, self._arm = store, policy, arm
        self._keyring, self._memory = keyring, memory

    def look(self) -> Pointer | None:
        """The current pointer; None: there is none yet. Raises as `parse_pointer`; WeightsRefused: `stale_pointer`; Unavailable."""
        if (text := _read(self._store, self.policy, self._arm)) is None:
            return None
        pointer, last = parse_pointer(text, self.policy, self._arm, self._keyring), self._last()
        if last is None or pointer.epoch > last.epoch:
            write_durably(self._memory, [text])
        elif not _is_same(pointer, last):
            raise WeightsRefused(
                "stale_pointer",
                f"the store points {self.policy}/{self._arm} at version {pointer.version} of epoch {pointer.epoch}, but "
                f"version {last.version} of epoch {last.epoch} was seen before: somebody restored an old pointer",
                epoch=pointer.epoch,
                seen=last.epoch,
            )
        return pointer

    def _last(self) -> Pointer | None:
        try:
            # No keyring: its key may have been retired since, and the file is our own.
            return parse_pointer(self._memory.read_bytes(), self.policy, self._arm, None)
        except FileNotFoundError:
            return None
        except WeightsRefused as error:
            raise WeightsRefused(
                "corrupt_pointer",
                f"{self._memory}, the last pointer seen here, is damaged ({error.message}): remove it, if you are sure that "
                "the pointer in the store is not an old one",
            ) from error


def _is_same(one: Pointer, other: Pointer) -> bool:
    return (one.run, one.version, one.epoch) == (other.run, other.version, other.epoch)


def _read(store: PointerSource, policy: str, arm: str) -> bytes | None:
    try:
        return store.read_small(pointer_path(policy, arm), MOST_BYTES)
    except WeightsRefused as error:  # a link, a folder, or far too long
        raise WeightsRefused("corrupt_pointer", error.message) from error
