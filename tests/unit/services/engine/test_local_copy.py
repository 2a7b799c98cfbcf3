"""An engine's copy of a remote store: after a restart only new chunks are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from contracts.errors import Conflict, Unavailable
from policy.weights import tensors_of
from services.engine.engine import Engine
from services.engine.local_copy import LocalCopy
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import make_engine, moved, tiny_model
from weights.replica.replica import Replica
from weights.tensors import root_of
from weights.versions.manifest import Chunk, Manifest

LIVE, CANDIDATE = "live", "candidate"


class FarStore(StoreInMemory):
    """A chain of versions, each near the one before; notes which were fetched, and can be away."""

    def __init__(self, num_versions: int) -> None:
        super().__init__()
        self.fetched: list[int] = []
        self.is_away = False
        self._version_of: dict[str, int] = {}
        for version in range(1, num_versions + 1):
            weights = moved(self.weights[version - 1], version) if version > 1 else tensors_of(tiny_model(1))
            self.add(version, weights, parent=version - 1 if version > 1 else None)
            self._version_of |= {chunk.blake3: version for chunk in self.manifest(POLICY, version).chunks}

    def edges(self, policy: str, version: int) -> list[Manifest]:
        self._look_away()
        return super().edges(policy, version)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        self._look_away()
        self.fetched.append(self._version_of[chunk.blake3])
        return super().chunk(policy, chunk, start)

    def _look_away(self) -> None:
        if self.is_away:
            raise Unavailable("the store is away")


class Run:
    """An engine over a copy, as its process puts them together; `end` as SIGTERM does."""

    def __init__(self, store: FarStore, folder: Path) -> None:
        self.store, self.copy = store, LocalCopy(folder, store, POLICY, "test")
        self.engine: Engine = make_engine(
            self.copy,
            on_swap=lambda record: self.copy.keep(record.version) if record.arm == LIVE else None,
            run="test",
        )

    def bring(self, arm: str, version: int) -> None:
        self.engine.update(arm, version)
        assert root_of(tensors_of(self.engine.arms[arm].model)) == root_of(self.store.weights[version])

    def end(self) -> None:
        self.engine.close()
        self.copy.close()


@pytest.fixture
def store() -> FarStore:
    return FarStore(4)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Those that `start` began."""
    begun: list[Run] = []
    yield begun
    for run in begun:
        run.end()


def start(runs: list[Run], store: FarStore, tmp_path: Path) -> Run:
    if runs:
        runs.pop().end()
    runs.append(Run(store, tmp_path / "replica"))
    return runs[-1]


def test_a_restart_fetches_only_what_is_new(runs: list[Run], store: FarStore, tmp_path: Path) -> None:
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 1)
    run.bring(LIVE, 2)
    assert store.fetched == [1, 2], "once, for serving and for the disk"
    start(runs, store, tmp_path).bring(LIVE, 3)
    assert store.fetched == [1, 2, 3]


def test_what_was_live_is_served_again_without_the_store(runs: list[Run], store: FarStore, tmp_path: Path) -> None:
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 1)
    run.bring(LIVE, 2)
    run = start(runs, store, tmp_path)
    store.is_away = True
    run.bring(LIVE, 2)
    with pytest.raises(Unavailable):
        run.engine.update(LIVE, 3)
    assert run.engine.versions() == {LIVE: 2}


def test_a_candidate_is_fetched_once_also_over_a_restart_and_its_promotion(
    runs: list[Run], store: FarStore, tmp_path: Path
) -> None:
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 1)
    run.bring(CANDIDATE, 2)
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 1)
    run.bring(CANDIDATE, 2)
    run.bring(LIVE, 2)
    run.bring(CANDIDATE, 3)
    assert store.fetched == [1, 2, 3]
    run = start(runs, store, tmp_path)
    store.is_away = True
    run.bring(LIVE, 2)


def test_after_a_way_back_the_disk_follows(runs: list[Run], store: FarStore, tmp_path: Path) -> None:
    run = start(runs, store, tmp_path)
    for version in (1, 2, 3, 2):
        run.bring(LIVE, version)
    run.end()
    runs.clear()
    with Replica(tmp_path / "replica", store, POLICY) as replica:
        assert replica.serves == 2
        assert root_of(replica.tensors()) == root_of(store.weights[2])


def test_a_copy_that_cannot_be_kept_does_not_touch_what_serves(
    runs: list[Run], store: FarStore, tmp_path: Path
) -> None:
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 1)
    store.is_away = True
    with capture_logs() as lines:
        run.copy.keep(4)
        run.copy._keeping.result(timeout=60)
    store.is_away = False
    run.bring(LIVE, 2)
    run = start(runs, store, tmp_path)
    run.bring(LIVE, 2)
    assert [line["event"] for line in lines] == ["engine_copy_not_kept"]
    assert store.fetched == [1, 2]


def test_a_folder_that_another_engine_keeps_is_named(runs: list[Run], store: FarStore, tmp_path: Path) -> None:
    start(runs, store, tmp_path).bring(LIVE, 1)
    other = Run(store, tmp_path / "replica")
    with pytest.raises(Conflict, match="another process uses the replica"):
        other.engine.update(LIVE, 1)
    other.end()
