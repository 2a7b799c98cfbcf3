"""Issues the snapshot of a policy's versions. Any process with the signing key can do this; normally the trainer does.

In: versions that were published, pointers that were moved, a timer of one hour. Out: one row of the database, then its copy
beside the versions. Waits for: the database and the store.

The row is the truth: it moves by compare-and-set of its sequence number, and the copy in the store is corrected whenever it
differs. So an attacker who can write to the store can neither add to the list nor roll it back.
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
        """The row; None: no snapshot was issued yet. Raises Unavailable."""

    def replace(self, seen: SnapshotRow | None, row: SnapshotRow) -> bool:
        """Replace `seen` by `row`; False: another row is there by now. Raises Unavailable, LeaseLost."""


class Issuer:
    """Issues the snapshots of one policy.

    `store` must accept versions that are not listed yet. `keyring`: whose snapshots it trusts. `accepted`: called with each snapshot that stands.
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
        self._rows, self._store, self._policy, self._run = rows, store, policy, run
        self._signer, self._keyring, self._clock, self._accepted = signer, keyring, clock, accepted
        self._last: Snapshot | None = None

    @property
    def issued_at(self) -> float:
        """When the newest snapshot that this issuer knows was issued, UTC epoch seconds; 0: it knows none."""
        return self._last.issued_at if self._last else 0.0

    def missing(self) -> set[int]:
        """Versions in the store that are signed and not listed. Raises Unavailable."""
        _, before = self._newest()
        return set(self._store.versions(self._policy)) - (before.versions.keys() if before else set())

    def issue(self, versions: Collection[int] = (), pointers: Mapping[str, int] | None = None) -> Snapshot:
        """Issue a new snapshot that adds all edges of these versions and these pointer epochs. The first one lists everything.

        Raises StaleWrite: others keep issuing; InvalidSettings: the snapshot in the database is of another run; NotFound, WeightsRefused: a
        version cannot be read; Unavailable: try again; LeaseLost.
        """
        for _ in range(_ATTEMPTS):
            row, before = self._newest()
            wanted = {*versions, *(self._store.versions(self._policy) if before is None else ())}
            added = {version: self._entry(version, before) for version in sorted(wanted)}
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
                self._show_and_note((snapshot.sequence, text), snapshot)
                return snapshot
        raise StaleWrite(f"other processes issue snapshots of {self._policy!r} at this moment; it is safe to try again")

    def renew(self, after: float = RENEW_SECONDS) -> bool:
        """Issue a snapshot if the last is older than `after` seconds, has another key, or does not exist; whether one was issued."""
        row, before = self._newest()
        is_fresh = before is not None and 0 <= self._clock() - before.issued_at < after
        if before is not None and row is not None and is_fresh and before.key == self._signer.key_id:
            self._show_and_note(row, before)
            return False
        self.issue()
        return True

    def _entry(self, version: int, before: Snapshot | None) -> ListedVersion:
        entry = list_version(self._store.edges(self._policy, version))
        known = before.versions.get(version) if before else None
        if known is None:
            return entry
        # An edge that cannot be read at this moment may be restored: it stays listed.
        found = entry.edges if entry.root == known.root else {}
        return ListedVersion(known.root, known.parent, {**known.edges, **found})

    def _newest(self) -> tuple[SnapshotRow | None, Snapshot | None]:
        """The row, and the newest snapshot: the one in the store, if the database was restored from an older backup."""
        row = self._rows.newest()
        known = [parse_snapshot(row[1], self._policy, None)] if row else []
        try:
            if (text := self._store.read_small(snapshot_path(self._policy), MOST_BYTES)) is not None:
                known.append(parse_snapshot(text, self._policy, self._keyring))
        except WeightsRefused as error:
            self._store.on_junk(snapshot_path(self._policy), error)
        # With equal sequence numbers the row's wins.
        newest = max(known, key=lambda snapshot: snapshot.sequence, default=None)
        if newest is not None and newest.run != self._run:
            raise InvalidSettings(
                f"the versions of {self._policy!r} are of run {newest.run!r}, and this home is of run {self._run!r}: give it a "
                "weight store and a database of its own"
            )
        return row, newest

    def _show_and_note(self, row: SnapshotRow, snapshot: Snapshot) -> None:
        """Copy the row of a snapshot to the store, and a newer row if there is one by then; note the snapshot."""
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
                break
            row = newest
        self._last = snapshot
        self._accepted(snapshot)
