"""Junk in the weight store does not stop the trainer: it publishes, lists, offers and prunes valid versions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.assignments import LIVE
from contracts.errors import WeightsRefused
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.world import NOW, POLICY, World
from tests.worlds.stores import Folder, Junk, junk, signer
from tests.worlds.versions import keyring
from weights.stores.opening import open_store_at
from weights.versions.keys import replicas_folder, write_public_key
from weights.versions.presence import Presence, announce
from weights.versions.snapshot import MOST_BYTES, parse_snapshot, snapshot_path
from weights.versions.vouching import Snapshots

OURS, REPLICA = signer(1), signer(2)
KINDS = ["braces", "objects nested deeply", "1 GiB", "a pipe", "a link to endless zeros", "a folder"]


class SignedWorld(World):
    """A trainer that signs, with readers that require signatures."""

    def __init__(self, home: Path, **training: object) -> None:
        super().__init__(home, **training)
        self.signer, self.keyring = OURS, keyring(OURS)
        self.snapshots = Snapshots(self.keyring, home / "snapshots", run="test", publishes=True, clock=lambda: self.now)
        self.store = open_store_at(self.settings.weights, self.snapshots)

    def listed(self) -> list[int]:
        """What the snapshot in the store names; nothing while junk has its place."""
        try:
            text = self.store.read_small(snapshot_path(POLICY), MOST_BYTES)
            return [] if text is None else sorted(parse_snapshot(text, POLICY, self.keyring).versions)
        except WeightsRefused:
            return []

    def publish_until(self, trainer: Trainer, version: int) -> None:
        for seed in range(60):
            if self.listed() and self.listed()[-1] >= version:
                return
            self.add_random(4, seed=seed)
            self.turns(trainer, 1)
        pytest.fail(f"the trainer is left at {self.listed()}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SignedWorld]:
    world = SignedWorld.new(tmp_path / "home", batch_size=4, publish_samples=4)
    assert isinstance(world, SignedWorld)
    yield world
    world.close()


def kinds(folder: Path) -> dict[str, Junk]:
    folder.mkdir(exist_ok=True)
    return {kind.name: kind for kind in junk(folder)}


def test_the_first_start_writes_the_list_and_each_version_and_move_renews_it(world: SignedWorld) -> None:
    trainer = world.start()
    assert world.listed() == []
    world.turns(trainer, 1)
    assert world.listed() == [0]
    world.publish_until(trainer, 2)
    snapshot = world.snapshots
    snapshot.see(POLICY, world.store.read_small(snapshot_path(POLICY), MOST_BYTES))
    current = snapshot.current(POLICY)
    assert current is not None
    assert current.pointers[LIVE] >= 1


def test_it_renews_the_list_while_nothing_is_published(world: SignedWorld) -> None:
    trainer = world.start()
    world.turns(trainer, 1)
    first = world.store.read_small(snapshot_path(POLICY), MOST_BYTES)
    world.now += 2 * 3600.0
    world.turns(trainer, 1)
    assert world.store.read_small(snapshot_path(POLICY), MOST_BYTES) != first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_junk_where_anything_should_be_ends_nothing(world: SignedWorld, tmp_path: Path, kind: str) -> None:
    write_public_key(replicas_folder(world.settings.home), REPLICA.public_key)
    announce(world.store, POLICY, Presence(name="eu", version=0, history=None, at=NOW), REPLICA)
    place, plant = Folder(world.settings.weights), kinds(tmp_path / "outside")[kind].plant
    trainer = world.start()
    world.publish_until(trainer, 1)
    for path in (
        "replicas/x.json", "v000002/step.json", "v000002/full.json", "v000001/fold-000000.json", "pointers/live.json",
        "snapshot.json", "v999999999999999999/full.json",
    ):  # fmt: skip
        plant(place, f"{POLICY}/{path}")
    world.publish_until(trainer, 3)
    # A restart reads everything anew.
    world.publish_until(world.start(), 4)
    assert world.listed() == [0, 1, 2, 3, 4]
    assert world.store.manifest(POLICY, 4).version == 4


@pytest.mark.slow
def test_a_parent_whose_manifest_is_lost_does_not_stop_the_next_version(world: SignedWorld) -> None:
    trainer = world.start()
    world.publish_until(trainer, 2)
    Folder(world.settings.weights).put(f"{POLICY}/v000002/step.json", b"{}")
    world.publish_until(trainer, 3)
    assert {edge.kind for edge in world.store.edges(POLICY, 3)} == {"step", "full"}, "newcomers need no parent"
    assert world.store.load(POLICY, 3)
