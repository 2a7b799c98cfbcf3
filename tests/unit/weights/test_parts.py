"""Versions that several processes publish, each its own rows."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.errors import InvalidValue, NotFound, Unavailable, WeightsRefused
from tests.each_case import each_case
from tests.unit.weights.examples import POLICY, bf16_policy, fold, publish, refused, same, stepped
from weights.blocks import BLOCK_BYTES, Entry, Rows, blocks_of, cut, root_as, wholes_of
from weights.codec.container import layout_of
from weights.codec.delta import CODEC, apply_staged
from weights.codec.history import History, Moves
from weights.parts import merge_parts, plan_parts, publish_part
from weights.publish import edges_to
from weights.reader import advance_history
from weights.replica.replica import Replica
from weights.retention import YOUNGEST_SECONDS, plan_pruning
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors, root_of
from weights.versions.manifest import NO_HISTORY, Manifest, edges_of_parts, parse_manifest


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return open_store_at(tmp_path / "store")


def large_policy() -> Tensors:
    """A tensor of two blocks, the second of one row, and small ones."""
    columns = 2**20
    words = np.arange((BLOCK_BYTES // 2 // columns + 1) * columns, dtype="<u2")
    return bf16_policy() | {"big": Tensor("BF16", (words.size // columns, columns), words.view(np.uint8))}


def moved(tensors: Tensors, place: int) -> Tensors:
    """One weight of each tensor elsewhere."""
    found = {}
    for name, tensor in tensors.items():
        words = tensor.data.view("<u2").copy()
        words[place % words.size] ^= 1
        found[name] = tensor._replace(data=words.view(np.uint8))
    return found


class Ranks:
    """Processes that publish together; each keeps the history of its part."""

    def __init__(self, store: WeightStore, layout: Sequence[Entry], num_ranks: int) -> None:
        self.store, self.layout = store, layout
        self.names = [[name for name, _, _ in part] for part in plan_parts(layout, num_ranks)]
        self.histories = [History() for _ in self.names]

    def edges(self, version: int, parent: int | None, epoch: int = 0) -> list[Manifest]:
        about = Manifest(
            policy=POLICY, run="run-1", version=version, parent=parent, base_version=None, base_root=None, target_root="",
            codec=CODEC, history=None, history_after=NO_HISTORY, chunks=(), full_bytes=0, num_changed=0, num_weights=0,
            created_at=1000.0, step=version, epoch=epoch, num_samples=32,
        )  # fmt: skip
        return edges_to(self.store, about, self.histories[0], has_base=True)

    def part(self, rank: int, edge: Manifest, base: Tensors, target: Tensors) -> Manifest:
        return self._part(rank, edge, base, target)[0]

    def publish(self, version: int, base: Tensors, target: Tensors, epoch: int = 0) -> Manifest:
        for edge in self.edges(version, version - 1 if version else None, epoch):
            found = [self._part(rank, edge, base, target) for rank in range(len(self.names))]
            stored = merge_parts(self.store, edge, self.layout, [part for part, _ in found])
            for history, (_, moves) in zip(self.histories, found, strict=True):
                advance_history(history, stored, moves)
        return self.store.manifest(POLICY, version)

    def _part(self, rank: int, edge: Manifest, base: Tensors, target: Tensors) -> tuple[Manifest, dict[str, Moves]]:
        old, new, names = blocks_of(base), blocks_of(target), self.names[rank]
        mine = {name: old[name] for name in names if name in old}
        return publish_part(self.store, edge, mine, {name: new[name] for name in names}, self.histories[rank])


@each_case("num_ranks", [1, 2, 4])
def test_every_reader_takes_what_ranks_published_whoever_they_were(tmp_path: Path, num_ranks: int) -> None:
    store = open_store_at(tmp_path / str(num_ranks))
    weights = [bf16_policy()]
    publish(store, 0, weights[0])
    ranks = Ranks(store, layout_of(weights[0]), num_ranks)
    for version in (1, 2, 3):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        manifest = ranks.publish(version, weights[-2], weights[-1], epoch=7)
        assert manifest.target_root == root_of(weights[-1])
        assert parse_manifest(msgspec.json.encode(manifest)) == manifest
        assert [history.digest for history in ranks.histories] == [manifest.history_after] * num_ranks
        assert len(manifest.parts or ()) == num_ranks
    assert store.manifest(POLICY, 3).history not in {None, NO_HISTORY}
    assert same(store.load(POLICY, 3), weights[3])
    held, history = store.load_state(POLICY, 1)
    hops = store.stage_onto(POLICY, 3, 1, held, history)
    assert [hop.manifest.version for hop in hops] == [2, 3]
    for hop in hops:
        apply_staged(held, hop.staged)
    assert same(held, weights[3])
    with Replica(tmp_path / f"replica-{num_ranks}", store, POLICY) as replica:
        for version in (1, 3):
            replica.bring(version)
            assert same(replica.tensors(), weights[version])


@pytest.mark.slow
def test_the_root_of_large_tensors_does_not_depend_on_who_published_them(tmp_path: Path) -> None:
    base = large_policy()
    target, roots = moved(base, 5), set()
    for num_ranks in (1, 3):
        store = open_store_at(tmp_path / str(num_ranks))
        publish(store, 0, base)
        ranks = Ranks(store, layout_of(base), num_ranks)
        manifest = ranks.publish(1, base, target)
        roots.add(manifest.target_root)
        assert "big[32:33]" in {leaf.name for leaf in manifest.leaves}
        ends = Rows("big", 30, 33)
        width = base["big"].data.size // 33
        assert store.load_rows(POLICY, 1, [ends])[ends].data.tobytes() == target["big"].data[30 * width :].tobytes()
        last = moved(target, -1)
        after = publish(store, 2, last, parent=1, base=target)  # one process continues in parts
        assert (after.base_root, len(after.parts or ())) == (manifest.target_root, 1)
        assert after.target_root != root_of(last)
        assert root_as(last, after.target_root) == after.target_root
        with Replica(tmp_path / f"replica-{num_ranks}", store, POLICY) as replica:
            replica.bring(1)
            replica.bring(2)
            assert same(replica.tensors(), last)
        with Replica(tmp_path / f"replica-{num_ranks}", store, POLICY) as replica:
            assert replica.serves == 2
            assert replica.refused == ()
        assert same(store.load(POLICY, 2), last)
        assert [hop.manifest.version for hop in store.stage_onto(POLICY, 2, 1, target)] == [2]
        assert fold(store, [base, target, last], 0, 2).parts is not msgspec.UNSET
    assert len(roots) == 1


def test_a_full_copy_in_parts_is_read_from_nothing(store: WeightStore, tmp_path: Path) -> None:
    weights = [bf16_policy()]
    ranks = Ranks(store, layout_of(weights[0]), 2)
    assert ranks.publish(0, {}, weights[0]).kind == "full"
    weights.append(stepped(weights[0], 0.03))
    ranks.publish(1, weights[0], weights[1])
    assert same(store.load(POLICY, 1), weights[1])
    with Replica(tmp_path / "replica", store, POLICY) as replica:
        replica.bring(1)
        assert same(replica.tensors(), weights[1])


def test_who_needs_some_rows_fetches_only_the_parts_that_hold_them(store: WeightStore) -> None:
    weights = [bf16_policy()]
    ranks = Ranks(store, layout_of(weights[0]), 3)
    ranks.publish(0, {}, weights[0])
    for version in (1, 2):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        ranks.publish(version, weights[-2], weights[-1])
    edges = [store.manifest(POLICY, version) for version in (0, 1, 2)]
    needed = {edges_of_parts(edge)[0].chunks[0].blake3 for edge in edges}
    for chunk in {chunk for edge in edges for chunk in edge.chunks if chunk.blake3 not in needed}:
        store.remove_chunks(POLICY, [chunk.name], 1e12)
    wanted = Rows("embed", 5, 9)
    found = store.load_rows(POLICY, 2, [wanted])[wanted]
    assert (found.dtype, found.shape) == ("BF16", (4, 32))
    assert found.data.tobytes() == weights[2]["embed"].data[5 * 64 : 9 * 64].tobytes()
    for other in (Rows("layer.0.weight", 0, 1), Rows("embed", 60, 65), Rows("no", 0, 1)):
        with pytest.raises(NotFound):
            store.load_rows(POLICY, 2, [other])


def test_rows_are_read_from_versions_before_and_after_the_first_parts(store: WeightStore) -> None:
    weights, wanted = [bf16_policy()], Rows("embed", 62, 64)
    publish(store, 0, weights[0])
    weights.append(stepped(weights[0], 0.03))
    Ranks(store, layout_of(weights[0]), 2).publish(1, weights[0], weights[1])
    for version in (0, 1):
        found = store.load_rows(POLICY, version, [wanted])[wanted]
        assert found.data.tobytes() == weights[version]["embed"].data[62 * 64 :].tobytes()


def test_a_version_exists_once_its_parts_are_merged_and_every_step_can_be_repeated(store: WeightStore) -> None:
    base = bf16_policy()
    target = stepped(base, 0.03)
    publish(store, 0, base)
    ranks = Ranks(store, layout_of(base), 2)
    (edge,) = ranks.edges(1, 0, epoch=7)
    ranks.part(0, edge, base, target)  # its process dies
    assert store.versions(POLICY) == [0]
    parts = [ranks.part(rank, edge, base, target) for rank in (0, 1)]
    assert store.versions(POLICY) == [0]
    merged = merge_parts(store, edge, ranks.layout, parts)
    chunks = store.chunks(POLICY)
    assert merge_parts(store, edge, ranks.layout, parts) == merged
    assert [chunk.name for chunk in store.chunks(POLICY)] == [chunk.name for chunk in chunks]
    assert same(store.load(POLICY, 1), target)


def test_what_a_dead_process_left_is_pruned_and_no_chunk_of_a_part(store: WeightStore) -> None:
    base = bf16_policy()
    targets = [stepped(base, 0.03, seed=seed) for seed in (1, 2)]
    ranks = Ranks(store, layout_of(base), 2)
    ranks.publish(0, {}, base)
    (edge,) = ranks.edges(1, 0, epoch=7)
    left = {chunk.name for chunk in ranks.part(0, edge, base, targets[0]).chunks}
    ranks.publish(1, base, targets[1], epoch=8)
    plan = plan_pruning(store, POLICY, [1], now=time.time() + 2 * YOUNGEST_SECONDS)
    assert plan.unused.keys() == left
    assert store.remove_chunks(POLICY, plan.unused, plan.before) == [*left]
    assert same(store.load(POLICY, 1), targets[1])


def test_parts_that_are_not_one_version_are_refused_by_name_and_nothing_is_published(store: WeightStore) -> None:
    base = bf16_policy()
    target = stepped(base, 0.03)
    publish(store, 0, base)
    ranks = Ranks(store, layout_of(base), 2)
    ((edge,), (later,)) = (ranks.edges(1, 0, epoch) for epoch in (7, 8))
    first, second = (ranks.part(rank, edge, base, target) for rank in (0, 1))
    assert second.parts
    narrow = msgspec.structs.replace(
        second, parts=(msgspec.structs.replace(second.parts[0], leaves=second.leaves[1:]),)
    )
    for parts, code, match in (
        ([first], "parts_gap", "no part holds 'layer.0"),
        ([first, first], "parts_overlap", "parts 0 and 1 both hold 'embed'"),
        ([first, narrow], "parts_gap", "no part holds"),
        ([first, ranks.part(1, later, base, target)], "wrong_part", "part 1 of version 1 is of epoch 8"),
        ([first, msgspec.structs.replace(second, parent=None)], "wrong_part", "of parent None"),
        ([first, msgspec.structs.replace(second, base_root="0")], "wrong_part", "of base_root '0'"),
    ):
        with refused(code, match):
            merge_parts(store, edge, ranks.layout, parts)
    with refused("wrong_part", "which the version has not"):
        merge_parts(store, edge, [("embed", "BF16", (64, 31)), *ranks.layout[1:]], [first, second])
    (gone,) = second.chunks
    store.remove_chunks(POLICY, [gone.name], 1e12)
    with pytest.raises(Unavailable, match="publish its parts again"):
        merge_parts(store, edge, ranks.layout, [first, second])
    assert store.versions(POLICY) == [0]
    assert same(store.load(POLICY, 0), base)


def test_a_part_of_another_base_or_history_is_refused(store: WeightStore) -> None:
    base = bf16_policy()
    target = stepped(base, 0.03)
    ranks = Ranks(store, layout_of(base), 2)
    ranks.publish(0, {}, base)
    (edge,) = ranks.edges(1, 0)
    with refused("wrong_base", "'embed' is not what was published as version 0"):
        ranks.part(0, edge, target, target)
    with refused("wrong_history"):
        ranks.part(0, msgspec.structs.replace(edge, history="abc"), base, target)


def test_a_manifest_whose_parts_do_not_add_up_is_refused(store: WeightStore) -> None:
    weights = bf16_policy()
    manifest = Ranks(store, layout_of(weights), 2).publish(0, {}, weights)
    assert manifest.parts
    first, second = manifest.parts
    for change, match in (
        ({"parts": (first,)}, "chunks"),
        ({"parts": (first, msgspec.structs.replace(second, num_chunks=0))}, "chunks"),
        ({"parts": (first, first)}, "'embed' is there twice"),
        ({"parts": (first, msgspec.structs.replace(second, leaves=()))}, "add up to"),
        ({"target_root": "0" * 64}, "add up to"),
        ({"parts": msgspec.UNSET}, "no parts"),
        ({"schema": 3}, "no such thing as parts"),
    ):
        with pytest.raises(InvalidValue, match=match):
            store.publish(msgspec.structs.replace(manifest, version=1, parent=0, base_version=None, **change))


@each_case(
    ("blocks", "code", "match"),
    [
        (
            [("a[0:2]", "U8", (2, 2**26)), ("a[3:4]", "U8", (1, 2**26))],
            "parts_gap",
            "rows 2 to 3 of 'a' are in no part",
        ),
        (
            [("a[0:1]", "U8", (1, 2**26)), ("a[0:1]", "U8", (1, 2**26))],
            "parts_overlap",
            "'a' is there twice, from row 0",
        ),
        ([("a[0:2]", "U8", (2, 2**26)), ("a[1:2]", "U8", (1, 2**26))], "parts_overlap", "from row 1"),
        ([("a", "U8", (2,)), ("a[0:1]", "U8", (1,))], "parts_overlap", "'a' is there twice"),
        ([("a[0:1]", "U8", (1, 2**26)), ("a[1:2]", "I8", (1, 2**26))], "wrong_part", "rows 1 to 2 of 'a' are I8"),
        ([("a[0:2]", "U8", (2, 2**26))], "wrong_part", "not cut into blocks"),
        ([("a[0:1]", "U8", (1, 2))], "wrong_part", "not cut into blocks"),
        ([("a[0:01]", "U8", (1, 2**27))], "wrong_part", "not cut into blocks"),
        ([(f"a[0:{10**17}]", "U8", (10**17, 1))], "wrong_part", "not cut into blocks"),
        ([("a", "U8", (2, 2**26))], "wrong_part", "not cut into blocks"),
        ([("a", "U8", (-2, 3))], "wrong_part", "cannot have the shape"),
    ],
)
def test_blocks_that_are_not_whole_tensors_are_refused(blocks: list[Entry], code: str, match: str) -> None:
    with refused(code, match):
        wholes_of(blocks)


def test_a_cut_follows_from_dtype_and_shape() -> None:
    entry = ("a", "BF16", (40_000, 2_048))
    blocks = cut(entry)
    assert [name for name, _, _ in blocks] == ["a[0:16384]", "a[16384:32768]", "a[32768:40000]"]
    assert {name: whole[:2] for name, whole in wholes_of(blocks).items()} == {"a": entry[1:]}
    assert cut(("b", "BF16", (16_384, 2_048))) == [("b", "BF16", (16_384, 2_048))]
    with pytest.raises(WeightsRefused, match="one of a block"):
        cut(("a[0:3]", "BF16", (3,)))


def test_parts_are_about_equally_large() -> None:
    layout = [
        ("embed", "BF16", (150_000, 4096)),
        *((f"layer.{number:02}", "BF16", (4096, 4096)) for number in range(64)),
    ]
    parts = plan_parts(layout, 8)
    sizes = [sum(int(np.prod(shape)) for _, _, shape in part) for part in parts]
    assert sorted(block for part in parts for block in part) == sorted(
        block for entry in layout for block in cut(entry)
    )
    assert max(sizes) - min(sizes) <= 2 * BLOCK_BYTES // 2
