import math
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.errors import NotFound, Unavailable, WeightsRefused
from contracts.weights.codec import encode
from contracts.weights.format import Manifest, Tensors, root_of
from contracts.weights.store import FolderWeightStore
from tests.unit.contracts.weights.examples import bf16_policy, publish, publish_chain, same, stepped, tensor_of

POLICY = "reservations"


@pytest.fixture
def store(tmp_path: Path) -> FolderWeightStore:
    return FolderWeightStore(tmp_path / "weights")


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
