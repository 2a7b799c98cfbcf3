import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import NotFound, Unavailable
from tests.fakes import Crash
from tests.unit.weights.examples import POLICY, bf16_policy, full_disk, publish, publish_chain, same, stepped
from weights.codec.delta import encode
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "weights" / POLICY


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return open_store_at(tmp_path / "weights")


class Fuse:
    """Stops the process's work before the n-th change it makes to the file system."""

    _never = math.inf  # when the interpreter ends, modules go before hooks
    left: float = _never
    _changes = frozenset({"open", "os.mkdir", "os.rename", "os.utime"})

    def __call__(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self.left is not self._never and event in self._changes:
            self.left -= 1
            if self.left < 0:
                raise Crash


FUSE = Fuse()
sys.addaudithook(FUSE)


@pytest.fixture
def fuse() -> Iterator[Fuse]:
    yield FUSE
    FUSE.left = math.inf


@pytest.mark.slow
def test_a_crash_at_any_step_leaves_no_half_version_and_can_be_repeated(tmp_path: Path, fuse: Fuse) -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.03)
    num_invisible = 0
    for step in range(100):
        store = open_store_at(tmp_path / str(step))
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


def digest_of_step(base: Tensors, target: Tensors) -> str:
    (chunk,) = encode(base, target).chunks
    return chunk.blake3


def test_leftovers_of_a_crash_are_invisible_and_overwritten(store: WeightStore, folder: Path) -> None:
    weights = publish_chain(store, 1)
    target = stepped(weights[0], 0.1)
    digest = digest_of_step(weights[0], target)
    (folder / "v000001").mkdir()
    for path in ("v000001/step.json.tmp", f"chunks/{digest}", f"chunks/{digest}.tmp"):
        (folder / path).write_bytes(b"half")
    assert store.versions(POLICY) == [0]
    with pytest.raises(NotFound):
        store.manifest(POLICY, 1)
    publish(store, 1, target, parent=0, base=weights[0])
    assert same(store.load(POLICY, 1), target)
    assert [path.name for path in (folder / "v000001").iterdir()] == ["step.json"]
    assert len(list((folder / "chunks").iterdir())) == 2


@pytest.mark.parametrize("full", ["chunk", "manifest"])
def test_a_full_disk_leaves_nothing_and_can_be_repeated(store: WeightStore, folder: Path, full: str) -> None:
    weights = publish_chain(store, 1)
    target = stepped(weights[0], 0.1)
    name = f"chunks/{digest_of_step(weights[0], target)}" if full == "chunk" else "v000001/step.json"
    (folder / "v000001").mkdir()
    chunks = store.chunks(POLICY)
    with full_disk(f"{name}.tmp"), pytest.raises(Unavailable, match="free space"):
        publish(store, 1, target, parent=0, base=weights[0])
    assert store.versions(POLICY) == [0]
    assert store.chunks(POLICY) == chunks
    assert list((folder / "v000001").iterdir()) == []
    publish(store, 1, target, parent=0, base=weights[0])
    assert same(store.load(POLICY, 1), target)


def test_a_full_disk_takes_no_chunk_that_somebody_else_needs(store: WeightStore, folder: Path) -> None:
    weights = publish_chain(store, 2)
    (folder / "v000002").mkdir()
    with full_disk("v000002/full.json.tmp"), pytest.raises(Unavailable):
        publish(store, 2, weights[0])
    assert same(store.load(POLICY, 1), weights[1])


def test_a_chunk_that_is_needed_again_counts_as_young(store: WeightStore, folder: Path) -> None:
    weights = publish_chain(store, 1)
    (old,) = (folder / "chunks").iterdir()
    os.utime(old, (1000.0, 1000.0))
    publish(store, 1, weights[0])
    (chunk,) = store.chunks(POLICY)
    assert chunk.written_at > time.time() - 60
    assert store.remove_chunks(POLICY, [chunk.name], time.time() - 3600) == []


def test_leftovers_go_with_what_is_removed(store: WeightStore, folder: Path) -> None:
    publish_chain(store, 1)
    for name, written_at in (("old.tmp", 1000.0), ("young.tmp", 3000.0)):
        (folder / "chunks" / name).write_bytes(b"half")
        os.utime(folder / "chunks" / name, (written_at, written_at))
    assert store.remove_chunks(POLICY, [], 2000.0) == []
    assert sorted(path.name for path in (folder / "chunks").glob("*.tmp")) == ["young.tmp"]


def test_who_prunes_waits_for_who_publishes(store: WeightStore) -> None:
    weights = publish_chain(store, 1)
    (chunk,) = store.chunks(POLICY)
    with store.objects.turn(POLICY):
        pruner = threading.Thread(target=store.remove_chunks, args=(POLICY, [chunk.name], time.time() + 3600))
        pruner.start()
        assert same(store.load(POLICY, 0), weights[0])
    pruner.join()
    assert store.chunks(POLICY) == []
