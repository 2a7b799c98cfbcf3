"""What a weight store promises: on a folder, on objects in memory, on S3."""

import math
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import obstore
import pytest
from obstore.store import MemoryStore

from contracts.errors import Conflict, InvalidValue, NotFound, WeightsRefused
from contracts.weights.format import Tensors, root_of
from contracts.weights.object_store import ObjectWeightStore, open_objects
from contracts.weights.store import MAX_CHAIN, FolderWeightStore, WeightStore
from tests.unit.contracts.weights.examples import bf16_policy, publish, publish_chain, same, stepped

POLICY = "reservations"


class Place(NamedTuple):
    store: WeightStore
    remove_payload: Callable[[int], None]


def in_folder(root: Path) -> Place:
    return Place(FolderWeightStore(root), lambda version: (root / POLICY / f"v{version:06d}" / "payload.bin").unlink())


def in_objects(store: ObjectWeightStore) -> Place:
    def remove(version: int) -> None:
        name = f"payload-{store.manifest(POLICY, version).payload_blake3}.bin"
        obstore.delete(store._objects, f"{POLICY}/v{version:06d}/{name}")

    return Place(store, remove)


def s3_store() -> ObjectWeightStore:
    if (url := os.environ.get("MILLRACE_WEIGHTS")) is None:
        pytest.skip("no MILLRACE_WEIGHTS: run make test-services")
    return open_objects(f"{url}/test-{uuid.uuid4().hex[:12]}")


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.services)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "folder":
            return in_folder(tmp_path / "weights")
        case "memory":
            return in_objects(ObjectWeightStore(MemoryStore(), "memory"))
        case _:
            return in_objects(s3_store())


@pytest.fixture
def store(place: Place) -> WeightStore:
    return place.store


def test_a_chain_of_five_loads_at_every_version(store: WeightStore) -> None:
    weights = publish_chain(store, 5)
    assert store.versions(POLICY) == [0, 1, 2, 3, 4]
    assert [manifest.version for manifest in store.chain(POLICY, 4)] == [4, 3, 2, 1, 0]
    assert [manifest.kind for manifest in store.chain(POLICY, 4)] == ["delta"] * 4 + ["full"]
    for version, tensors in enumerate(weights):
        assert same(store.load(POLICY, version), tensors)


def test_the_manifest_carries_what_was_learned(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    manifest = store.manifest(POLICY, 1)
    assert (manifest.parent, manifest.step, manifest.epoch, manifest.num_samples) == (0, 1, 0, 32)
    assert (manifest.base_root, manifest.target_root) == (root_of(weights[0]), root_of(weights[1]))
    assert (manifest.seal, manifest.signature) == ("none", None)
    assert manifest.num_weights == sum(math.prod(tensor.shape) for tensor in weights[0].values())
    assert 0.02 < manifest.density < 0.04
    assert manifest.ratio > 10
    assert manifest.payload_bytes == len(store.payload(POLICY, 1))


def test_loading_onto_an_ancestor_reads_only_what_lies_between(place: Place) -> None:
    store = place.store
    weights = publish_chain(store, 5)
    before = root_of(weights[2])
    for needless in (0, 1, 2):
        place.remove_payload(needless)
    assert same(store.load_onto(POLICY, 4, 2, weights[2]), weights[4])
    assert root_of(weights[2]) == before
    with pytest.raises(NotFound, match="removed"):
        store.load(POLICY, 4)


def test_loading_onto_what_is_no_ancestor_loads_in_full(store: WeightStore) -> None:
    weights = publish_chain(store, 3)
    side = stepped(weights[0], 0.5, seed=77)
    publish(store, 3, side, parent=0, base=weights[0])
    assert same(store.load_onto(POLICY, 3, 2, weights[2]), side)
    assert same(store.load_onto(POLICY, 1, 2, weights[2]), weights[1])
    assert same(store.load_onto(POLICY, 2, 2, weights[2]), weights[2])


def test_loading_onto_other_weights_than_claimed_is_refused(store: WeightStore) -> None:
    weights = publish_chain(store, 3)
    with pytest.raises(WeightsRefused) as refused:
        store.load_onto(POLICY, 2, 1, weights[0])
    assert refused.value.code == "wrong_base"


def test_every_twentieth_version_is_full(store: WeightStore) -> None:
    weights = publish_chain(store, 2 * MAX_CHAIN + 1)
    kinds = [store.manifest(POLICY, version).kind for version in store.versions(POLICY)]
    assert [version for version, kind in enumerate(kinds) if kind == "full"] == [0, 20, 40]
    assert store.manifest(POLICY, 20).parent == 19
    assert len(store.chain(POLICY, 39)) == MAX_CHAIN
    assert same(store.load(POLICY, 39), weights[39])


def test_publishing_again_changes_nothing(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    first = store.manifest(POLICY, 1)
    again = publish(store, 1, weights[1], parent=0, base=weights[0], created_at=2000.0)
    assert again == first


def test_other_weights_under_the_same_version_conflict(store: WeightStore) -> None:
    weights = publish_chain(store, 3)
    with pytest.raises(Conflict):
        publish(store, 1, stepped(weights[0], 0.5), parent=0, base=weights[0])
    with pytest.raises(Conflict):
        publish(store, 2, weights[2], parent=0, base=weights[0])
    assert same(store.load(POLICY, 2), weights[2])


def test_of_two_publishers_one_wins_and_the_other_is_told(store: WeightStore) -> None:
    base = bf16_policy()
    publish(store, 0, base)
    offers = [stepped(base, 0.5, seed=seed) for seed in range(6)]
    barrier = threading.Barrier(len(offers))
    conflicts: list[Conflict] = []

    def offer(target: Tensors) -> None:
        barrier.wait()
        try:
            publish(store, 1, target, parent=0, base=base)
        except Conflict as conflict:
            conflicts.append(conflict)

    threads = [threading.Thread(target=offer, args=(target,)) for target in offers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conflicts) == len(offers) - 1
    assert sum(same(store.load(POLICY, 1), target) for target in offers) == 1


def test_a_base_that_is_not_the_parent_is_refused_before_anything_is_written(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    with pytest.raises(WeightsRefused) as refused:
        publish(store, 2, stepped(weights[1], 0.1), parent=1, base=weights[0])
    assert refused.value.code == "wrong_base"
    with pytest.raises(NotFound):
        publish(store, 9, stepped(weights[1], 0.1), parent=8, base=weights[1])
    with pytest.raises(InvalidValue):
        publish(store, 0, stepped(weights[1], 0.1), parent=1, base=weights[1])
    assert store.versions(POLICY) == [0, 1]


def test_a_payload_that_is_not_the_manifests_is_not_published(store: WeightStore) -> None:
    publish_chain(store, 1)
    manifest = msgspec.structs.replace(store.manifest(POLICY, 0), version=1)
    with pytest.raises(WeightsRefused) as refused:
        store.publish(manifest, store.payload(POLICY, 0)[:-1])
    assert refused.value.code == "payload_size"
    assert store.versions(POLICY) == [0]


def test_an_absent_version_says_what_exists(store: WeightStore) -> None:
    assert store.versions(POLICY) == []
    with pytest.raises(NotFound, match="none"):
        store.manifest(POLICY, 3)
    publish_chain(store, 2)
    with pytest.raises(NotFound, match=r"\[0, 1\]"):
        store.load(POLICY, 3)


@pytest.mark.parametrize("policy", ["..", "../other", "/etc", "", "A", "a/b", ".hidden", "a\n"])
def test_a_policy_name_cannot_leave_its_folder(store: WeightStore, policy: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        store.versions(policy)
    assert refused.value.param == "policy"
