"""Who issues the list of versions, and what the database and the store do to it: on both databases."""

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import delete, select, update

from contracts.errors import InvalidSettings, StaleWrite
from contracts.tables import weight_snapshot
from runtime.database import Database
from runtime.snapshot_rows import DatabaseSnapshotRows
from tests.worlds.stores import NOW, POLICY, RUN, BucketPlace, publish, signer
from tests.worlds.versions import keyring
from weights.issuer import Issuer
from weights.versions.signing import Signer
from weights.versions.snapshot import RENEW_SECONDS, Snapshot, parse_snapshot, sign_snapshot, snapshot_path
from weights.versions.vouching import Snapshots

OURS, NEXT, THIEF = signer(1), signer(2), signer(9)
PATH = snapshot_path(POLICY)


class SnapshotWorld:
    """A bucket with versions 0 and 1, and its publishers."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.place, self.now = BucketPlace(), NOW
        for version in (0, 1):
            self.publish(version)

    def publish(self, version: int, by: Signer = OURS) -> None:
        publish(self.place.open(keyring(OURS, NEXT)), version, by)

    def issuer(self, by: Signer = OURS, run: str = RUN) -> Issuer:
        trusted = keyring(OURS, NEXT)
        store = self.place.open(
            Snapshots(trusted, self.folder / by.key_id, run=run, publishes=True, clock=lambda: self.now)
        )
        return Issuer(
            DatabaseSnapshotRows(self.database, POLICY),
            store,
            POLICY,
            run,
            signer=by,
            keyring=trusted,
            clock=lambda: self.now,
        )

    def shown(self) -> Snapshot:
        return parse_snapshot(self.place.get(PATH) or b"", POLICY, keyring(OURS, NEXT))

    def row(self) -> bytes:
        with self.database.snapshot() as connection:
            return bytes(connection.execute(select(weight_snapshot.c.text)).scalar_one())


@pytest.fixture
def world(any_database: Database, tmp_path: Path) -> SnapshotWorld:
    return SnapshotWorld(any_database, tmp_path)


def test_the_first_lists_what_a_store_of_before_holds(world: SnapshotWorld) -> None:
    world.place.put(f"{POLICY}/v000002/step.json", b"{}")
    assert world.issuer().renew()
    assert sorted(world.shown().versions) == [0, 1]
    manifest = world.place.open(None).manifest(POLICY, 1)
    assert (world.shown().versions[1].root, world.shown().run) == (manifest.target_root, RUN)
    assert world.place.get(PATH) == world.row()


def test_each_issue_has_the_next_number_and_keeps_what_was_listed(world: SnapshotWorld) -> None:
    world.issuer().issue()
    world.publish(2)
    world.issuer().issue([2])
    world.issuer().issue(pointers={"live": 7})
    found = world.shown()
    assert (found.sequence, sorted(found.versions), found.pointers) == (3, [0, 1, 2], {"live": 7})


def test_it_is_renewed_once_an_hour_and_by_whoever_signs_now(world: SnapshotWorld) -> None:
    issuer = world.issuer()
    assert [issuer.renew(), issuer.renew()] == [True, False]
    world.now += RENEW_SECONDS
    assert issuer.renew()
    assert world.shown().expires_at == world.now + 24 * 3600.0
    assert world.issuer(NEXT).renew(), "signed by a key that may be retired next"
    assert world.shown().key == NEXT.key_id


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, None])
def test_what_the_store_loses_is_put_back(world: SnapshotWorld, content: bytes | None) -> None:
    issuer = world.issuer()
    issuer.issue()
    if content is None:
        world.place.remove(PATH)
    else:
        world.place.put(PATH, content)
    assert not issuer.renew()
    assert world.place.get(PATH) == world.row()


def test_an_old_or_forged_one_in_the_store_is_neither_signed_again_nor_left_there(world: SnapshotWorld) -> None:
    issuer = world.issuer()
    issuer.issue()
    old = world.place.get(PATH) or b""
    world.publish(2)
    issuer.issue([2])
    forged = sign_snapshot(msgspec.structs.replace(world.shown(), sequence=99, versions={}), THIEF)
    for content in (old, forged):
        world.place.put(PATH, content)
        issuer.issue()
        assert sorted(world.shown().versions) == [0, 1, 2]
    assert world.shown().sequence == 4


def test_a_database_that_was_put_back_goes_on_above_what_was_seen(world: SnapshotWorld) -> None:
    issuer = world.issuer()
    issuer.issue()
    early = world.row()
    world.publish(2)
    issuer.issue([2])
    with world.database.transaction() as connection:
        connection.execute(update(weight_snapshot).values(sequence=1, text=early))
    assert world.issuer().issue().sequence == 3
    with world.database.transaction() as connection:
        connection.execute(delete(weight_snapshot))
    assert world.issuer().issue().sequence == 4
    assert sorted(world.shown().versions) == [0, 1, 2]


def test_a_way_that_cannot_be_read_now_stays_listed(world: SnapshotWorld) -> None:
    issuer = world.issuer()
    issuer.issue()
    before = world.shown().versions
    world.place.put(f"{POLICY}/v000000/full.json", b"{}")
    world.publish(2)
    issuer.issue([2])
    assert world.shown().versions[0] == before[0]


def test_another_run_is_refused(world: SnapshotWorld) -> None:
    world.issuer().issue()
    with pytest.raises(InvalidSettings, match="run-1"):
        world.issuer(run="run-2").issue()


def test_of_two_who_issue_at_once_both_are_listed_or_told(world: SnapshotWorld) -> None:
    first, second = world.issuer(), world.issuer(NEXT)
    first.issue()
    world.publish(2)
    world.publish(3)
    try:
        first.issue([2])
        second.issue([3])
    except StaleWrite:
        pytest.fail("nobody was in the way")
    assert sorted(world.shown().versions) == [0, 1, 2, 3]
