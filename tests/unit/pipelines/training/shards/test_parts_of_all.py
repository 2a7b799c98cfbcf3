"""All ranks publish a version of whole weights, each its blocks; here every rank is a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from contracts.errors import InvalidSettings, Unavailable
from pipelines.training.checkpoints.checkpoint_names import WEIGHTS
from pipelines.training.checkpoints.tensor_files import TensorFile, open_tensors
from pipelines.training.shards.loading import BaseFiles
from pipelines.training.shards.parts import OwnPart, PartsOfAll, VersionInPieces, publishing_beside
from tests.unit.pipelines.training.builders import tiny_model
from tests.unit.pipelines.training.shards.ranks import saved
from tests.unit.weights.examples import POLICY, same
from weights.publish import described, publish_version
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensor
from weights.versions.manifest import NO_HISTORY, Manifest


class Words:
    """As a `Group`, of its words alone."""

    def __init__(self, rank: int, world: int, held: dict[str, bytes]) -> None:
        self.rank, self.world, self._held = rank, world, held

    def leave(self, name: str, content: bytes) -> None:
        self._held[name] = content

    def take(self, name: str) -> bytes | None:
        return self._held.pop(name, None)


class World:
    """Ranks with one store, and the checkpoints of versions."""

    def __init__(self, folder: Path, model: Any = None) -> None:
        self.folder, self.store = folder, open_store_at(folder / "store")
        self.model = model or tiny_model(tied=False)
        self.files = BaseFiles(saved(self.model, folder / "base"))
        self.weights = {name: each.detach().clone() for name, each in self.model.named_parameters()}
        base = dict(self.files.items())
        publish_version(self.store, base=None, target=base, **about(0, None))
        self.ranks = ExitStack()
        self.parts: PartsOfAll = None  # type: ignore[assignment]  # by `start`

    def start(self, world: int, stores: Mapping[int, Any] | None = None) -> None:
        """As after a restart. `stores`: of some ranks."""
        self.ranks.close()
        words: dict[str, bytes] = {}
        self.owns = owns = [
            OwnPart(self.files, (stores or {}).get(rank, self.store), rank, world) for rank in range(world)
        ]
        groups: list[Any] = [Words(rank, world, words) for rank in range(world)]
        for rank in range(1, world):
            self.ranks.enter_context(publishing_beside(owns[rank], groups[rank]))
        self.stop = threading.Event()
        self.parts = PartsOfAll(owns[0], groups[0], None, self.stop)

    def step(self, version: int) -> VersionInPieces:
        """Change a twentieth of the weights, and save them."""
        torch.manual_seed(version)
        for each in self.weights.values():
            each.mul_(1 + 0.02 * (torch.rand_like(each) < 0.05))
        folder = self.folder / f"checkpoint-{version}"
        folder.mkdir(exist_ok=True)
        save_file(self.weights, folder / WEIGHTS)
        return VersionInPieces(self.files, open_tensors(folder, WEIGHTS))

    def publish(self, version: int, bits: VersionInPieces, parent: int | None = None) -> Manifest:
        known = about(version, version - 1 if parent is None else parent)
        return self.parts.publish(self.store, described(**known), bits, None)

    def has(self, version: int, bits: Mapping[str, Tensor]) -> bool:
        return same(self.store.load(POLICY, version), bits)


def about(version: int, parent: int | None) -> dict[str, Any]:
    fields = {"policy": POLICY, "run": "run-1", "version": version, "parent": parent, "step": version}
    return fields | {"epoch": 1, "num_samples": 8, "created_at": 1000.0 + version}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.ranks.close()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_publishes_its_blocks_and_the_version_is_whole(world: World, size: int) -> None:
    world.start(size)
    for version in (1, 2, 3):
        bits = world.step(version)
        manifest = world.publish(version, bits)
        assert world.has(version, bits)
        parts = manifest.parts
        assert isinstance(parts, tuple)
        assert len(parts) == size
        assert all(part.leaves for part in parts), "each rank has some of it"
        assert (manifest.history == NO_HISTORY) == (version == 1), "later steps are coded with the history of all ranks"


def test_a_start_with_another_number_of_ranks_goes_on_from_what_the_store_has(world: World) -> None:
    world.start(2)
    for version in (1, 2):
        world.publish(version, world.step(version))
    for size, version in ((3, 3), (1, 4), (2, 5)):
        world.start(size)
        bits = world.step(version)
        assert world.publish(version, bits).history == NO_HISTORY
        assert world.has(version, bits)


def test_after_a_start_no_rank_fetches_a_full_copy_where_steps_in_parts_lead_on_from_version_0(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start(2)
    for version in (1, 2):
        world.publish(version, world.step(version))
    fetched, payload = list[Manifest](), world.store.payload

    def watched(edge: Manifest) -> bytes:
        fetched.append(edge)
        return payload(edge)

    monkeypatch.setattr(world.store, "payload", watched)
    world.start(3)
    bits = world.step(3)
    world.publish(3, bits)
    assert {(edge.version, edge.kind) for edge in fetched} == {(1, "step"), (2, "step")}
    assert world.has(3, bits)


def test_ranks_read_each_tensor_of_a_checkpoint_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start(3)
    world.publish(1, world.step(1))
    bits, read, rows = world.step(2), list[str](), TensorFile.rows

    def watched(file: TensorFile, name: str, first: int, last: int) -> torch.Tensor:
        read.append(name)
        return rows(file, name, first, last)

    monkeypatch.setattr(TensorFile, "rows", watched)
    world.publish(2, bits)
    assert sorted(read) == sorted(world.weights)
    assert world.has(2, bits)


def test_a_buffer_that_no_step_changes_is_published_as_the_base_has_it(tmp_path: Path) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    config = Glm4MoeConfig(**sizes, **experts, intermediate_size=16, num_hidden_layers=2)
    world = World(tmp_path, Glm4MoeForCausalLM(config).eval().requires_grad_(requires_grad=False))
    assert any("e_score_correction_bias" in name for name in world.files.untrained)
    with world.ranks:
        world.start(2)
        for version in (1, 2):
            bits = world.step(version)
            world.publish(version, bits)
            assert world.has(version, bits)


def test_a_version_may_begin_at_an_older_one(world: World) -> None:
    world.start(2)
    for version in (1, 2, 3):
        world.publish(version, world.step(version))
    bits = world.step(4)
    assert world.publish(4, bits, parent=1).base_version == 1
    assert world.has(4, bits)
    bits = world.step(5)
    assert world.publish(5, bits).history not in {None, NO_HISTORY}
    assert world.has(5, bits)


def test_an_anchor_is_published_in_full_by_all_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weights.publish.ANCHOR_EVERY", 2)
    world.start(2)
    for version in (1, 2, 3):
        bits = world.step(version)
        world.publish(version, bits)
        assert world.has(version, bits)
    assert [edge.kind for edge in world.store.edges(POLICY, 2)] == ["step", "full"]
    assert world.store.manifest(POLICY, 3).history == NO_HISTORY, "newcomers have none"


class _Full:
    """A store with a full disk, for a while."""

    def __init__(self, store: WeightStore, num_failures: int, error: Exception) -> None:
        self._store, self.left, self._error = store, num_failures, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_part(self, *part: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            raise self._error
        self._store.put_part(*part)


@pytest.mark.parametrize(
    "error", [Unavailable("the disk is full"), InvalidSettings("the key is refused"), MemoryError("no memory")]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_fails_is_named_nothing_is_published_and_the_next_attempt_is_whole(
    world: World, rank: int, error: Exception
) -> None:
    full = _Full(world.store, 0, error)
    world.start(2, {rank: full})
    world.publish(1, world.step(1))
    full.left = 2
    bits = world.step(2)
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"rank {rank}: {type(error).__name__}: {error}"):
            world.publish(2, bits)
        assert world.store.versions(POLICY) == [0, 1]
    again = world.step(2)  # the version was cut again, from newer weights
    world.publish(2, again)
    assert world.has(2, again)
    bits = world.step(3)
    assert world.publish(3, bits).history not in {None, NO_HISTORY}
    assert world.has(3, bits)


def test_what_a_rank_holds_is_compared_with_what_was_published(world: World) -> None:
    world.start(2)
    world.publish(1, world.step(1))
    for blocks in world.owns[0].held.values():
        next(iter(blocks.values())).data[:1] ^= 1
    bits = world.step(2)
    with pytest.raises(Unavailable, match="is not what was published as version 1"):
        world.publish(2, bits)
    world.publish(2, bits)
    assert world.has(2, bits)


def test_a_publication_that_was_repeated_is_the_first_one(world: World) -> None:
    world.start(2)
    bits = world.step(1)
    first = world.publish(1, bits)
    assert world.publish(1, bits) == first
    world.start(3)
    assert world.publish(1, bits) == first
    bits = world.step(2)
    assert world.publish(2, bits).history == NO_HISTORY
    assert world.has(2, bits)


def test_no_rank_is_waited_for_once_the_trainer_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.training.shards.parts.LAST_SECONDS", 0.1)
    world.start(2)
    world.ranks.close()
    world.stop.set()
    with pytest.raises(Unavailable, match="rank 1 did not publish its part before the trainer ended"):
        world.publish(1, world.step(1))
