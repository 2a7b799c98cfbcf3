"""Release renews the list of versions where training does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipelines.release.renewal import renewal
from runtime.database import Database
from runtime.settings import Settings
from tests.databases import write_migrated
from tests.worlds.stores import Folder, publish
from tests.worlds.versions import keyring
from weights.versions.keys import signing_file, trusted_folder, write_private_key, write_public_key
from weights.versions.signing import Signer
from weights.versions.snapshot import MOST_BYTES, RENEW_SECONDS, parse_snapshot, snapshot_path

KEY = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
OURS = Signer(KEY)
POLICY, RUN = "desk", "run-1"
NOW = 1_780_000_000.0


class RenewalWorld:
    """A home with one version, and release in it."""

    def __init__(self, home: Path) -> None:
        self.settings = Settings(home=home, run=RUN, policy=POLICY, base="none", tasks=(Path("none"),))
        write_migrated(home / "millrace.db")
        self.database = Database(f"sqlite:///{home / 'millrace.db'}")
        self.now, self.rising = NOW, 0.0
        write_public_key(trusted_folder(home), OURS.public_key)
        publish(Folder(self.settings.weights).open(keyring(OURS)), 0, OURS)

    def look(self) -> None:
        renewal(self.settings, self.database, self.settings.policy, lambda: self.now, lambda: self.rising)()

    def issued_at(self) -> float | None:
        text = Folder(self.settings.weights).open(None).read_small(snapshot_path(POLICY), MOST_BYTES)
        return None if text is None else parse_snapshot(text, POLICY, keyring(OURS)).issued_at


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RenewalWorld]:
    world = RenewalWorld(tmp_path)
    yield world
    world.database.close()


def test_without_the_key_it_does_nothing(world: RenewalWorld) -> None:
    world.look()
    assert world.issued_at() is None


def test_it_steps_in_after_two_hours_and_not_before(world: RenewalWorld) -> None:
    write_private_key(signing_file(world.settings.home), KEY)
    world.look()
    assert world.issued_at() == NOW
    world.now += 1.5 * RENEW_SECONDS
    world.look()
    assert world.issued_at() == NOW, "training may just be slow"
    world.now += RENEW_SECONDS
    world.look()
    assert world.issued_at() == world.now


def test_it_looks_every_five_minutes(world: RenewalWorld) -> None:
    write_private_key(signing_file(world.settings.home), KEY)
    look = renewal(world.settings, world.database, world.settings.policy, lambda: world.now, lambda: world.rising)
    look()
    Folder(world.settings.weights).remove(snapshot_path(POLICY))
    look()
    assert world.issued_at() is None
    world.rising += 301.0
    look()
    assert world.issued_at() == NOW, "the row of the database is put back"
