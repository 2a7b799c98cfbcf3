"""Which version serves, for who cannot reach the database: a signed object beside the versions.

In: moves of an arm, by whoever decides. Out: the version to follow. Waits for: the store.

<root>/<policy>/pointers/live.json   moved by compare-and-set; its epoch, that of the assignment, only rises

The assignments in the database are the truth; this is their image in the store, written after them. Whoever can write to
the store can put an older pointer back, signature and all: so a reader remembers the highest epoch it has seen, on disk.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from contracts.errors import InvalidValue, StaleWrite, WeightsRefused
from weights.files import write_durably
from weights.versions.layout import policy_folder
from weights.versions.signing import Keyring, Signer

SCHEMA = 1
MOST_BYTES = 2**16
"""Of a pointer; what is longer is not read."""
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
    """Id of the key that signed; None: unsigned."""
    signature: str | None = None
    """Ed25519 over everything but itself, hex."""


class Stored(NamedTuple):
    """A pointer as the store has it, unverified, and by what the store tells it from another."""

    text: bytes
    tag: str
    problem: str = ""
    """Why what stands there cannot be read; `text` is empty then."""


class PointerStore(Protocol):
    """Small objects that are replaced, each only by whoever has seen what it replaces."""

    def read(self, policy: str, arm: str) -> Stored | None:
        """What stands there; None: nothing. Raises Unavailable."""

    def replace(self, policy: str, arm: str, text: bytes, seen: Stored | None) -> None:
        """Put `text` there durably, if `seen` still stands there (None: nothing).

        Raises:
            StaleWrite: somebody else was first.
            Unavailable: the disk is full or the store is away; it may or may not have been replaced: read it.
        """


def pointer_path(policy: str, arm: str) -> str:
    """Where a pointer lies below the root of a store. Raises InvalidValue."""
    if not _ARM.fullmatch(arm):
        raise InvalidValue(f"{arm!r} cannot name an arm: use a-z, 0-9, '_', '-'", param="arm")
    return f"{policy_folder(policy)}/pointers/{arm}.json"


def move_pointer(pointers: PointerStore, wanted: Pointer, signer: Signer | None, keyring: Keyring | None) -> None:
    """Make `wanted` the pointer of its arm; a second time it is a no-op.

    What stands there and does not verify is no reason to stay: it is replaced.

    Raises:
        StaleWrite: the pointer has this epoch or a higher one already, or somebody else moves it at this moment.
        Unavailable: see `PointerStore.replace`; it is safe to try again.
    """
    stored = pointers.read(wanted.policy, wanted.arm)
    if stored is not None and (found := _believed(stored, wanted, keyring)) is not None:
        if (found.run, found.version, found.epoch) == (wanted.run, wanted.version, wanted.epoch):
            return
        if found.epoch >= wanted.epoch:
            raise StaleWrite(
                f"{wanted.policy}/{wanted.arm} points at version {found.version} since epoch {found.epoch}: epoch "
                f"{wanted.epoch} comes too late",
                policy=wanted.policy,
                arm=wanted.arm,
            )
    named = msgspec.structs.replace(wanted, key=signer.key_id if signer else None, signature=None)
    if signer is not None:
        named = msgspec.structs.replace(named, signature=signer.sign_bytes(_signed_bytes(named)))
    pointers.replace(wanted.policy, wanted.arm, msgspec.json.encode(named), stored)


def parse_pointer(text: bytes, policy: str, arm: str, keyring: Keyring | None) -> Pointer:
    """Read the pointer of an arm; `keyring` None takes anybody's.

    Raises:
        WeightsRefused: `corrupt_pointer`; that of another arm or policy: `wrong_pointer`; `unsigned`, `unknown_key`,
            `bad_signature`.
    """
    try:
        pointer = msgspec.json.decode(text, type=Pointer)
    # Deep nesting and bytes that are no UTF-8 are not always msgspec's own errors.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsRefused("corrupt_pointer", f"not a pointer: {error}") from error
    if pointer.schema != SCHEMA:
        raise WeightsRefused("corrupt_pointer", f"the pointer has schema {pointer.schema}, this process reads {SCHEMA}")
    if keyring is not None:
        keyring.verify_bytes(pointer.key, pointer.signature, _signed_bytes(pointer), name=f"the pointer {policy}/{arm}")
    if (pointer.policy, pointer.arm) != (policy, arm):
        raise WeightsRefused(
            "wrong_pointer", f"where {policy}/{arm} should be, the store holds {pointer.policy}/{pointer.arm}"
        )
    return pointer


def check_pointer(stored: Stored, policy: str, arm: str, keyring: Keyring | None) -> Pointer:
    """The pointer that stands there. Raises as `parse_pointer`."""
    if stored.problem:
        raise WeightsRefused("corrupt_pointer", stored.problem)
    return parse_pointer(stored.text, policy, arm, keyring)


class PointerReader:
    """Follows one arm; `memory` is a file of this reader alone."""

    def __init__(self, pointers: PointerStore, policy: str, arm: str, keyring: Keyring | None, memory: Path) -> None:
        self._pointers = pointers
        self.policy = self._policy = policy
        self._arm = arm
        self._keyring = keyring
        self._memory = memory

    def look(self) -> Pointer | None:
        """The pointer as it stands now; None: the arm has none yet.

        Raises:
            WeightsRefused: as `parse_pointer`; `stale_pointer`, an older one was put back, or another one of its epoch.
            Unavailable: the store is away.
        """
        stored = self._pointers.read(self._policy, self._arm)
        if stored is None:
            return None
        pointer = check_pointer(stored, self._policy, self._arm, self._keyring)
        last = self._last()
        if last is not None and pointer.epoch <= last.epoch:
            if (pointer.run, pointer.version, pointer.epoch) == (last.run, last.version, last.epoch):
                return pointer
            raise WeightsRefused(
                "stale_pointer",
                f"the store points {self._policy}/{self._arm} at version {pointer.version} of epoch {pointer.epoch}, but "
                f"version {last.version} of epoch {last.epoch} was seen before: somebody put an old pointer back",
                epoch=pointer.epoch,
                seen=last.epoch,
            )
        write_durably(self._memory, [stored.text])
        return pointer

    def _last(self) -> Pointer | None:
        try:
            # Its key may have been retired since: it is our own file, nobody has to vouch for it.
            return parse_pointer(self._memory.read_bytes(), self._policy, self._arm, None)
        except FileNotFoundError:
            return None
        except WeightsRefused as error:
            raise WeightsRefused(
                "corrupt_pointer",
                f"{self._memory}, the last pointer seen here, is damaged ({error.message}): remove it, if the pointer in "
                "the store can be trusted not to be an old one",
            ) from error


def _believed(stored: Stored, wanted: Pointer, keyring: Keyring | None) -> Pointer | None:
    try:
        return parse_pointer(stored.text, wanted.policy, wanted.arm, keyring)
    except WeightsRefused:
        return None


def _signed_bytes(pointer: Pointer) -> bytes:
    return b"millrace-pointer\n" + msgspec.json.encode(msgspec.structs.replace(pointer, signature=None))
