import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.errors import Conflict, NotFound, Unavailable
from tests.fakes import Crash
from tests.unit.weights.examples import POLICY, bf16_policy, fold, publish, refused, same, stepped, tensor_of
from tests.worlds.replica import ReplicaSource, ReplicaWorld, check
from weights.codec.history import History
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.tensors import Tensors
from weights.versions.manifest import Chunk


@pytest.fixture
def world(tmp_path: Path) -> ReplicaWorld:
    return ReplicaWorld(tmp_path, 6)


@pytest.fixture
def replica(world: ReplicaWorld) -> Iterator[Replica]:
    """It serves version 0."""
    with world.open() as replica:
        replica.bring(0)
        yield replica


def test_a_newcomer_comes_in_full_and_then_by_steps_only_also_after_a_restart(world: ReplicaWorld) -> None:
    with world.open() as replica:
        assert (replica.held, replica.serves) == (None, None)
        with pytest.raises(Unavailable):
            replica.tensors()
        replica.bring(0)
        check(replica, world, 0)
    world.source.asked.clear()
    for version in range(1, 6):
        with world.open() as replica:
            check(replica, world, version - 1)
            assert replica.bring(version) == replica.held
            check(replica, world, version)
            assert replica.held is not None
            assert replica.held.history == world.store.manifest(POLICY, version).history_after
    assert {digest for digest, _ in world.source.asked} == world.edge_chunks("step", 1, 2, 3, 4, 5)
    assert len(world.source.asked) == 5
    with world.open() as replica:
        check(replica, world, 5)
        assert replica.refused == ()


def test_only_two_versions_stay_and_no_chunk(world: ReplicaWorld) -> None:
    with world.open() as replica:
        for version in range(5):
            replica.bring(version)
    assert [path.name[:6] for path in sorted((world.folder / "slots").iterdir())] == ["000003", "000004"]
    assert list((world.folder / "chunks").iterdir()) == []


def test_who_is_behind_takes_one_fold_and_makes_one_swap(world: ReplicaWorld) -> None:
    flips: list[str] = []
    with world.open(flips.append) as replica:
        replica.bring(0)
        fold(world.store, world.weights, 0, 5)
        world.source.asked.clear()
        flips.clear()
        replica.bring(5)
        check(replica, world, 5)
    assert {digest for digest, _ in world.source.asked} == world.edge_chunks("fold", 5)
    assert flips.count("flip: before current") == 1


def test_the_versions_between_are_never_served(world: ReplicaWorld) -> None:
    places: list[str] = []
    with world.open(places.append) as replica:
        replica.bring(1)
        places.clear()
        replica.bring(4)
        check(replica, world, 4)
    assert (places.count("stage: applied"), places.count("flip: before current")) == (3, 1)


def test_going_back_asks_nobody_and_a_sibling_of_the_rejected_is_one_step_away(world: ReplicaWorld) -> None:
    publish(
        world.store, 6, stepped(world.weights[4], 0.03, seed=66), parent=4, base=world.weights[4], history=History()
    )
    world.weights.append(stepped(world.weights[4], 0.03, seed=66))
    places: list[str] = []
    with world.open(places.append) as replica:
        replica.bring(4)
        replica.bring(5)
        world.source.is_away = True
        places.clear()
        replica.bring(4)
        check(replica, world, 4)
        assert places == ["flip: before current", "flip: after current"]
        replica.bring(5)
        world.source.is_away = False
        world.source.asked.clear()
        replica.bring(6)
        check(replica, world, 6)
    assert {digest for digest, _ in world.source.asked} == world.edge_chunks("step", 6)


def test_tensors_stay_whole_when_their_version_is_gone(world: ReplicaWorld, replica: Replica) -> None:
    kept = replica.tensors()
    for version in (1, 2, 3):
        replica.bring(version)
    assert same(kept, world.weights[0])
    assert not next(iter(kept.values())).data.flags.writeable


def test_tensors_may_come_go_and_change_their_shape(world: ReplicaWorld) -> None:
    target: Tensors = dict(stepped(world.weights[5], 0.03, seed=9))
    del target["layer.0.norm"]
    target["layer.0.weight"] = tensor_of(np.arange(500, dtype="<u2"))
    target["odd"] = tensor_of(np.arange(7, dtype="<u1"))
    target["empty"] = tensor_of(np.empty((0, 3), dtype="<u4"))
    world.weights += [target, stepped(target | {"odd": tensor_of(np.arange(8, dtype="<u2"))}, 0.03)]
    for version in (6, 7):
        base = world.weights[version - 1]
        publish(world.store, version, world.weights[version], parent=version - 1, base=base, history=world.history)
    with world.open() as replica:
        for version in (5, 6, 7):
            replica.bring(version)
            check(replica, world, version)
    with world.open() as replica:
        check(replica, world, 7)


class Fuse:
    """Dies at the n-th named place."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.places: list[str] = []

    def __call__(self, place: str) -> None:
        self.places.append(place)
        self.left -= 1
        if self.left < 0:
            raise Crash(place)


PLACES = {
    "fetch: before a chunk", "fetch: part written", "fetch: before a chunk gets its name", "fetch: chunk verified",
    "slot: begun", "slot: model begun", "stage: applied", "slot: model written",
    "slot: before history.bin", "slot: before held.json", "slot: whole", "flip: before current", "flip: after current",
    "sweep: before a slot", "sweep: before a chunk",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("goal", [3, 5])
def test_death_at_any_named_place_leaves_one_of_two_versions_and_what_was_fetched(
    world: ReplicaWorld, tmp_path: Path, goal: int
) -> None:
    found: dict[int, int] = {2: 0, goal: 0}
    places: set[str] = set()
    with world.open() as replica:
        replica.bring(1)
        replica.bring(2)
    before = world.folder
    for step in range(100):
        world.folder = tmp_path / str(step)
        shutil.copytree(before, world.folder)
        world.source.asked.clear()
        fuse = Fuse(step)
        with world.open(fuse) as replica, suppress(Crash):
            replica.bring(goal)
        places |= set(fuse.places)
        with world.open() as replica:
            assert replica.serves is not None
            found[replica.serves] += 1
            check(replica, world, replica.serves)
            replica.bring(goal)
            check(replica, world, goal)
            assert replica.refused == ()
        # Each chunk was asked for once, or again from where it stood; never one of a full copy.
        asked = world.source.asked
        assert {digest for digest, _ in asked} == world.edge_chunks("step", *range(3, goal + 1))
        assert len(asked) <= goal - 2 + 1
        assert len(set(asked)) == len(asked) or fuse.places[-1] == "fetch: before a chunk"
        if fuse.left >= 0:
            break
    assert places == PLACES
    assert min(found.values()) > 1
    assert step < 99


def test_a_fetch_goes_on_at_the_byte_it_got_to(world: ReplicaWorld, replica: Replica) -> None:
    (digest,) = world.edge_chunks("step", 1)
    chunk = next(chunk for chunk in world.store.manifest(POLICY, 1).chunks if chunk.blake3 == digest)
    (world.folder / "chunks" / f"{digest}.part").write_bytes(world.store.chunk(POLICY, chunk)[:100])
    world.source.asked.clear()
    replica.bring(1)
    assert world.source.asked == [(digest, 100)]


@pytest.mark.parametrize("rest", [b"rotten", b"x" * 10**6])
def test_a_part_that_the_disk_lost_costs_one_chunk_more(world: ReplicaWorld, replica: Replica, rest: bytes) -> None:
    (digest,) = world.edge_chunks("step", 1)
    (world.folder / "chunks" / f"{digest}.part").write_bytes(rest)
    (world.folder / "chunks" / digest).write_bytes(rest)
    world.source.asked.clear()
    replica.bring(1)
    check(replica, world, 1)
    assert world.source.asked[-1] == (digest, 0)


def test_an_answer_cut_short_is_asked_for_from_where_it_ends(world: ReplicaWorld, replica: Replica) -> None:
    world.source.asked.clear()
    world.source.answer = lambda content: content[:60]
    replica.bring(1)
    check(replica, world, 1)
    assert [start for _, start in world.source.asked][:3] == [0, 60, 120]


@pytest.mark.parametrize("answer", [lambda it: b"!" + it[1:], lambda it: b"!" + it, lambda _: b""])
def test_other_bytes_than_the_manifests_are_refused_and_nothing_changes(
    world: ReplicaWorld, replica: Replica, answer: Callable[[bytes], bytes]
) -> None:
    world.source.answer = answer
    for _ in range(2):
        with refused("payload_hash"):
            replica.bring(1)
        check(replica, world, 0)
    world.source.answer = lambda content: content
    replica.bring(1)
    check(replica, world, 1)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("target_root", {"target_root": "0" * 64}),
        ("unknown_codec", {"codec": "other/1"}),
        ("newer_schema", {"schema": 99}),
        ("corrupt_manifest", {"chunks": (Chunk("../../../escape", 10),)}),
    ],
)
def test_a_refused_edge_leaves_what_is_served_and_no_trace(
    world: ReplicaWorld, replica: Replica, code: str, change: dict[str, object]
) -> None:
    world.source.change = lambda edge: msgspec.structs.replace(edge, **change)
    with refused(code):
        replica.bring(1)
    check(replica, world, 0)
    assert len(list((world.folder / "slots").iterdir())) == 1
    world.source.change = lambda edge: edge
    replica.bring(1)
    check(replica, world, 1)


def test_one_process_keeps_a_folder(world: ReplicaWorld) -> None:
    with world.open(), pytest.raises(Conflict, match="its own folder"):
        world.open()
    world.open().close()


def test_another_run_under_the_same_numbers_is_told_apart(world: ReplicaWorld, tmp_path: Path) -> None:
    with world.open() as replica:
        replica.bring(1, "run-1")
        with refused("wrong_run"):
            replica.bring(2, "run-2")
        check(replica, world, 1)
    other = open_store_at(tmp_path / "other")
    world.source.store, world.store = other, other
    world.weights = [bf16_policy(7), stepped(bf16_policy(7), 0.03), stepped(bf16_policy(7), 0.1)]
    publish(other, 0, world.weights[0])
    for version in (1, 2):
        publish(other, version, world.weights[version], parent=version - 1, base=world.weights[version - 1])
    with world.open() as replica:
        replica.bring(2)
        check(replica, world, 2)


@pytest.mark.parametrize("version", [1, 9])
def test_what_the_store_does_not_have_leaves_what_is_served(
    world: ReplicaWorld, replica: Replica, version: int
) -> None:
    for chunk in world.store.manifest(POLICY, 1).chunks:
        (world.chunks / chunk.blake3).unlink()
    with pytest.raises(NotFound, match=r"removed|no version"):
        replica.bring(version)
    check(replica, world, 0)


def test_where_chunks_of_the_cheapest_way_are_gone_another_is_taken(world: ReplicaWorld) -> None:
    with world.open() as replica:
        replica.bring(2)
        fold(world.store, world.weights, 2, 4)
        for digest in world.edge_chunks("fold", 4):
            (world.chunks / digest).unlink()
        replica.bring(4)
        check(replica, world, 4)


def test_a_full_disk_leaves_what_is_served_and_it_goes_on_later(world: ReplicaWorld, replica: Replica) -> None:
    (digest,) = world.edge_chunks("step", 1)
    full_disk = world.folder / "chunks" / f"{digest}.part"
    full_disk.symlink_to("/dev/full")
    with pytest.raises(Unavailable, match="free space"):
        replica.bring(1)
    check(replica, world, 0)
    full_disk.unlink()
    replica.bring(1)
    check(replica, world, 1)


def test_a_store_that_is_away_leaves_what_is_served(world: ReplicaWorld, replica: Replica) -> None:
    world.source.is_away = True
    with pytest.raises(Unavailable):
        replica.bring(1)
    check(replica, world, 0)
    world.source.is_away = False
    replica.bring(1)
    check(replica, world, 1)


def test_chunks_are_fetched_side_by_side(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 2**16, 9 * 2**20, dtype="<u2")
    store = open_store_at(tmp_path / "store")
    publish(store, 0, {"w": tensor_of(noise)})
    together = threading.Barrier(3, timeout=10)
    source = ReplicaSource(store)

    def wait(content: bytes) -> bytes:
        together.wait()
        return content

    source.answer = wait
    with Replica(tmp_path / "replica", source, POLICY, connections=3) as replica:
        replica.bring(0)
        assert np.array_equal(replica.tensors()["w"].data.view("<u2"), noise)
    assert len(source.asked) == 3
