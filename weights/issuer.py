"""Who issues the snapshot of a policy's versions: any process with the signing key, the trainer first of all.

In: versions that were published, pointers that were moved, the passing of an hour. Out: one row of the database, then its
image beside the versions. Waits for: the database and the store.

The row decides, by compare-and-set of its sequence number; what lies in the store is put right whenever it differs. So
whoever can write to the store can neither add to the list nor turn it back. Training issues it at each publication and once
an hour; while training is down, release does if it has the key, else `millrace keys renew`, by hand or from cron.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from contracts.errors import InvalidSettings, StaleWrite, WeightsRefused
from weights.stores.store import WeightStore
from weights.versions.signing import Keyring, Signer
from weights.versions.snapshot import (
    MOST_BYTES,
    RENEW_SECONDS,
    ListedVersion,
    Snapshot,
    list_version,
    next_snapshot,
    parse_snapshot,
    sign_snapshot,
    snapshot_path,
)

_ATTEMPTS = 5


SnapshotRow = tuple[int, bytes]
"""A sequence number, and the signed text of that snapshot."""


class SnapshotRows(Protocol):
    """The row of one policy that decides which snapshot is the newest; `runtime.snapshot_rows` has it in the database."""

    def newest(self) -> SnapshotRow | None:
        """None: none was issued yet. Raises Unavailable."""

    def replace(self, seen: SnapshotRow | None, row: SnapshotRow) -> bool:
        """Put `row` instead of `seen`, unless another one is there by now; True: it was put. Raises Unavailable, LeaseLost."""


class Issuer:
    """Issues the snapshots of one policy.

    Args:
        rows: which snapshot is the newest.
        store: where the image lies; it must take what is not listed yet.
        policy, run: whose versions.
        signer: who vouches for them.
        keyring: whose snapshots in the store are believed, if that has a newer one than the row.
        clock: UTC epoch seconds.
        accepted: told of every snapshot that is issued.
    """

    def __init__(
        self,
        rows: SnapshotRows,
        store: WeightStore,
        policy: str,
        run: str,
        *,
        signer: Signer,
        keyring: Keyring | None,
        clock: Callable[[], float] = time.time,
        accepted: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        self._rows = rows
        self._store = store
        self._policy = policy
        self._run = run
        self._signer = signer
        self._keyring = keyring
        self._clock = clock
        self._accepted = accepted
        self._last: Snapshot | None = None

    @property
    def issued_at(self) -> float:
        """Of the newest that was issued or found here, UTC epoch seconds; 0: none was."""
        return self._last.issued_at if self._last else 0.0

    def missing(self) -> set[int]:
        """Versions in the store that can be believed and are not listed. Raises Unavailable."""
        _, before = self._newest()
        return set(self._store.versions(self._policy)) - (before.versions.keys() if before else set())

    def issue(self, versions: Collection[int] = (), pointers: Mapping[str, int] | None = None) -> Snapshot:
        """A new snapshot, with all ways to these versions and these epochs of pointers added. The first one lists all.

        Raises:
            StaleWrite: others issue at this moment, again and again.
            InvalidSettings: the snapshot in the database is of another run.
            NotFound, WeightsRefused: a version to add cannot be read.
            Unavailable: the store or the database is away; safe to try again.
            LeaseLost: see `SnapshotRows.replace`.
        """
        for _ in range(_ATTEMPTS):
            row, before = self._newest()
            added = {version: self._entry(version, before) for version in self._to_add(versions, before)}
            snapshot = next_snapshot(
                before,
                policy=self._policy,
                run=self._run,
                now=self._clock(),
                versions=added,
                pointers=pointers or {},
                sequence=row[0] if row else 0,
            )
            text = sign_snapshot(snapshot, self._signer)
            if self._rows.replace(row, (snapshot.sequence, text)):
                self._show((snapshot.sequence, text))
                self._noted(snapshot)
                return snapshot
        raise StaleWrite(f"others issue snapshots of {self._policy!r} at this moment; it is safe to try again")

    def renew(self, after: float = RENEW_SECONDS) -> bool:
        """Issue one if the last is older than `after` seconds, signed by another key, or there is none; True if so.

        Raises: as `issue`.
        """
        row, before = self._newest()
        is_fresh = before is not None and 0 <= self._clock() - before.issued_at < after
        if before is not None and row is not None and is_fresh and before.key == self._signer.key_id:
            self._show(row)
            self._noted(before)
            return False
        self.issue()
        return True

    def _noted(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._accepted(snapshot)

    def _to_add(self, versions: Collection[int], before: Snapshot | None) -> list[int]:
        wanted = set(versions)
        if before is None:
            wanted |= set(self._store.versions(self._policy))
        return sorted(wanted)

    def _entry(self, version: int, before: Snapshot | None) -> ListedVersion:
        entry = list_version(self._store.edges(self._policy, version))
        known = before.versions.get(version) if before else None
        if known is None:
            return entry
        # A way that cannot be read at this moment may be put back: it stays listed.
        found = entry.edges if entry.root == known.root else {}
        return ListedVersion(known.root, known.parent, {**known.edges, **found})

    def _newest(self) -> tuple[SnapshotRow | None, Snapshot | None]:
        """The row, and the newest snapshot there is: in the store, if a database was put back from an older copy."""
        row = self._rows.newest()
        known = [parse_snapshot(row[1], self._policy, None)] if row else []
        try:
            if (text := self._store.read_small(snapshot_path(self._policy), MOST_BYTES)) is not None:
                known.append(parse_snapshot(text, self._policy, self._keyring))
        except WeightsRefused as error:
            self._store.on_junk(snapshot_path(self._policy), error)
        # Of two with one number the row's.
        newest = max(known, key=lambda snapshot: snapshot.sequence, default=None)
        if newest is not None and newest.run != self._run:
            raise InvalidSettings(
                f"the versions of {self._policy!r} are of run {newest.run!r}, and this home is of run {self._run!r}: give it a "
                "weight store and a database of its own"
            )
        return row, newest

    def _show(self, row: SnapshotRow) -> None:
        """Put the row's image into the store, and the newer one's if there is one by then."""
        path = snapshot_path(self._policy)
        for _ in range(_ATTEMPTS):
            try:
                is_there = self._store.read_small(path, MOST_BYTES) == row[1]
            except WeightsRefused:
                is_there = False
            if not is_there:
                self._store.write_small(path, row[1])
            newest = self._rows.newest()
            if newest is None or newest[0] == row[0]:
                return
            row = newest
