import random
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from blake3 import blake3
from obstore.store import MemoryStore

from contracts.errors import InvalidValue, NotFound
from tests.unit.weights.examples import POLICY, chunks_of, edge, fold, publish, publish_chain, same, stepped
from weights.codec.history import History
from weights.publish import ANCHOR_EVERY
from weights.retention import YOUNGEST_SECONDS, PruningPlan, plan_pruning
from weights.stores.bucket import BucketObjects
from weights.stores.store import WeightStore
from weights.tensors import Tensors
from weights.versions.manifest import NO_HISTORY, Chunk, Manifest
from weights.versions.route import route_from

pytestmark = pytest.mark.slow


class Pruned(NamedTuple):
    num_chunks: int
    num_bytes: int
    lost: tuple[int, ...]


def prune(store: WeightStore, policy: str, needed: Iterable[int], **bounds: Any) -> Pruned:
    """Plan, and remove all of it at once."""
    plan = plan_pruning(store, policy, needed, **bounds)
    removed = store.remove_chunks(policy, plan.unused, plan.before)
    return Pruned(len(removed), sum(plan.unused[name] for name in removed), plan.lost)


LATER = 2 * YOUNGEST_SECONDS


@pytest.fixture
def store() -> WeightStore:
    return WeightStore(BucketObjects(MemoryStore(), "memory"))


class Chain(NamedTuple):
    store: WeightStore
    weights: list[Tensors]


@pytest.fixture(scope="module")
def long_chain() -> Chain:
    """Three anchors and a little more, made once."""
    store = WeightStore(BucketObjects(MemoryStore(), "memory"))
    return Chain(store, publish_chain(store, 3 * ANCHOR_EVERY + 3, History()))


def copy_chain(chain: Chain, store: WeightStore, length: int) -> list[Tensors]:
    """The first versions of a chain, in another store."""
    for version in range(length):
        for each in chain.store.edges(POLICY, version):
            store.publish(each, chain.store.payload(each))
    return chain.weights[:length]


def pruned(store: WeightStore, needed: Iterable[int], **bounds: float) -> Pruned:
    return prune(store, POLICY, needed, now=time.time() + LATER, **bounds)


def present(store: WeightStore) -> Callable[[int], list[Manifest]]:
    """Edges whose chunks are there."""
    chunks = {chunk.name for chunk in store.chunks(POLICY)}
    return lambda version: [each for each in store.edges(POLICY, version) if chunks.issuperset(chunks_of([each]))]


def is_loadable(store: WeightStore, version: int) -> bool:
    return route_from(present(store), version, {}) is not None


def test_old_versions_go_and_the_newest_stay(store: WeightStore, long_chain: Chain) -> None:
    weights = copy_chain(long_chain, store, 3 * ANCHOR_EVERY + 3)
    chunks = {chunk.name: chunk.num_bytes for chunk in store.chunks(POLICY)}
    outcome = pruned(store, [76])
    kept = {chunk.name for chunk in store.chunks(POLICY)}
    # Full copies of 50 and 75 and everything from there on.
    assert kept == set(chunks_of(each for version in range(50, 78) for each in store.edges(POLICY, version)))
    gone = chunks.keys() - kept
    assert outcome == Pruned(len(gone), sum(chunks[digest] for digest in gone), ())
    assert store.versions(POLICY) == list(range(78))
    for version in (50, 74, 77):
        assert same(store.load(POLICY, version), weights[version])
    for version in (0, 25, 49):
        with pytest.raises(NotFound, match="removed"):
            store.load(POLICY, version)


def test_a_needed_version_stays_loadable_and_has_its_way_up(store: WeightStore, long_chain: Chain) -> None:
    weights = copy_chain(long_chain, store, 3 * ANCHOR_EVERY + 2)
    state = store.load_state(POLICY, 30)
    pruned(store, [30])
    assert same(store.load(POLICY, 30), weights[30])
    assert not is_loadable(store, 24)
    hops = store.stage_onto(POLICY, 76, 30, *state)
    assert [hop.manifest.version for hop in hops] == list(range(31, 77))
    # When nobody holds it any more it goes.
    pruned(store, [])
    assert not is_loadable(store, 30)


def test_a_fold_spares_the_steps_it_covers(store: WeightStore, long_chain: Chain) -> None:
    weights = copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    fold(store, weights, 10, 50)
    history = store.load_state(POLICY, 10)[1]
    outcome = pruned(store, [10], keep_anchors=1)
    assert outcome.num_chunks > 30
    assert [hop.manifest.kind for hop in store.stage_onto(POLICY, 50, 10, weights[10], history)] == ["fold"]
    assert same(store.load(POLICY, 10), weights[10])
    assert not is_loadable(store, 11)


@pytest.mark.slow
def test_what_nobody_can_load_any_more_is_named(store: WeightStore, long_chain: Chain) -> None:
    copy_chain(long_chain, store, 3 * ANCHOR_EVERY + 3)

    def plan(*needed: int, loadable: Iterable[int] = ()) -> PruningPlan:
        return plan_pruning(store, POLICY, needed, now=time.time() + LATER, loadable=loadable)

    assert plan().unloadable == tuple(range(50))
    assert plan(loadable=[3]).unloadable == tuple(range(4, 50))
    kept = set(range(50)) - set(plan(30).unloadable)
    for version in range(50):
        assert (version in kept) == (version >= 25), "from the anchor below it, and the way up"
    pruned(store, [30])
    unloadable, there = plan(30).unloadable, present(store)
    for version in range(78):
        assert (route_from(there, version, {}) is None) == (version in unloadable)


def test_no_way_leads_over_what_is_about_to_disappear(store: WeightStore, long_chain: Chain) -> None:
    copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    (full,) = (each for each in store.edges(POLICY, 25) if each.kind == "full")
    gone = list(chunks_of([full]))
    plan = plan_pruning(store, POLICY, [30], now=time.time() + LATER, keep_anchors=1, gone=gone)
    assert set(gone) <= plan.unused.keys()
    assert not set(chunks_of(store.edges(POLICY, 0))) & plan.unused.keys(), "so it begins one anchor further down"


def test_too_few_anchors_keep_everything(store: WeightStore) -> None:
    publish_chain(store, 4)
    assert pruned(store, []) == Pruned(0, 0, ())
    assert prune(store, "unknown", [], now=0.0) == Pruned(0, 0, ())


def test_what_was_written_within_the_hour_stays(store: WeightStore, long_chain: Chain) -> None:
    copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    now = time.time()
    chunks = store.chunks(POLICY)
    assert prune(store, POLICY, [], now=now + 3000, keep_anchors=1).num_chunks == 0
    assert store.chunks(POLICY) == chunks
    assert prune(store, POLICY, [], now=now + 4000, keep_anchors=1).num_chunks > 0


def test_chunks_that_no_manifest_names_go(store: WeightStore) -> None:
    publish_chain(store, 2)
    chunks = store.chunks(POLICY)
    digest = blake3(b"abandoned").hexdigest()
    store.objects.put(f"{POLICY}/chunks/{digest}", b"abandoned")
    assert pruned(store, []) == Pruned(1, 9, ())
    assert store.chunks(POLICY) == chunks


def test_chunks_that_two_versions_share_stay_while_one_is_needed(store: WeightStore) -> None:
    weights = publish_chain(store, 2)
    publish(store, 2, weights[0])
    assert store.manifest(POLICY, 2).chunks == store.manifest(POLICY, 0).chunks
    assert pruned(store, [], keep_anchors=1).num_chunks == 1
    assert same(store.load(POLICY, 2), weights[0])
    assert same(store.load(POLICY, 0), weights[0])


def test_what_is_lost_already_is_named_and_does_not_stop_the_rest(store: WeightStore, long_chain: Chain) -> None:
    copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    pruned(store, [], keep_anchors=1)
    publish_chain_on(store, 51, 76)
    outcome = pruned(store, [30, 60], keep_anchors=1)
    assert outcome.lost == (30,)
    assert is_loadable(store, 60)


def publish_chain_on(store: WeightStore, start: int, stop: int) -> None:
    tensors, history = store.load_state(POLICY, start - 1)
    for version in range(start, stop):
        target = stepped(tensors, 0.03, seed=version)
        publish(store, version, target, parent=version - 1, base=tensors, history=history)
        tensors = target


def test_at_least_one_anchor_is_kept_for_newcomers(store: WeightStore) -> None:
    publish_chain(store, 2)
    with pytest.raises(InvalidValue, match="keep at least 1 anchor"):
        pruned(store, [], keep_anchors=0)


def test_a_needed_version_that_does_not_exist_stops_it_before_anything_is_removed(
    store: WeightStore, long_chain: Chain
) -> None:
    copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    chunks = store.chunks(POLICY)
    with pytest.raises(NotFound, match="no version 99"):
        pruned(store, [99], keep_anchors=1)
    assert store.chunks(POLICY) == chunks


@pytest.mark.parametrize("fields", [{"target_root": "0" * 64}, {"parent": 60}])
def test_what_a_manifest_that_cannot_be_read_may_name_is_left(
    store: WeightStore, long_chain: Chain, fields: dict[str, object]
) -> None:
    copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    chunks = store.chunks(POLICY)
    full = msgspec.structs.replace(store.edges(POLICY, 50)[1], **fields)
    store.objects.put(f"{POLICY}/v000050/full.json", msgspec.json.encode(full))
    pruned(store, [], keep_anchors=1)
    left = store.chunks(POLICY)
    assert {chunk.name for chunk in full.chunks} <= {chunk.name for chunk in left}
    assert len(left) < len(chunks), "what others name and nobody needs goes all the same"


# Random trees


class Tree:
    """Random versions: steps with history, branches, anchors, and folds to the newest of a branch."""

    def __init__(self, store: WeightStore, dice: random.Random) -> None:
        self._store = store
        self._dice = dice
        self.lineages: dict[int, list[int]] = {}
        """Ancestors of a version, itself included, oldest first."""
        self._histories: dict[int, str] = {}
        self._folded: set[int] = set()
        self._since_full: dict[int, int] = {}
        self._publish(edge(0, None, history_after=NO_HISTORY), 400)
        self.lineages[0], self._histories[0], self._since_full[0] = [0], NO_HISTORY, 0

    def grow(self, num_versions: int) -> None:
        for version in range(1, num_versions):
            newest = version - 1
            parent = newest if self._dice.random() < 0.85 else self._dice.randrange(max(0, newest - 12), version)
            self.lineages[version] = [*self.lineages[parent], version]
            self._since_full[version] = self._since_full[parent] + 1
            is_anchor = self._since_full[version] >= 6
            history = NO_HISTORY if parent in self._folded else self._histories[parent]
            after = NO_HISTORY if is_anchor else f"{history}-{version}"
            self._histories[version] = after
            self._publish(edge(version, parent, parent, history=history, history_after=after), 40)
            if is_anchor:
                self._since_full[version] = 0
                self._publish(edge(version, None, parent, history_after=NO_HISTORY), 400)
            if self._dice.random() < 0.25 and len(self.lineages[version]) > 3:
                base = self._dice.choice(self.lineages[version][:-2])
                self._publish(edge(version, base, parent, history_after=after if is_anchor else None), 60)
                self._folded.add(version)

    def _publish(self, manifest: Manifest, num_bytes: int) -> None:
        payload = self._dice.randbytes(self._dice.randint(num_bytes // 2, num_bytes))
        chunks = tuple(Chunk(blake3(part).hexdigest(), len(part)) for part in (payload[:7], payload[7:]))
        self._store.publish(msgspec.structs.replace(manifest, chunks=chunks), payload)


@pytest.mark.parametrize("seed", range(8))
def test_in_random_trees_every_needed_version_loads_and_every_held_one_can_follow(
    store: WeightStore, seed: int
) -> None:
    dice = random.Random(seed)
    tree = Tree(store, dice)
    tree.grow(45)
    versions = store.versions(POLICY)
    edges = {version: store.edges(POLICY, version) for version in versions}
    needed = sorted(dice.sample(versions[:30], dice.randint(0, 3)))
    fulls = [version for version in versions if any(each.kind == "full" for each in edges[version])]
    newest = range(fulls[-2], 45)
    followed = {
        (held, history, later)
        for held in (*needed, *newest)
        for history in {None, *(each.history_after for each in edges[held])}
        for later in (*needed, *newest)
        if later > held and route_from(edges.__getitem__, later, {held: history}) is not None
    }
    # Whoever came by steps can follow all descendants.
    for held in needed:
        for later in newest:
            assert held not in tree.lineages[later] or (held, edges[held][0].history_after, later) in followed

    removed = pruned(store, needed)
    assert (removed.num_chunks > 0, removed.lost) == (True, ())
    there = present(store)
    left = {version: there(version) for version in versions}
    for version in (*needed, *newest):
        assert route_from(left.__getitem__, version, {}) is not None
    for held, history, later in followed:
        assert route_from(left.__getitem__, later, {held: history}) is not None
    assert pruned(store, needed) == Pruned(0, 0, ())


def test_nothing_is_kept_that_no_way_uses(store: WeightStore) -> None:
    tree = Tree(store, random.Random(3))
    tree.grow(45)
    sizes = []
    for needed in ([5, 17], [17], []):
        pruned(store, needed)
        sizes.append(sum(chunk.num_bytes for chunk in store.chunks(POLICY)))
    assert all(before > after for before, after in pairwise(sizes))


def test_a_publisher_may_run_meanwhile(store: WeightStore, long_chain: Chain) -> None:
    """It finds a chunk that is about to be removed, and names it before that is done."""
    weights = copy_chain(long_chain, store, 2 * ANCHOR_EVERY + 1)
    reached, go_on = threading.Event(), threading.Event()
    now = time.time() + LATER

    class Paused(WeightStore):
        def remove_chunks(self, policy: str, digests: Iterable[str], before: float) -> list[str]:
            reached.set()
            assert go_on.wait(10)
            # In this test the chunks age by the clock of the publisher, not by that of the bucket.
            return super().remove_chunks(policy, digests, before - LATER + 3600)

    outcome: list[Pruned] = []
    pruner = threading.Thread(
        target=lambda: outcome.append(prune(Paused(store.objects), POLICY, [], now=now, keep_anchors=1))
    )
    pruner.start()
    assert reached.wait(10)
    assert isinstance(store.objects, BucketObjects)
    publisher = WeightStore(BucketObjects(store.objects.bucket, "memory", clock=lambda: now))
    publish(publisher, 51, weights[0], parent=None)
    go_on.set()
    pruner.join()
    assert same(store.load(POLICY, 51), weights[0])
