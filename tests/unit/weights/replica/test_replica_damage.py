from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.weights.examples import fold
from tests.worlds.replica import ReplicaWorld, check, spoil
from weights.tensors import SINGLE_FILE
from weights.versions.manifest import NO_HISTORY


@pytest.fixture
def world(tmp_path: Path) -> ReplicaWorld:
    return ReplicaWorld(tmp_path, 6)


@pytest.mark.parametrize("place", [-1, 3, 20, 200])
def test_a_rotten_slot_is_refused_by_name_and_fetched_again(world: ReplicaWorld, place: int) -> None:
    with world.open() as replica:
        replica.bring(0)
        replica.bring(1)
        spoil(world.slot(replica.held) / SINGLE_FILE, place)
    world.source.asked.clear()
    with world.open() as replica:
        check(replica, world, 0)
        assert [error.code for error in replica.refused] == ["slot_damaged"]
        replica.bring(1)
        check(replica, world, 1)
    assert {digest for digest, _ in world.source.asked} == world.edge_chunks("step", 1)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_where_nothing_whole_is_left_it_begins_anew(world: ReplicaWorld, damage: Callable[[Path], None]) -> None:
    with world.open() as replica:
        replica.bring(0)
        replica.bring(1)
    for model in (world.folder / "slots").glob(f"*/{SINGLE_FILE}"):
        damage(model)
    with world.open() as replica:
        assert replica.held is None
        assert [error.code for error in replica.refused] == ["slot_damaged", "slot_damaged"]
        replica.bring(1)
        check(replica, world, 1)


def test_what_rots_while_it_is_served_is_found_before_the_next_version_is_built_on_it(world: ReplicaWorld) -> None:
    with world.open() as replica:
        replica.bring(0)
        replica.bring(1)
        model = world.slot(replica.held) / SINGLE_FILE
        model.chmod(0o600)
        with model.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"!")
        replica.bring(2)
        check(replica, world, 2)
        assert [error.code for error in replica.refused] == ["slot_damaged"]


@pytest.mark.parametrize("damage", [spoil, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_rotten_history_is_dropped_and_never_used(world: ReplicaWorld, damage: Callable[[Path], None]) -> None:
    fold(world.store, world.weights, 2, 5)
    with world.open() as replica:
        replica.bring(2)
        damage(world.slot(replica.held) / "history.bin")
    world.source.asked.clear()
    with world.open() as replica:
        check(replica, world, 2)
        assert [error.code for error in replica.refused] == ["history_damaged"]
        assert replica.held is not None
        assert replica.held.history == NO_HISTORY
        replica.bring(5)
        check(replica, world, 5)
    assert {digest for digest, _ in world.source.asked} == world.edge_chunks("fold", 5)


def test_a_slot_whose_label_is_damaged_was_never_finished(world: ReplicaWorld) -> None:
    with world.open() as replica:
        replica.bring(0)
        replica.bring(1)
        (world.slot(replica.held) / "held.json").write_bytes(b"{}")
    with world.open() as replica:
        check(replica, world, 0)
        replica.bring(1)
        check(replica, world, 1)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b'{"slot"')])
def test_without_its_pointer_it_serves_what_is_whole(world: ReplicaWorld, damage: Callable[[Path], None]) -> None:
    with world.open() as replica:
        replica.bring(0)
        replica.bring(1)
    damage(world.folder / "current")
    world.source.is_away = True
    with world.open() as replica:
        check(replica, world, 1)
        replica.bring(0)
        check(replica, world, 0)
