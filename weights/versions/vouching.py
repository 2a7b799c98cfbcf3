"""Decides which manifests are trusted: those in the newest snapshot, or, until a first snapshot was seen, those of a trusted key.

In: snapshots from a store. Out: nothing, or `WeightsRefused` with the reason. Waits for: its own file.

<memory>/<policy>.json   the newest snapshot accepted here; only the owner's processes write it, under a lock

A snapshot is accepted if a trusted key signed it, it is of the run that is followed, it is neither expired nor issued in the
future, and its sequence number is higher than the last accepted one's, which stays in force until then.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from contracts.errors import Unavailable, WeightsRefused
from weights.files import make_folder_durably, read_small, write_durably
from weights.versions.layout import edge_name, policy_folder
from weights.versions.manifest import Manifest
from weights.versions.pointer import Pointer
from weights.versions.signing import Keyring
from weights.versions.snapshot import (
    CLOCK_SECONDS,
    MOST_BYTES,
    RENEW_SECONDS,
    ListedVersion,
    Snapshot,
    digest_of_manifest,
    parse_snapshot,
)

_LOOK_SECONDS = 60.0
_FIRST_LOOK_SECONDS = 5.0
"""While there is no snapshot yet."""


class Snapshots:
    """A `Verifier`. Any thread may ask.

    `keyring`: whose snapshots are accepted, and whose manifests while there is no snapshot. `memory`: the folder of the file
    above. `run`: whose versions are accepted; None: the first snapshot's. `publishes`: this process issues snapshots, and also
    accepts unlisted versions, if a trusted key signed them. `accepted`: called with every snapshot that is accepted, or read
    back from the file. `clock`: UTC epoch seconds.
    """

    def __init__(
        self,
        keyring: Keyring,
        memory: Path,
        *,
        run: str | None = None,
        publishes: bool = False,
        accepted: Callable[[Snapshot], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keyring, self._memory, self._run = keyring, memory, run
        self._publishes, self._accepted, self._clock = publishes, accepted, clock
        self._lock = threading.RLock()
        self._current: dict[str, Snapshot] = {}
        self._looked_at: dict[str, float] = {}

    def verify(self, manifest: Manifest) -> None:
        """Return only if this manifest is trusted. Raises WeightsRefused: `unlisted`; without a snapshot, as the keyring; `wrong_run`."""
        snapshot = self.current(manifest.policy)
        if snapshot is None or not _lists(snapshot, manifest):
            if snapshot is not None and not self._publishes:
                raise WeightsRefused(
                    "unlisted",
                    f"{edge_name(manifest)} of {manifest.policy!r} version {manifest.version} is not in snapshot "
                    f"{snapshot.sequence}: it is older, newer or forged, and nothing of it is used",
                    version=manifest.version,
                )
            self._keyring.verify(manifest)
        wanted = self._run or (snapshot.run if snapshot else manifest.run)
        if manifest.run != wanted:
            raise WeightsRefused(
                "wrong_run", f"version {manifest.version} in the store is of run {manifest.run!r}, not of {wanted!r}"
            )

    def listed(self, policy: str) -> Mapping[int, ListedVersion] | None:
        """The versions that may be read; None: every version that a trusted key signed."""
        snapshot = None if self._publishes else self.current(policy)
        return None if snapshot is None else snapshot.versions

    def current(self, policy: str) -> Snapshot | None:
        """The snapshot in force; None: none was ever accepted here. Raises WeightsRefused: the remembered one cannot be trusted."""
        with self._lock:
            if policy not in self._current and (text := self._remembered(policy)) is not None:
                self._take(policy, parse_snapshot(text, policy, self._keyring))
            return self._current.get(policy)

    def is_expired(self, policy: str) -> bool:
        """True if the snapshot expired: the store should have had a newer one."""
        snapshot = self.current(policy)
        return snapshot is not None and self._clock() > snapshot.expires_at + CLOCK_SECONDS

    def is_late(self, policy: str) -> bool:
        """True if the snapshot is so old that there must be a newer one: another source may have it."""
        snapshot = self.current(policy)
        return snapshot is not None and self._clock() > snapshot.issued_at + RENEW_SECONDS + CLOCK_SECONDS

    def is_due(self, policy: str, version: int | None = None) -> bool:
        """True if the store should be asked for a snapshot now, before looking for `version` if given."""
        with self._lock:
            snapshot, since = self._current.get(policy), self._clock() - self._looked_at.get(policy, -1e12)
            if snapshot is None:
                return not 0 <= since < _FIRST_LOOK_SECONDS
            return not 0 <= since < _LOOK_SECONDS or (version is not None and version not in snapshot.versions)

    def see(self, policy: str, text: bytes | None) -> None:
        """Accept the store's snapshot if it is valid; `text` None: the store has none.

        Raises WeightsRefused: it is not accepted: as `parse_snapshot`; `wrong_run`, `stale_snapshot`,
        `expired_snapshot`, `clock_off`; `missing_snapshot`, there was one before. The one in force stays in force.
        `not_remembered`: it is accepted, but could not be written to the file.
        """
        with self._lock:
            self._looked_at[policy] = self._clock()
            if text is None and self._remembered(policy) is None:
                return
            if text is None:
                raise WeightsRefused(
                    "missing_snapshot", f"the store has no snapshot of {policy!r} any more: see who removed it"
                )
            snapshot = parse_snapshot(text, policy, self._keyring)
            self._check(snapshot)
            if self._is_newer(policy, snapshot, text):
                self._remember(policy, snapshot, text)
            self._take(policy, snapshot)

    def check_pointer(self, pointer: Pointer, serves: int | None) -> None:
        """A pointer must be as new as the snapshot, and that current to move away from `serves`. Raises WeightsRefused."""
        snapshot = self.current(pointer.policy)
        if snapshot is None:
            return
        if pointer.run != snapshot.run:
            raise WeightsRefused("wrong_run", f"the pointer is of run {pointer.run!r}, not of {snapshot.run!r}")
        newest = snapshot.pointers.get(pointer.arm, 0)
        if pointer.epoch < newest:
            raise WeightsRefused(
                "stale_pointer",
                f"the store points {pointer.policy}/{pointer.arm} at version {pointer.version} of epoch {pointer.epoch}, and "
                f"snapshot {snapshot.sequence} has epoch {newest}: somebody restored an old pointer",
            )
        if pointer.version != serves and self.is_expired(pointer.policy):
            raise _expired(snapshot)

    def _check(self, snapshot: Snapshot) -> None:
        now = self._clock()
        if self._run is not None and snapshot.run != self._run:
            raise WeightsRefused(
                "wrong_run", f"the snapshot in the store is of run {snapshot.run!r}, not of {self._run!r}"
            )
        if snapshot.issued_at > now + CLOCK_SECONDS:
            raise WeightsRefused(
                "clock_off",
                f"snapshot {snapshot.sequence} of {snapshot.policy!r} was issued {snapshot.issued_at - now:.0f} s from now: set "
                "the clock of this machine, or that of the publisher",
            )
        if now > snapshot.expires_at + CLOCK_SECONDS:
            raise _expired(snapshot)

    def _is_newer(self, policy: str, snapshot: Snapshot, text: bytes) -> bool:
        known = self._remembered(policy)
        if known is None:
            return True
        # No keyring: its key may have been retired since, the file is our own, and only its sequence number matters.
        try:
            last = parse_snapshot(known, policy, None)
        except WeightsRefused:
            return True  # damaged on disk: a snapshot that a trusted key signed replaces it
        if snapshot.run != last.run:
            raise WeightsRefused(
                "wrong_run", f"the snapshot in the store is of run {snapshot.run!r}, not of {last.run!r}"
            )
        if snapshot.sequence < last.sequence or (snapshot.sequence == last.sequence and text != known):
            self._current.pop(policy, None)  # another process of this home may have seen a newer one
            raise WeightsRefused(
                "stale_snapshot",
                f"the store has snapshot {snapshot.sequence} of {policy!r}, and {last.sequence} was seen before: somebody "
                "restored an old one",
            )
        return snapshot.sequence > last.sequence

    def _remember(self, policy: str, snapshot: Snapshot, text: bytes) -> None:
        try:
            with self._turn(policy):
                if self._is_newer(policy, snapshot, text):  # another process of this home may have been faster
                    write_durably(self._file(policy), [text])
        except (OSError, Unavailable) as error:
            self._take(policy, snapshot)
            raise WeightsRefused(
                "not_remembered",
                f"{self._file(policy)} cannot be written ({error}): the snapshot is in force in this process, but a restart will not "
                "know it; let this process write there",
            ) from error

    def _take(self, policy: str, snapshot: Snapshot) -> None:
        self._current[policy] = snapshot
        self._accepted(snapshot)

    def _remembered(self, policy: str) -> bytes | None:
        try:
            return read_small(self._memory, self._file(policy).name, MOST_BYTES)
        except FileNotFoundError:
            return None
        except WeightsRefused:
            return b""  # unreadable, which is not the same as never written

    def _file(self, policy: str) -> Path:
        return self._memory / f"{policy_folder(policy)}.json"

    @contextmanager
    def _turn(self, policy: str) -> Iterator[None]:
        make_folder_durably(self._memory)
        lock = os.open(self._memory / f"{policy_folder(policy)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _lists(snapshot: Snapshot, manifest: Manifest) -> bool:
    entry = snapshot.versions.get(manifest.version)
    return (
        entry is not None
        and entry.root == manifest.target_root
        and entry.edges.get(edge_name(manifest)) == digest_of_manifest(manifest)
    )


def _expired(snapshot: Snapshot) -> WeightsRefused:
    return WeightsRefused(
        "expired_snapshot",
        f"snapshot {snapshot.sequence} of {snapshot.policy!r} expired at {msgspec.json.encode(snapshot.expires_at).decode()} (UTC "
        "epoch seconds): the served version stays, nothing new is accepted. Start training or release where the signing key is, or "
        "run `millrace keys renew` there; if they run, this store or mirror has an old state",
        sequence=snapshot.sequence,
    )
