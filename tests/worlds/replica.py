"""A store that answers as told, and one replica's folder."""

from collections.abc import Callable
from pathlib import Path

from contracts.errors import Unavailable
from contracts.faults import FaultPoint, no_fault
from tests.unit.weights.examples import POLICY, chunks_of, publish_chain, same
from weights.codec.history import History
from weights.replica.replica import Replica
from weights.replica.slots import Slot
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import root_of
from weights.versions.manifest import Chunk, Manifest


class ReplicaSource:
    """A store that notes what it is asked for, and can answer otherwise."""

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.asked: list[tuple[str, int]] = []
        self.answer: Callable[[bytes], bytes] = lambda content: content
        self.change: Callable[[Manifest], Manifest] = lambda manifest: manifest
        self.is_away = False

    def edges(self, policy: str, version: int) -> list[Manifest]:
        self._look_away()
        return [self.change(edge) for edge in self.store.edges(policy, version)]

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        return self.store.believed(text, policy, version)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        self._look_away()
        self.asked.append((chunk.blake3, start))
        return self.answer(self.store.chunk(policy, chunk, start))

    def _look_away(self) -> None:
        if self.is_away:
            raise Unavailable("the store is away")


class ReplicaWorld:
    """A store with versions, and one replica's folder."""

    def __init__(self, folder: Path, num_versions: int) -> None:
        self.chunks = folder / "store" / POLICY / "chunks"
        self.store = open_store_at(folder / "store")
        self.source = ReplicaSource(self.store)
        self.history = History()
        self.weights = publish_chain(self.store, num_versions, self.history)
        self.folder = folder / "replica"

    def open(self, fault: FaultPoint = no_fault) -> Replica:
        return Replica(self.folder, self.source, POLICY, connections=1, fault=fault)

    def edge_chunks(self, kind: str, *versions: int) -> set[str]:
        edges = [edge for version in versions for edge in self.store.edges(POLICY, version) if edge.kind == kind]
        return set(chunks_of(edges))

    def slot(self, held: Slot | None) -> Path:
        assert held is not None
        (found,) = (self.folder / "slots").glob(f"{held.version:06d}-*")
        return found


def check(replica: Replica, world: ReplicaWorld, version: int) -> None:
    assert replica.serves == version
    assert replica.held is not None
    assert replica.held.root == root_of(world.weights[version])
    assert same(replica.tensors(), world.weights[version])


def spoil(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)
