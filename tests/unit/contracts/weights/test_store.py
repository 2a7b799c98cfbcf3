import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.errors import Conflict, InvalidValue, NotFound, Unavailable, WeightsRefused
from contracts.weights.codec import encode
from contracts.weights.format import Manifest, Tensors, root_of
from contracts.weights.store import MAX_CHAIN, FolderWeightStore
from tests.unit.contracts.weights.examples import bf16_policy, publish, same, stepped, tensor_of

POLICY = "reservations"


@pytest.fixture
def store(tmp_path: Path) -> FolderWeightStore:
    return FolderWeightStore(tmp_path / "weights")


def publish_chain(store: FolderWeightStore, length: int) -> list[Tensors]:
    weights = [bf16_policy()]
    publish(store, 0, weights[0])
    for version in range(1, length):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        publish(store, version, weights[-1], parent=version - 1, base=weights[-2])
    return weights


def test_a_chain_of_five_loads_at_every_version(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 5)
    assert store.versions(POLICY) == [0, 1, 2, 3, 4]
    assert [manifest.version for manifest in store.chain(POLICY, 4)] == [4, 3, 2, 1, 0]
    assert [manifest.kind for manifest in store.chain(POLICY, 4)] == ["delta"] * 4 + ["full"]
    for version, tensors in enumerate(weights):
        assert same(store.load(POLICY, version), tensors)


def test_the_manifest_carries_what_was_learned(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 2)
    manifest = store.manifest(POLICY, 1)
    assert (manifest.parent, manifest.step, manifest.epoch, manifest.num_samples) == (0, 1, 0, 32)
    assert (manifest.base_root, manifest.target_root) == (root_of(weights[0]), root_of(weights[1]))
    assert (manifest.seal, manifest.signature) == ("none", None)
    assert manifest.num_weights == sum(math.prod(tensor.shape) for tensor in weights[0].values())
    assert 0.02 < manifest.density < 0.04
    assert manifest.ratio > 10
    assert manifest.payload_bytes == len(store.payload(POLICY, 1))


def test_loading_onto_an_ancestor_reads_only_what_lies_between(store: FolderWeightStore, tmp_path: Path) -> None:
    weights = publish_chain(store, 5)
    before = root_of(weights[2])
    for needless in (0, 1, 2):
        (tmp_path / "weights" / POLICY / f"v{needless:06d}" / "payload.bin").unlink()
    assert same(store.load_onto(POLICY, 4, 2, weights[2]), weights[4])
    assert root_of(weights[2]) == before
    with pytest.raises(NotFound, match="removed"):
        store.load(POLICY, 4)


def test_loading_onto_what_is_no_ancestor_loads_in_full(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 3)
    side = stepped(weights[0], 0.5, seed=77)
    publish(store, 3, side, parent=0, base=weights[0])
    assert same(store.load_onto(POLICY, 3, 2, weights[2]), side)
    assert same(store.load_onto(POLICY, 1, 2, weights[2]), weights[1])
    assert same(store.load_onto(POLICY, 2, 2, weights[2]), weights[2])


def test_loading_onto_other_weights_than_claimed_is_refused(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 3)
    with pytest.raises(WeightsRefused) as refused:
        store.load_onto(POLICY, 2, 1, weights[0])
    assert refused.value.code == "wrong_base"


def test_every_twentieth_version_is_full(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 2 * MAX_CHAIN + 1)
    kinds = [store.manifest(POLICY, version).kind for version in store.versions(POLICY)]
    assert [version for version, kind in enumerate(kinds) if kind == "full"] == [0, 20, 40]
    assert store.manifest(POLICY, 20).parent == 19
    assert len(store.chain(POLICY, 39)) == MAX_CHAIN
    assert same(store.load(POLICY, 39), weights[39])


def test_publishing_again_changes_nothing(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 2)
    first = store.manifest(POLICY, 1)
    again = publish(store, 1, weights[1], parent=0, base=weights[0], created_at=2000.0)
    assert again == first


def test_other_weights_under_the_same_version_conflict(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 3)
    with pytest.raises(Conflict):
        publish(store, 1, stepped(weights[0], 0.5), parent=0, base=weights[0])
    with pytest.raises(Conflict):
        publish(store, 2, weights[2], parent=0, base=weights[0])
    assert same(store.load(POLICY, 2), weights[2])


def test_of_two_publishers_one_wins_and_the_other_is_told(store: FolderWeightStore) -> None:
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


def test_a_base_that_is_not_the_parent_is_refused_before_anything_is_written(store: FolderWeightStore) -> None:
    weights = publish_chain(store, 2)
    with pytest.raises(WeightsRefused) as refused:
        publish(store, 2, stepped(weights[1], 0.1), parent=1, base=weights[0])
    assert refused.value.code == "wrong_base"
    with pytest.raises(NotFound):
        publish(store, 9, stepped(weights[1], 0.1), parent=8, base=weights[1])
    with pytest.raises(InvalidValue):
        publish(store, 0, stepped(weights[1], 0.1), parent=1, base=weights[1])
    assert store.versions(POLICY) == [0, 1]


def test_a_payload_that_is_not_the_manifests_is_not_published(store: FolderWeightStore) -> None:
    publish_chain(store, 1)
    manifest = msgspec.structs.replace(store.manifest(POLICY, 0), version=1)
    with pytest.raises(WeightsRefused) as refused:
        store.publish(manifest, store.payload(POLICY, 0)[:-1])
    assert refused.value.code == "payload_size"
    assert store.versions(POLICY) == [0]


def test_an_absent_version_says_what_exists(store: FolderWeightStore) -> None:
    assert store.versions(POLICY) == []
    with pytest.raises(NotFound, match="none"):
        store.manifest(POLICY, 3)
    publish_chain(store, 2)
    with pytest.raises(NotFound, match=r"\[0, 1\]"):
        store.load(POLICY, 3)


@pytest.mark.parametrize("policy", ["..", "../other", "/etc", "", "A", "a/b", ".hidden", "a\n"])
def test_a_policy_name_cannot_leave_the_folder(store: FolderWeightStore, policy: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        store.versions(policy)
    assert refused.value.param == "policy"


def test_damage_on_the_disk_is_named(store: FolderWeightStore, tmp_path: Path) -> None:
    publish_chain(store, 3)
    folder = tmp_path / "weights" / POLICY
    payload = folder / "v000001" / "payload.bin"
    payload.write_bytes(payload.read_bytes()[:-1] + b"\xff")
    with pytest.raises(WeightsRefused) as refused:
        store.load(POLICY, 2)
    assert refused.value.code == "payload_hash"

    (folder / "v000001" / "manifest.json").write_bytes((folder / "v000002" / "manifest.json").read_bytes())
    with pytest.raises(WeightsRefused) as refused:
        store.load(POLICY, 2)
    assert refused.value.code == "corrupt_manifest"

    manifest = msgspec.structs.replace(store.manifest(POLICY, 2), parent=2)
    (folder / "v000002" / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(WeightsRefused) as refused:
        store.load(POLICY, 2)
    assert refused.value.code == "broken_chain"


class Crash(BaseException):
    """Not an Exception, so that no handler of the store tidies up after it."""


class Fuse:
    """Stops the process's work before the n-th change it makes to the file system."""

    left: float = math.inf
    _changes = frozenset({"open", "os.mkdir", "os.rename"})

    def __call__(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self.left is not math.inf and event in self._changes:
            self.left -= 1
            if self.left < 0:
                raise Crash


FUSE = Fuse()
sys.addaudithook(FUSE)


@pytest.fixture
def fuse() -> Iterator[Fuse]:
    yield FUSE
    FUSE.left = math.inf


def test_a_crash_at_any_step_leaves_no_half_version_and_can_be_repeated(tmp_path: Path, fuse: Fuse) -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.03)
    num_invisible = 0
    for step in range(100):
        store = FolderWeightStore(tmp_path / str(step))
        publish(store, 0, base)
        fuse.left = step
        try:
            publish(store, 1, target, parent=0, base=base)
            crashed = False
        except Crash:
            crashed = True
        fuse.left = math.inf
        num_invisible += store.versions(POLICY) == [0]
        if store.versions(POLICY) == [0, 1]:
            assert same(store.load(POLICY, 1), target)
        publish(store, 1, target, parent=0, base=base)
        assert same(store.load(POLICY, 1), target)
        if not crashed:
            break
    assert 5 < num_invisible < step < 99


def test_leftovers_of_a_crash_are_invisible_and_overwritten(store: FolderWeightStore, tmp_path: Path) -> None:
    weights = publish_chain(store, 1)
    folder = tmp_path / "weights" / POLICY / "v000001"
    folder.mkdir()
    for name in ("payload.bin", "payload.bin.tmp", "manifest.json.tmp"):
        (folder / name).write_bytes(b"half")
    assert store.versions(POLICY) == [0]
    with pytest.raises(NotFound):
        store.payload(POLICY, 1)
    target = stepped(weights[0], 0.1)
    publish(store, 1, target, parent=0, base=weights[0])
    assert same(store.load(POLICY, 1), target)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "payload.bin"]


@pytest.mark.parametrize("name", ["payload.bin", "manifest.json"])
def test_a_full_disk_leaves_no_half_version(store: FolderWeightStore, tmp_path: Path, name: str) -> None:
    weights = publish_chain(store, 1)
    folder = tmp_path / "weights" / POLICY / "v000001"
    folder.mkdir()
    (folder / f"{name}.tmp").symlink_to("/dev/full")
    target = stepped(weights[0], 0.1)
    with pytest.raises(Unavailable, match="free space"):
        publish(store, 1, target, parent=0, base=weights[0])
    assert store.versions(POLICY) == [0]
    assert list(folder.iterdir()) == []
    publish(store, 1, target, parent=0, base=weights[0])
    assert same(store.load(POLICY, 1), target)


GOLDEN = Path(__file__).parents[3] / "golden" / "weights"


def golden_weights() -> list[Tensors]:
    """What the golden files hold: every encoding, with NaN payloads, infinities and negative zeros among the bits."""
    count = np.arange(1000, dtype="<u8")
    words = (count * 40503 % 65521).astype("<u2")
    base = {name: tensor_of(words) for name in ("dense", "same", "sparse")} | {"raw": tensor_of(words[:6])}
    specials = np.array([0x7FC1, 0x8000, 0xFF80, 0x0000, 0xFFFF], dtype="<u2")
    sparse = np.where(count * 2654435761 % 2**32 < 2**32 // 20, specials[count % 5], words)
    target = {
        "dense": tensor_of(words + (count * 40503 // 7 % 3).astype("<u2")),
        "same": base["same"],
        "sparse": tensor_of(sparse),
        "raw": base["raw"]._replace(shape=(3, 2)),
    }
    return [base, target]


def test_golden_versions_still_decode() -> None:
    store = FolderWeightStore(GOLDEN)
    base, target = golden_weights()
    manifest: Manifest = store.manifest("golden", 1)
    assert {entry.encoding for entry in manifest.tensors} == {"dense", "sparse", "unchanged", "raw"}
    assert same(store.load("golden", 0), base)
    assert same(store.load("golden", 1), target)
    assert manifest.target_root == root_of(target)
    assert len(encode(base, target).payload) <= 1.2 * manifest.payload_bytes
