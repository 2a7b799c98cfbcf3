"""What a weight store promises: in a folder, on objects in memory, on S3."""

import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import obstore
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from obstore.store import MemoryStore

from contracts.errors import Conflict, InvalidValue, NotFound, WeightsRefused
from tests.unit.weights.examples import (
    POLICY,
    bf16_policy,
    fold,
    publish,
    publish_chain,
    same,
    stepped,
    tensor_of,
)
from weights.codec.delta import Staged, apply_staged, encode
from weights.codec.history import History
from weights.publish import publish_fold
from weights.reader import advance_history
from weights.stores.bucket import BucketObjects, open_bucket
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensors, root_of
from weights.versions.layout import Verifier, edge_name
from weights.versions.manifest import CHUNK_BYTES, NO_HISTORY, Chunk, Manifest
from weights.versions.signing import Keyring, Signer

pytestmark = pytest.mark.slow


class Place(Protocol):
    """A store, and the objects in it."""

    def open(self, keyring: Verifier | None = None) -> WeightStore: ...
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, content: bytes) -> None: ...
    def remove(self, path: str) -> None: ...


class FolderPlace:
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, keyring: Verifier | None = None) -> WeightStore:
        return open_store_at(self._root, keyring)

    def read(self, path: str) -> bytes:
        return (self._root / POLICY / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        (self._root / POLICY / path).write_bytes(content)

    def remove(self, path: str) -> None:
        (self._root / POLICY / path).unlink()


class ObjectPlace:
    def __init__(self, objects: BucketObjects) -> None:
        self._objects = objects

    def open(self, keyring: Verifier | None = None) -> WeightStore:
        return WeightStore(self._objects, keyring)

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self._objects.bucket, f"{POLICY}/{path}").bytes())

    def write(self, path: str, content: bytes) -> None:
        obstore.put(self._objects.bucket, f"{POLICY}/{path}", content)

    def remove(self, path: str) -> None:
        obstore.delete(self._objects.bucket, f"{POLICY}/{path}")


def on_s3() -> ObjectPlace:
    if (url := os.environ.get("MILLRACE_WEIGHTS")) is None:
        pytest.skip("no MILLRACE_WEIGHTS: run make test-services")
    place = f"{url}/test-{uuid.uuid4().hex[:12]}"
    return ObjectPlace(open_bucket(place))


EVERY = 10
"""Versions from one full copy to the next, here."""


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.services)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("weights.publish.ANCHOR_EVERY", EVERY)
    match request.param:
        case "folder":
            return FolderPlace(tmp_path / "weights")
        case "memory":
            return ObjectPlace(BucketObjects(MemoryStore(), "memory"))
        case _:
            return on_s3()


@pytest.fixture
def store(place: Place) -> WeightStore:
    return place.open()


def remove_chunks(place: Place, manifest: Manifest) -> None:
    for chunk in manifest.chunks:
        place.remove(f"chunks/{chunk.name}")


def refusal(attempt: Callable[[], object]) -> str:
    with pytest.raises(WeightsRefused) as refused:
        attempt()
    return refused.value.code


def kinds(store: WeightStore, version: int) -> list[str]:
    return [edge.kind for edge in store.edges(POLICY, version)]


# Publishing and loading


def test_a_chain_of_five_loads_at_every_version(store: WeightStore) -> None:
    weights = publish_chain(store, 5, History())
    assert store.versions(POLICY) == [0, 1, 2, 3, 4]
    assert [kinds(store, version) for version in range(5)] == [["full"]] + [["step"]] * 4
    for version, tensors in enumerate(weights):
        assert same(store.load(POLICY, version), tensors)


def test_the_manifest_carries_what_was_learned(store: WeightStore) -> None:
    weights = publish_chain(store, 2, History())
    manifest = store.manifest(POLICY, 1)
    assert (manifest.parent, manifest.base_version, manifest.step, manifest.num_samples) == (0, 0, 1, 32)
    assert (manifest.base_root, manifest.target_root) == (root_of(weights[0]), root_of(weights[1]))
    assert (manifest.history, manifest.history_after) == (NO_HISTORY, History().next_digest(root_of(weights[1])))
    assert (manifest.key, manifest.signature) == (None, None)
    assert manifest.num_weights == sum(tensor.data.size // 2 for tensor in weights[0].values())
    assert 0.02 < manifest.density < 0.04
    assert manifest.ratio > 10
    assert len(store.payload(manifest)) == manifest.payload_bytes


def test_a_payload_of_several_chunks_comes_back_whole_and_from_any_byte_on(store: WeightStore) -> None:
    noise = np.random.default_rng(1).integers(0, 2**16, 9 * 2**20, dtype="<u2")
    manifest = publish(store, 0, {"w": tensor_of(noise)})
    assert [chunk.num_bytes for chunk in manifest.chunks[:2]] == [CHUNK_BYTES] * 2
    assert len(manifest.chunks) == 3
    payload = store.payload(manifest)
    last, start = manifest.chunks[2], manifest.chunks[2].num_bytes - 5
    assert store.chunk(POLICY, last) == payload[2 * CHUNK_BYTES :]
    assert store.chunk(POLICY, last, start) == payload[-5:]
    assert store.chunk(POLICY, last, last.num_bytes) == store.chunk(POLICY, last, last.num_bytes + 1) == b""
    assert np.array_equal(store.load(POLICY, 0)["w"].data.view("<u2"), noise)


def test_a_version_without_a_parent_may_hold_nothing(store: WeightStore) -> None:
    publish(store, 0, {})
    assert store.load(POLICY, 0) == {}


def test_the_base_of_a_step_is_loaded_if_it_is_not_given(store: WeightStore) -> None:
    weights = publish_chain(store, 2, history := History())
    target = stepped(weights[1], 0.03, seed=7)
    assert publish(store, 2, target, parent=1, history=history).kind == "step"
    assert same(store.load(POLICY, 2), target)


def test_publishing_again_changes_nothing(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    first, chunks = store.manifest(POLICY, 1), [chunk.name for chunk in store.chunks(POLICY)]
    assert publish(store, 1, weights[1], parent=0, base=weights[0], created_at=2000.0) == first
    assert publish(store, 1, weights[1], parent=0, base=weights[0], history=History()) == first
    assert [chunk.name for chunk in store.chunks(POLICY)] == chunks


def test_other_weights_under_the_same_version_conflict(store: WeightStore) -> None:
    weights = publish_chain(store, 3)
    chunks = store.chunks(POLICY)
    for version, target, parent in ((1, stepped(weights[0], 0.5), 0), (2, weights[2], 0), (2, weights[2], None)):
        with pytest.raises(Conflict):
            publish(store, version, target, parent=parent, base=None if parent is None else weights[parent])
    with pytest.raises(Conflict):
        publish(store, 0, weights[1])
    assert store.chunks(POLICY) == chunks
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


def test_two_publishers_of_the_same_weights_both_succeed(store: WeightStore) -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.1)
    publish(store, 0, base)
    barrier = threading.Barrier(4)
    stored: list[Manifest] = []

    def offer(created_at: float) -> None:
        barrier.wait()
        stored.append(publish(store, 1, target, parent=0, base=base, created_at=created_at))

    threads = [threading.Thread(target=offer, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored == [store.manifest(POLICY, 1)] * 4


# Anchors


def test_every_tenth_version_is_published_in_full_too(store: WeightStore) -> None:
    weights = publish_chain(store, 2 * EVERY + 1, history := History())
    found = [version for version in store.versions(POLICY) if "full" in kinds(store, version)]
    assert found == [0, EVERY, 2 * EVERY]
    assert kinds(store, EVERY) == ["step", "full"]
    assert [edge.history_after for edge in store.edges(POLICY, EVERY)] == [NO_HISTORY] * 2
    assert {edge.parent for edge in store.edges(POLICY, EVERY)} == {EVERY - 1}
    assert history.digest == NO_HISTORY
    for version in (EVERY - 1, EVERY, 2 * EVERY - 1):
        assert same(store.load(POLICY, version), weights[version])


def test_outside_of_these_tests_it_is_every_twenty_fifth() -> None:
    store = WeightStore(BucketObjects(MemoryStore(), "memory"))
    publish_chain(store, 27)
    assert [version for version in store.versions(POLICY) if "full" in kinds(store, version)] == [0, 25]


def test_a_live_replica_passes_an_anchor_by_its_step(store: WeightStore) -> None:
    weights = publish_chain(store, EVERY + 2, History())
    first, last = EVERY - 2, EVERY + 1
    tensors, history = store.load_state(POLICY, first)
    hops = store.stage_onto(POLICY, last, first, tensors, history)
    assert [(hop.manifest.kind, hop.manifest.version - first) for hop in hops] == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
    ]
    assert same(loaded_onto(store, last, first, tensors, history), weights[last])


def test_an_anchor_that_lost_its_full_copy_gets_it_again_or_the_next_version_is_one(
    place: Place, store: WeightStore
) -> None:
    weights = publish_chain(store, EVERY + 1, History())
    place.remove(f"v{EVERY:06}/full.json")
    assert same(store.load(POLICY, EVERY), weights[EVERY])
    publish(store, EVERY, weights[EVERY], parent=EVERY - 1, base=weights[EVERY - 1])
    assert kinds(store, EVERY) == ["step", "full"]
    place.remove(f"v{EVERY:06}/full.json")
    publish(store, EVERY + 1, stepped(weights[EVERY], 0.03), parent=EVERY, base=weights[EVERY])
    assert kinds(store, EVERY + 1) == ["step", "full"]


def test_branches_count_their_own_lineage(store: WeightStore) -> None:
    weights = publish_chain(store, EVERY - 1)
    newest = EVERY - 2
    side, step = stepped(weights[3], 0.5, seed=77), stepped(weights[newest], 0.1)
    publish(store, EVERY - 1, side, parent=3, base=weights[3])
    publish(store, EVERY, step, parent=newest, base=weights[newest])
    assert (kinds(store, EVERY - 1), kinds(store, EVERY)) == (["step"], ["step"])
    publish(store, EVERY + 1, stepped(weights[newest], 0.1), parent=EVERY, base=step)
    assert kinds(store, EVERY + 1) == ["step", "full"]


# Loading onto


def test_staging_reads_only_what_lies_between_and_changes_nothing(place: Place, store: WeightStore) -> None:
    weights = publish_chain(store, 5, History())
    _, history = store.load_state(POLICY, 2)
    digest, root = history.digest, root_of(weights[2])
    for needless in (0, 1, 2):
        remove_chunks(place, store.manifest(POLICY, needless))
    hops = store.stage_onto(POLICY, 4, 2, weights[2], history)
    assert [hop.manifest.version for hop in hops] == [3, 4]
    assert (history.digest, root_of(weights[2])) == (digest, root)
    assert same(loaded_onto(store, 4, 2, weights[2], history), weights[4])
    with pytest.raises(NotFound, match="removed"):
        store.load(POLICY, 4)


def applied(base: Tensors, staged: Staged) -> Tensors:
    tensors = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in base.items()}
    apply_staged(tensors, staged)
    return tensors


def loaded_onto(store: WeightStore, version: int, base_version: int, base: Tensors, history: History) -> Tensors:
    tensors = base
    for hop in store.stage_onto(POLICY, version, base_version, base, history):
        tensors = applied({} if hop.manifest.base_version is None else tensors, hop.staged)
    return tensors


def test_each_hop_stands_for_itself(store: WeightStore) -> None:
    """Also tensors that travel whole, are added, reshaped or dropped on the way."""
    weights = [bf16_policy()]
    dense = stepped(weights[0], 0.9)
    weights.append(dense | {"new": tensor_of(np.arange(64, dtype="<u2"))})
    weights.append(stepped(weights[1], 0.05))
    del weights[2]["embed"]
    weights.append(stepped(weights[2], 0.05) | {"new": weights[2]["new"]._replace(shape=(8, 8))})
    history = History()
    publish(store, 0, weights[0], history=history)
    for version in (1, 2, 3):
        publish(store, version, weights[version], parent=version - 1, base=weights[version - 1], history=history)
    hops = store.stage_onto(POLICY, 3, 0, weights[0], History(), base_root=root_of(weights[0]))
    tensors, replica = weights[0], History()
    for version, hop in enumerate(hops, start=1):
        tensors = applied(tensors, hop.staged)
        advance_history(replica, hop.manifest, hop.staged.moves)
        assert same(tensors, weights[version])
        assert replica.digest == hop.manifest.history_after
    assert replica.digest == history.digest
    assert same(store.load(POLICY, 3), weights[3])
    assert same(weights[0], bf16_policy())


def test_loading_onto_what_is_no_ancestor_loads_in_full(store: WeightStore) -> None:
    weights = publish_chain(store, 3, History())
    side = stepped(weights[0], 0.5, seed=77)
    publish(store, 3, side, parent=0, base=weights[0])
    _, history = store.load_state(POLICY, 2)
    assert same(loaded_onto(store, 3, 2, weights[2], history), side)
    assert same(loaded_onto(store, 1, 2, weights[2], history), weights[1])
    assert store.stage_onto(POLICY, 3, 2, weights[2], history)[0].manifest.base_version is None
    # Nor can a step coded with history be followed without it.
    publish(store, 4, stepped(weights[2], 0.1), parent=2, base=weights[2], history=history)
    assert store.stage_onto(POLICY, 4, 2, weights[2])[0].manifest.base_version is None


def test_loading_onto_other_weights_than_claimed_is_refused(store: WeightStore) -> None:
    weights = publish_chain(store, 3)
    assert store.stage_onto(POLICY, 1, 1, weights[1]) == []
    assert refusal(lambda: store.stage_onto(POLICY, 2, 1, weights[0])) == "wrong_base"


# Histories


def test_a_publisher_that_lost_its_history_begins_a_new_one_and_everybody_follows(store: WeightStore) -> None:
    weights = publish_chain(store, 4, History())
    weights.append(stepped(weights[3], 0.03, seed=9))
    replica, known = store.load_state(POLICY, 3)
    lost = History()
    assert publish(store, 4, weights[4], parent=3, base=weights[3], history=lost).history == NO_HISTORY
    hops = store.stage_onto(POLICY, 4, 3, replica, known)
    assert [hop.manifest.version for hop in hops] == [4]
    advance_history(known, hops[0].manifest, hops[0].staged.moves)
    assert known.digest == lost.digest != NO_HISTORY


def test_a_history_of_another_version_is_not_used(store: WeightStore) -> None:
    weights = publish_chain(store, 4, history := History())
    side = publish(store, 4, stepped(weights[1], 0.03), parent=1, base=weights[1], history=history)
    assert side.history == NO_HISTORY
    assert side.history_after == history.digest == History().next_digest(side.target_root)
    assert same(store.load(POLICY, 4), stepped(weights[1], 0.03))


def test_publishing_again_with_another_history_goes_on_from_what_is_stored(store: WeightStore) -> None:
    weights = publish_chain(store, 3, History())
    weights.append(stepped(weights[2], 0.03, seed=9))
    restarted = History()
    stored = publish(store, 2, weights[2], parent=1, base=weights[1], history=restarted)
    assert stored.history not in {None, NO_HISTORY}
    assert restarted.digest == NO_HISTORY
    publish(store, 3, weights[3], parent=2, base=weights[2], history=restarted)
    assert same(store.load(POLICY, 3), weights[3])


def test_what_was_stored_with_a_history_that_is_not_used_any_more_is_followed_by_a_new_one(store: WeightStore) -> None:
    weights = publish_chain(store, 3, history := History())
    checkpoint = history.copy()
    weights.append(stepped(weights[2], 0.03, seed=9))
    publish(store, 3, weights[3], parent=2, base=weights[2], history=history)
    fold(store, weights, 0, 2)
    publish(store, 3, weights[3], parent=2, base=weights[2], history=checkpoint)
    assert checkpoint.digest == NO_HISTORY != history.digest


def test_publishing_again_after_a_restart_goes_on_with_the_same_history(store: WeightStore) -> None:
    weights = publish_chain(store, 3, history := History())
    checkpoint = store.load_state(POLICY, 1)[1]
    publish(store, 2, weights[2], parent=1, base=weights[1], history=checkpoint)
    assert checkpoint.to_bytes() == history.to_bytes()


def test_a_history_is_advanced_only_by_what_is_durable(store: WeightStore) -> None:
    weights = publish_chain(store, 3, history := History())
    digest = history.digest
    with pytest.raises(Conflict):
        publish(store, 2, stepped(weights[1], 0.1), parent=1, base=weights[1], history=history)
    with pytest.raises(WeightsRefused):
        publish(store, 3, stepped(weights[1], 0.1), parent=2, base=weights[1], history=history)
    assert history.digest == digest


# Folds


def test_a_replica_far_behind_takes_a_fold(store: WeightStore) -> None:
    weights = publish_chain(store, 9, history := History())
    manifest = fold(store, weights, 1, 8)
    assert (manifest.kind, manifest.base_version, manifest.history, manifest.history_after) == ("fold", 1, None, None)
    assert [edge.kind for edge in store.edges(POLICY, 8)] == ["step", "fold"]
    chain = sum(store.manifest(POLICY, version).payload_bytes for version in range(2, 9))
    assert manifest.payload_bytes < chain
    (hop,) = store.stage_onto(POLICY, 8, 1, weights[1])
    assert hop.manifest == manifest
    assert same(applied(weights[1], hop.staged), weights[8])

    # The step after it needs no history, so whoever came by the fold goes on.
    weights.append(stepped(weights[8], 0.03, seed=9))
    assert publish(store, 9, weights[9], parent=8, base=weights[8], history=history).history == NO_HISTORY
    assert [hop.manifest.kind for hop in store.stage_onto(POLICY, 9, 8, weights[8])] == ["step"]
    assert history.digest == store.manifest(POLICY, 9).history_after


def test_a_fold_to_an_anchor_leaves_the_history_that_everybody_has_there(store: WeightStore) -> None:
    weights = publish_chain(store, EVERY + 1, History())
    assert fold(store, weights, EVERY - 3, EVERY).history_after == NO_HISTORY
    assert kinds(store, EVERY) == ["step", "full", "fold"]


def test_a_fold_that_is_published_again_changes_nothing(store: WeightStore) -> None:
    weights = publish_chain(store, 4)
    first = fold(store, weights, 0, 3)
    assert fold(store, weights, 0, 3) == first
    assert [edge.base_version for edge in store.edges(POLICY, 3)] == [2, 0]


def test_folds_that_cannot_be_are_refused(store: WeightStore) -> None:
    weights = publish_chain(store, 4)
    with pytest.raises(InvalidValue, match="its step is there"):
        fold(store, weights, 2, 3)
    with pytest.raises(InvalidValue, match="earlier"):
        fold(store, weights, 3, 2)
    with pytest.raises(NotFound):
        fold(store, [*weights, weights[0]], 0, 4)

    def other(base: Tensors, target: Tensors) -> object:
        return publish_fold(store, policy=POLICY, base_version=0, base=base, version=3, target=target)

    assert refusal(lambda: other(weights[1], weights[3])) == "wrong_base"
    with pytest.raises(Conflict):
        other(weights[0], weights[2])
    manifest = msgspec.structs.replace(fold(store, weights, 0, 3), version=9, parent=8)
    with pytest.raises(InvalidValue, match="publish its step first"):
        store.publish(manifest, store.payload(store.edges(POLICY, 3)[1]))
    assert store.versions(POLICY) == [0, 1, 2, 3]


# What is refused


def test_a_base_that_is_not_the_parent_is_refused_before_anything_is_written(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    chunks = store.chunks(POLICY)
    assert refusal(lambda: publish(store, 2, stepped(weights[1], 0.1), parent=1, base=weights[0])) == "wrong_base"
    with pytest.raises(NotFound):
        publish(store, 9, stepped(weights[1], 0.1), parent=8, base=weights[1])
    with pytest.raises(InvalidValue):
        publish(store, 0, stepped(weights[1], 0.1), parent=1, base=weights[1])
    with pytest.raises(InvalidValue):
        publish(store, 1, stepped(weights[1], 0.1), parent=1, base=weights[1])
    assert (store.versions(POLICY), store.chunks(POLICY)) == ([0, 1], chunks)


def test_a_payload_that_is_not_the_manifests_is_not_published(store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    encoded = encode(None, weights[0])
    manifest = msgspec.structs.replace(store.manifest(POLICY, 0), version=1)
    chunks = store.chunks(POLICY)
    assert refusal(lambda: store.publish(manifest, encoded.payload[:-1])) == "payload_size"
    assert refusal(lambda: store.publish(manifest, encoded.payload[:-1] + b"\xff")) == "payload_hash"
    assert (store.versions(POLICY), store.chunks(POLICY)) == ([0], chunks)


BAD_FIELDS: list[dict[str, Any]] = [
    {"chunks": (Chunk("../../" + "0" * 58, 3),)},
    {"chunks": (Chunk(blake3(b"abc").hexdigest().upper(), 3),)},
    {"chunks": (Chunk(blake3(b"abc").hexdigest(), 3), Chunk(blake3(b"").hexdigest(), 0))},
    {"chunks": (Chunk(blake3(b"abc").hexdigest(), -3),)},
    {"chunks": (Chunk(blake3(b"abc").hexdigest(), 3, -1),)},
    {"chunks": (Chunk(blake3(b"abc").hexdigest(), 3, 10**18),)},
    {"chunks": (Chunk(blake3(b"abc").hexdigest(), CHUNK_BYTES + 1),)},
    {"base_root": "0" * 64},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_a_manifest_that_could_not_be_read_is_not_published_and_if_it_is_there_it_is_refused(
    place: Place, store: WeightStore, fields: dict[str, Any]
) -> None:
    publish_chain(store, 1)
    manifest = msgspec.structs.replace(store.manifest(POLICY, 0), **fields)
    with pytest.raises(InvalidValue):
        store.publish(msgspec.structs.replace(manifest, version=1), b"abc")
    place.write("v000000/full.json", msgspec.json.encode(manifest))
    assert refusal(lambda: store.load(POLICY, 0)) == "corrupt_manifest"


def test_a_chunk_cannot_be_asked_for_by_a_path(store: WeightStore) -> None:
    with pytest.raises(InvalidValue):
        store.chunk(POLICY, Chunk("../v000000/full.json", 10))


def test_an_absent_version_says_what_exists(store: WeightStore) -> None:
    assert (store.versions(POLICY), store.chunks(POLICY)) == ([], [])
    with pytest.raises(NotFound, match="none"):
        store.manifest(POLICY, 3)
    publish_chain(store, 2)
    for ask in (store.manifest, store.edges, store.load):
        with pytest.raises(NotFound, match=r"\[0, 1\]"):
            ask(POLICY, 3)


@pytest.mark.parametrize("policy", ["..", "../other", "/etc", "", "A", "a/b", ".hidden", "a\n"])
def test_a_policy_name_cannot_leave_its_folder(store: WeightStore, policy: str) -> None:
    chunk = Chunk(blake3(b"").hexdigest(), 1)
    for ask in (
        lambda: store.versions(policy),
        lambda: store.chunks(policy),
        lambda: store.chunk(policy, chunk),
        lambda: store.remove_chunks(policy, [chunk.blake3], 0.0),
    ):
        with pytest.raises(InvalidValue) as refused:
            ask()
        assert refused.value.param == "policy"


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda it: it[:-1] + bytes([it[-1] ^ 1]), "payload_hash"),
        (lambda it: it[:-1], "payload_size"),
        (lambda _: b"", "payload_size"),
    ],
)
def test_a_damaged_chunk_is_named(
    place: Place, store: WeightStore, damage: Callable[[bytes], bytes], code: str
) -> None:
    publish_chain(store, 3)
    digest = store.manifest(POLICY, 1).chunks[0].blake3
    place.write(f"chunks/{digest}", damage(place.read(f"chunks/{digest}")))
    with pytest.raises(WeightsRefused, match=digest) as refused:
        store.load(POLICY, 2)
    assert refused.value.code == code


def test_more_bytes_than_a_chunk_has_are_not_read(place: Place, store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    digest = store.manifest(POLICY, 0).chunks[0].blake3
    place.write(f"chunks/{digest}", place.read(f"chunks/{digest}") + b"!")
    assert same(store.load(POLICY, 0), weights[0])


def test_where_chunks_are_gone_another_way_is_taken(place: Place, store: WeightStore) -> None:
    weights = publish_chain(store, EVERY + 2, History())
    remove_chunks(place, store.edges(POLICY, EVERY)[1])
    assert same(store.load(POLICY, EVERY + 1), weights[EVERY + 1])
    remove_chunks(place, store.manifest(POLICY, EVERY + 1))
    with pytest.raises(NotFound, match="removed"):
        store.load(POLICY, EVERY + 1)
    assert same(store.load(POLICY, EVERY), weights[EVERY])


def noted(store: WeightStore) -> list[tuple[str, str]]:
    """Where junk is met from now on, and why it is junk."""
    found: list[tuple[str, str]] = []
    store.on_junk = lambda place, reason: found.append((place, reason.code))
    return found


def edges_left(store: WeightStore, version: int) -> list[Manifest]:
    return store.survey(POLICY, version)[0]


MISPLACED = [
    ("v000002/step.json", "v000001/step.json", 1),
    ("v000000/full.json", "v000001/full.json", 1),
    ("v000003/fold-000001.json", "v000003/step.json", 3),
    ("v000003/step.json", "v000003/fold-000001.json", 3),
    ("v000003/fold-000001.json", "v000003/fold-000000.json", 3),
    ("v000003/fold-000001.json", "v000003/fold-0000001.json", 3),
    ("v000003/step.json", "v000003/full.json", 3),
]


@pytest.mark.parametrize(("source", "target", "version"), MISPLACED)
def test_a_manifest_in_the_wrong_place_is_refused(
    place: Place, store: WeightStore, source: str, target: str, version: int
) -> None:
    weights = publish_chain(store, 4)
    fold(store, weights, 1, 3)
    junk = noted(store)
    place.write(target, place.read(source))
    left = edges_left(store, version)
    assert junk == [(f"{POLICY}/{target}", "corrupt_manifest")]
    assert target.rpartition("/")[2] not in {edge_name(edge) for edge in left}
    if left:
        assert same(store.load(POLICY, version), weights[version])


def rewritten(place: Place, path: str, **fields: Any) -> None:
    manifest = msgspec.json.decode(place.read(path), type=Manifest)
    place.write(path, msgspec.json.encode(msgspec.structs.replace(manifest, **fields)))


@pytest.mark.parametrize(
    ("path", "fields", "code"),
    [
        ("v000003/step.json", {"schema": 99}, "newer_schema"),
        ("v000003/step.json", {"schema": 1}, "older_schema"),
        ("v000003/step.json", {"policy": "other"}, "corrupt_manifest"),
        ("v000003/step.json", {"parent": 3}, "broken_chain"),
        ("v000003/fold-000001.json", {"base_version": 7}, "broken_chain"),
        ("v000003/fold-000001.json", {"target_root": "0" * 64}, "corrupt_manifest"),
        ("v000003/fold-000001.json", {"parent": 0}, "corrupt_manifest"),
    ],
)
def test_an_edge_that_was_changed_is_refused(
    place: Place, store: WeightStore, path: str, fields: dict[str, Any], code: str
) -> None:
    weights = publish_chain(store, 4)
    fold(store, weights, 1, 3)
    rewritten(place, path, **fields)
    junk = noted(store)
    (left,) = edges_left(store, 3)
    assert {reason for _, reason in junk} == {code}
    assert f"{POLICY}/{path}" == junk[0][0]
    assert path != f"v000003/{edge_name(left)}"
    assert same(store.load(POLICY, 3), weights[3]), "by the other way"


def test_what_is_no_manifest_is_refused_and_what_is_no_edge_is_passed_over(place: Place, store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    for name in ("note.txt", "fold-1.json", "step.json.tmp", "manifest.json"):
        place.write(f"v000001/{name}", b"{")
    assert same(store.load(POLICY, 1), weights[1])
    place.write("v000001/step.json", b"{")
    assert refusal(lambda: store.manifest(POLICY, 1)) == "corrupt_manifest"


def test_a_full_copy_alone_does_not_make_a_version_that_has_a_parent(place: Place, store: WeightStore) -> None:
    publish_chain(store, 2)
    rewritten(place, "v000001/step.json", base_version=None, base_root=None)
    place.write("v000001/full.json", place.read("v000001/step.json"))
    place.remove("v000001/step.json")
    for ask in (store.manifest, store.edges):
        with pytest.raises(NotFound):
            ask(POLICY, 1)


# Signatures


@pytest.fixture
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))


def test_with_a_keyring_only_signed_versions_are_published_and_read(place: Place, signer: Signer) -> None:
    unsigned, strict = place.open(), place.open(Keyring({signer.key_id: signer.public_key}))
    base, target = bf16_policy(), stepped(bf16_policy(), 0.1)
    assert refusal(lambda: publish(strict, 0, base)) == "unsigned"
    assert (strict.versions(POLICY), strict.chunks(POLICY)) == ([], [])
    publish(strict, 0, base, signer=signer)
    assert publish(strict, 1, target, parent=0, base=base, signer=signer).key == signer.key_id
    assert same(strict.load(POLICY, 1), target)

    publish(unsigned, 2, base, parent=1, base=target)
    for ask in (strict.manifest, strict.edges, strict.load):
        assert refusal(partial(ask, POLICY, 2)) == "unsigned"
    publish(strict, 2, base, parent=1, base=target, signer=signer)
    assert same(strict.load(POLICY, 2), base), "what nobody believes is replaced"
    stranger = Signer(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
    publish(unsigned, 3, base, parent=1, base=target, signer=stranger)
    assert refusal(lambda: strict.load(POLICY, 3)) == "unknown_key"


def test_a_changed_manifest_is_a_bad_signature(place: Place, signer: Signer) -> None:
    store = place.open(Keyring({signer.key_id: signer.public_key}))
    weights = [bf16_policy(), stepped(bf16_policy(), 0.1)]
    publish(store, 0, weights[0], signer=signer)
    publish(store, 1, weights[1], parent=0, base=weights[0], signer=signer)
    rewritten(place, "v000001/step.json", num_samples=33)
    assert refusal(lambda: store.load(POLICY, 1)) == "bad_signature"
    assert refusal(lambda: store.stage_onto(POLICY, 1, 0, weights[0])) == "bad_signature"


def test_a_fold_and_an_anchor_are_signed_like_a_step(place: Place, signer: Signer) -> None:
    store = place.open(Keyring({signer.key_id: signer.public_key}))
    weights = [bf16_policy()]
    publish(store, 0, weights[0], signer=signer)
    for version in range(1, EVERY + 1):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        publish(store, version, weights[-1], parent=version - 1, base=weights[-2], signer=signer)
    base, newest = EVERY - 3, EVERY
    publish_fold(
        store,
        policy=POLICY,
        base_version=base,
        base=weights[base],
        version=newest,
        target=weights[newest],
        signer=signer,
    )
    assert [edge.key for edge in store.edges(POLICY, newest)] == [signer.key_id] * 3


# Trainers that write beside each other


def test_each_trainer_writes_under_its_own_epoch(place: Place, store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    target = stepped(weights[0], 0.03, seed=1)
    publish(store, 1, target, parent=0, base=weights[0], epoch=7)
    publish(store, 2, target, parent=0, base=weights[0], epoch=8)
    (base, first, second) = (store.manifest(POLICY, version) for version in range(3))
    assert [chunk.blake3 for chunk in first.chunks] == [chunk.blake3 for chunk in second.chunks]
    assert [chunk.name for chunk in store.chunks(POLICY)] == [
        *(chunk.blake3 for chunk in base.chunks),
        *(f"e000007/{chunk.blake3}" for chunk in first.chunks),
        *(f"e000008/{chunk.blake3}" for chunk in second.chunks),
    ]
    assert (base.schema, first.schema) == (2, 3)

    gone = [chunk.name for chunk in first.chunks]
    assert store.remove_chunks(POLICY, gone, time.time() + 3600) == gone
    assert same(place.open().load(POLICY, 2), target), "what one removes is not what the other wrote"
    with pytest.raises(NotFound, match="removed"):
        store.load(POLICY, 1)


def test_a_version_that_two_trainers_publish_is_that_of_the_first(store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    target = stepped(weights[0], 0.03, seed=1)
    first = publish(store, 1, target, parent=0, base=weights[0], epoch=7)
    assert publish(store, 1, target, parent=0, base=weights[0], epoch=8) == first
    assert same(store.load(POLICY, 1), target)


# What retention needs


def test_chunks_are_removed_by_name_and_age(store: WeightStore) -> None:
    publish_chain(store, 3)
    chunks = store.chunks(POLICY)
    now = time.time()
    assert len(chunks) == 3
    assert all(abs(now - chunk.written_at) < 60 for chunk in chunks)
    assert {chunk.num_bytes for chunk in chunks} == {
        store.manifest(POLICY, number).payload_bytes for number in range(3)
    }
    first, second, third = (chunk.name for chunk in chunks)
    assert store.remove_chunks(POLICY, [first, second], now - 3600) == []
    assert store.remove_chunks(POLICY, [first, "0" * 64, second], now + 3600) == [first, second]
    assert [chunk.name for chunk in store.chunks(POLICY)] == [third]


def test_a_chunk_that_was_removed_is_written_again_with_the_next_version_that_needs_it(store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    removed = [chunk.name for chunk in store.chunks(POLICY)]
    store.remove_chunks(POLICY, removed, time.time() + 3600)
    manifest = msgspec.structs.replace(store.manifest(POLICY, 0), version=1)
    store.publish(manifest, encode(None, weights[0]).payload)
    assert [chunk.name for chunk in store.chunks(POLICY)] == removed
    assert same(store.load(POLICY, 1), weights[0])
