"""A restart checks who vouches for what lies in a replica's slots."""

from pathlib import Path

import msgspec
import pytest

from contracts.errors import NotFound, Unavailable, WeightsRefused
from tests.worlds.stores import POLICY, RUN, Folder, publish, signer, weights_of
from tests.worlds.versions import keyring
from weights.replica.replica import Replica
from weights.tensors import root_of
from weights.versions.manifest import Chunk, Manifest
from weights.versions.signing import Keyring

OURS, NEXT = signer(1), signer(2)


class SlotWorld:
    """A store with versions 0 and 1, and a replica's folder that serves 1 and holds 0."""

    def __init__(self, folder: Path) -> None:
        self.place, self.folder = Folder(folder / "store"), folder / "replica"
        for version in (0, 1):
            publish(self.place.open(keyring(OURS)), version, OURS)
        with self.open() as replica:
            for version in (0, 1):
                replica.bring(version)

    def open(self, trusted: Keyring | None = None, *, is_away: bool = False) -> Replica:
        store = self.place.open(trusted or keyring(OURS))
        return Replica(self.folder, _Away(store) if is_away else store, POLICY, connections=1)

    def slot(self, version: int) -> Path:
        (found,) = (self.folder / "slots").glob(f"{version:06d}-*")
        return found


class _Away:
    """A store that cannot be asked; what was kept can still be judged."""

    def __init__(self, store: object) -> None:
        self._store = store

    def edges(self, policy: str, version: int) -> list[Manifest]:
        raise Unavailable(f"{policy} {version}: away")

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        raise Unavailable(f"{policy} {chunk} {start}: away")

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        found: Manifest = self._store.believed(text, policy, version)  # type: ignore[attr-defined]
        return found


@pytest.fixture
def world(tmp_path: Path) -> SlotWorld:
    return SlotWorld(tmp_path)


def test_a_slot_keeps_its_manifest_and_serves_again_without_the_store(world: SlotWorld) -> None:
    text = (world.slot(1) / "manifest.json").read_bytes()
    assert msgspec.json.decode(text, type=Manifest).target_root == root_of(weights_of(1))
    with world.open(is_away=True) as replica:
        assert replica.serves == 1


def test_a_slot_of_before_is_vouched_for_by_the_store_and_waits_while_that_is_away(world: SlotWorld) -> None:
    for version in (0, 1):
        (world.slot(version) / "manifest.json").unlink()
    with world.open(is_away=True) as replica:
        assert replica.serves is None, "nobody can vouch for it now"
    with world.open() as replica:
        assert replica.serves == 1
    with world.open(is_away=True) as replica:
        assert replica.serves == 1, "kept with the slot from now on"


def test_what_a_retired_key_signed_is_not_served_after_a_restart(world: SlotWorld) -> None:
    with world.open(keyring(NEXT)) as replica:
        assert replica.serves is None
        assert {error.code for error in replica.refused} == {"unknown_key"}
    with world.open() as replica:
        assert replica.serves == 1, "it is not thrown away: the key may come back"


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff"])
def test_a_manifest_that_cannot_be_read_vouches_for_nothing(world: SlotWorld, content: bytes) -> None:
    (world.slot(1) / "manifest.json").write_bytes(content)
    with world.open(is_away=True) as replica:
        assert replica.serves == 0, "the other one is whole"
        with pytest.raises((NotFound, Unavailable, WeightsRefused)):
            replica.bring(1)


def test_the_manifest_of_another_version_is_none_for_this_one(world: SlotWorld) -> None:
    (world.slot(1) / "manifest.json").write_bytes((world.slot(0) / "manifest.json").read_bytes())
    with world.open(is_away=True) as replica:
        assert replica.serves == 0


@pytest.mark.parametrize("field", ["run", "root"])
def test_a_label_that_was_changed_does_not_fit_its_manifest(world: SlotWorld, field: str) -> None:
    path = world.slot(1) / "held.json"
    label = msgspec.json.decode(path.read_bytes())
    label[field] = "run-2" if field == "run" else label["root"][:12] + "0" * 52
    path.write_bytes(msgspec.json.encode(label))
    with world.open() as replica:
        assert replica.serves == 0
        assert [error.code for error in replica.refused] == ["slot_damaged"]
        assert replica.bring(1).run == RUN
