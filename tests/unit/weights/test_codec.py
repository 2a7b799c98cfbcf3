import math
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import WeightsRefused
from tests.each_case import each_case
from tests.unit.weights.bits import SPECIALS, WIDTHS, moved, pairs_of_versions, tensor_like
from tests.unit.weights.examples import bf16_policy, refused, same, stepped, tensor_of
from tests.unit.weights.sealed import manifest_of, open_payload
from tests.worlds.versions import decode
from weights.codec.container import DENSE, RAW, SPARSE, UNCHANGED, TensorHead
from weights.codec.delta import Encoded, Staged, apply_staged, encode, split_chunks, stage
from weights.codec.history import History
from weights.cores import limited_to
from weights.tensors import Tensor, Tensors, root_of, words_of
from weights.versions.manifest import CHUNK_BYTES, NO_HISTORY, SCHEMA

BLOCK = 2**18


def heads_of(encoded: Encoded) -> list[TensorHead]:
    return [TensorHead(*head) for head in open_payload(encoded.payload)[0][2]]


def copied(tensors: Tensors) -> Tensors:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}


def raw_bytes(tensors: Tensors) -> int:
    return sum(tensor.data.size for tensor in tensors.values())


def round_trip(base: Tensors | None, target: Tensors, history: History | None = None) -> Encoded:
    encoded = encode(base, target, history)
    before = None if base is None else root_of(base)
    decoded = decode(base, manifest_of(base, encoded, history), encoded.payload, history)
    assert same(decoded, target)
    assert encoded.target_root == root_of(target)
    assert before == (None if base is None else root_of(base))
    for name, tensor in decoded.items():
        assert tensor.data.flags.writeable
        assert not any(np.shares_memory(tensor.data, other.data) for other in (base or {}).values())
        assert not np.shares_memory(tensor.data, target[name].data)
    return encoded


def assert_small(encoded: Encoded, base: Tensors | None, target: Tensors) -> None:
    """No body above its tensor's bytes, no head above 64 bytes (and 10 for each further block); and what a version costs once:
    512 bytes, 512 per dtype for its tables, and the layout if it is another than the base's.
    """
    layout, models, heads = open_payload(encoded.payload)[0]
    for name, head in zip(sorted(target), heads, strict=True):
        assert head[1] <= target[name].data.size
        assert len(msgspec.msgpack.encode(head)) <= 64 + 10 * max(len(head[3]) - 1, 0)
    once = 512 * (1 + len(models)) + (len(msgspec.msgpack.encode(layout)) if layout else 0)
    assert len(encoded.payload) <= raw_bytes(target) + 64 * len(target) + once
    assert layout is not None or base is not None


@pytest.mark.slow
@given(pairs_of_versions())
@settings(max_examples=120, deadline=None)
def test_any_bits_survive_a_delta_and_a_full_copy(versions: tuple[Tensors, Tensors]) -> None:
    base, target = versions
    assert_small(round_trip(base, target), base, target)
    full = round_trip(None, target)
    assert_small(full, None, target)
    assert full.num_changed == sum(words_of(tensor).size for tensor in target.values())


@pytest.mark.slow
@given(
    st.sampled_from(list(WIDTHS)), st.integers(0, 2**32), st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.6]), max_size=5)
)
@settings(max_examples=40, deadline=None)
def test_both_ends_remember_the_same_over_several_versions(dtype: str, seed: int, densities: list[float]) -> None:
    base = {name: tensor_like(dtype, (50, 40), seed + number) for number, name in enumerate("ab")}
    ours, theirs = History(), History()
    for number, density in enumerate(densities):
        target = base | {"a": moved(base["a"], density, seed ^ number)}
        encoded = encode(base, target, ours)
        staged = stage(base, manifest_of(base, encoded, ours), encoded.payload, theirs)
        assert staged.moves.keys() == encoded.moves.keys()
        ours.advance(encoded.moves, encoded.target_root)
        theirs.advance(staged.moves, staged.target_root)
        assert ours.digest == theirs.digest != NO_HISTORY
        for name in target:
            size = words_of(target[name]).size
            assert ours.states(name, size).tolist() == theirs.states(name, size).tolist()
        base_after = copied(base)
        apply_staged(base_after, staged)
        assert same(base_after, target)
        base = target


@each_case("dtype", [dtype for dtype, width in WIDTHS.items() if width])
def test_every_special_pattern_becomes_every_other(dtype: str) -> None:
    specials = np.array(SPECIALS[WIDTHS[dtype]], dtype=f"<u{WIDTHS[dtype]}")
    left, right = np.meshgrid(specials, specials)
    padding = np.zeros(4000, dtype=specials.dtype)
    base = {"weight": tensor_of(np.concatenate([left.reshape(-1), padding]), dtype)}
    target = {"weight": tensor_of(np.concatenate([right.reshape(-1), padding]), dtype)}
    encoded = round_trip(base, target)
    assert encoded.num_changed == len(specials) * (len(specials) - 1)
    assert heads_of(encoded)[0].way == (SPARSE if WIDTHS[dtype] < 8 else DENSE)


@each_case(
    ("density", "ways"),
    [
        (0.0, {UNCHANGED}),
        (0.001, {SPARSE}),
        (0.11, {SPARSE}),
        (0.2, {SPARSE, DENSE}),
        (0.5, {SPARSE, DENSE}),
        (1.0, {DENSE}),
    ],
)
@each_case("dtype", ["BF16", "F32", "I8"])
def test_each_density_travels_as_what_is_smallest(dtype: str, density: float, ways: set[int]) -> None:
    random, width = np.random.default_rng(0), WIDTHS[dtype]
    old = random.integers(0, 256, 20_000 * width).astype(np.uint8).view(f"<u{width}")
    new = old + (random.random(old.size) < density).astype(old.dtype)
    encoded = round_trip({"weight": tensor_of(old, dtype)}, {"weight": tensor_of(new, dtype)})
    assert heads_of(encoded)[0].way in ways
    assert encoded.num_changed == np.count_nonzero(old != new)
    assert len(encoded.payload) < old.nbytes / 2


def test_noise_costs_its_raw_bytes_and_no_more() -> None:
    random_bits = np.random.default_rng(0).integers(0, 2**32, (2, 5000)).astype("<u4")
    base, target = {"weight": tensor_of(random_bits[0])}, {"weight": tensor_of(random_bits[1])}
    for encoded in (round_trip(base, target), round_trip(None, target)):
        assert heads_of(encoded)[0].way == RAW
        assert len(encoded.payload) <= 20_000 + 64


def test_what_moved_lately_costs_less_with_a_history() -> None:
    base = {"weight": tensor_of(np.full(100_000, 0x3C00, "<u2"))}
    random, history = np.random.default_rng(0), History()
    lively = random.random(100_000) < 0.03
    for _ in range(3):
        words = base["weight"].data.view("<u2").copy()
        words[lively & (random.random(100_000) < 0.7)] += 1
        target = {"weight": tensor_of(words)}
        encoded, without = round_trip(base, target, history), round_trip(base, target)
        history.advance(encoded.moves, encoded.target_root)
        base = target
    assert len(encoded.payload) < 0.5 * len(without.payload)


def layout_cases() -> dict[str, Callable[[Tensors], Tensors]]:
    def without(tensors: Tensors, *names: str) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if name not in names}

    return {
        "added": lambda base: base | {"new": base["embed"]},
        "removed": lambda base: without(base, "embed"),
        "all removed": lambda _: {},
        "retied": lambda base: without(base, "layer.0.weight") | {"head": base["embed"]},
        "renamed": lambda base: without(base, "embed") | {"wte": base["embed"]},
        "reshaped": lambda base: base | {"embed": base["embed"]._replace(shape=(32, 64))},
        "retyped": lambda base: base | {"embed": base["embed"]._replace(dtype="F16")},
        "swapped": lambda base: base | {"embed": base["layer.0.weight"], "layer.0.weight": base["embed"]},
        "emptied": lambda base: base | {"embed": Tensor("BF16", (0, 32), np.empty(0, np.uint8))},
    }


@each_case("case", layout_cases())
def test_tensors_come_go_and_change_their_kind(case: str) -> None:
    base = bf16_policy()
    history = History()
    first = encode(base, stepped(base, 0.1), history)
    history.advance(first.moves, first.target_root)
    base = stepped(base, 0.1)
    target = layout_cases()[case](base)
    encoded = round_trip(base, target, history)
    assert_small(encoded, base, target)
    staged = stage(base, manifest_of(base, encoded, history), encoded.payload, history)
    assert set(staged.removed) == base.keys() - target.keys()
    weights = copied(base)
    undo = apply_staged(weights, staged)
    assert same(weights, target)
    apply_staged(weights, undo)
    assert same(weights, base)
    # What did not stay what it was is forgotten, by both.
    history.advance(staged.moves, staged.target_root)
    for name, tensor in target.items():
        kept = name in base and base[name][:2] == tensor[:2] and root_of({"": base[name]}) == root_of({"": tensor})
        assert kept == bool(history.states(name, words_of(tensor).size).any())


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_changes_at_the_ends_of_blocks_and_with_long_gaps_between(size: int) -> None:
    old = np.zeros(size, "<u1")
    new = old.copy()
    # Many at the start make the hazard large, so that what is far behind them is many escapes away.
    new[:900] = 1
    for end in (BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, size - 1):
        new[min(end, size - 1)] = 0xFE
    encoded = round_trip({"weight": tensor_of(old)}, {"weight": tensor_of(new)})
    head = heads_of(encoded)[0]
    assert (head.way, len(head.changes), sum(head.changes)) == (SPARSE, math.ceil(size / BLOCK), int((new > 0).sum()))
    everywhere = {"weight": tensor_of(np.full(size, 7, "<u1"))}
    assert round_trip({"weight": tensor_of(old)}, everywhere).num_changed == size


def test_one_change_of_a_large_tensor_is_found_wherever_it_is() -> None:
    for place in (0, 1, BLOCK - 1, BLOCK, BLOCK + 8):
        base = {"weight": tensor_of(np.zeros(BLOCK + 9, "<u2"))}
        target = copied(base)
        target["weight"].data.view("<u2")[place] = 0x8000
        assert len(round_trip(base, target).payload) < 150


def test_a_fold_leads_to_what_the_chain_leads_to_and_is_smaller() -> None:
    chain = [bf16_policy()]
    for seed in range(1, 5):
        chain.append(stepped(chain[-1], 0.02, seed))
    steps = [round_trip(old, new) for old, new in pairwise(chain)]
    fold = round_trip(chain[0], chain[-1])
    assert fold.target_root == steps[-1].target_root
    assert len(fold.payload) < sum(len(step.payload) for step in steps)


@given(pairs_of_versions())
@settings(max_examples=15, deadline=None)
def test_undo_restores_every_bit_and_redo_sets_it_again(versions: tuple[Tensors, Tensors]) -> None:
    base, target = versions
    encoded = encode(base, target)
    staged = stage(base, manifest_of(base, encoded), encoded.payload)
    weights = copied(base)
    arrays = {name: tensor.data for name, tensor in weights.items()}
    undo = apply_staged(weights, staged)
    assert same(weights, target)
    for name, change in staged.changes.items():
        # A replica's arrays are mapped or on a device: what only changes here and there must stay where it is.
        assert (change.places is None) or weights[name].data is arrays[name]
    redo = apply_staged(weights, undo)
    assert same(weights, base)
    apply_staged(weights, redo)
    assert same(weights, target)


def faults_of(base: Tensors, encoded: Encoded) -> list[tuple[str, dict[str, Any]]]:
    chunk = encoded.chunks[0]
    return [
        ("newer_schema", {"schema": SCHEMA + 1}),
        ("unknown_codec", {"codec": "other/9"}),
        ("wrong_base", {"base_root": "0" * 64}),
        ("wrong_history", {"history": "0" * 32}),
        ("payload_size", {"chunks": (msgspec.structs.replace(chunk, num_bytes=1),)}),
        ("payload_hash", {"chunks": (msgspec.structs.replace(chunk, blake3="0" * 64),)}),
        ("target_root", {"target_root": root_of(base)}),
    ]


def test_refusals_come_in_order_name_themselves_and_change_nothing() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    manifest, root, faults = manifest_of(base, encoded), root_of(base), faults_of(base, encoded)
    # All later faults are present too: the first one must be the one that is named.
    for first in range(len(faults)):
        changes: dict[str, Any] = {}
        for _, change in reversed(faults[first:]):
            changes |= change
        with refused(faults[first][0]):
            stage(base, msgspec.structs.replace(manifest, **changes), encoded.payload)
        assert root_of(base) == root
    with refused("older_schema"):
        stage(base, msgspec.structs.replace(manifest, schema=1), encoded.payload)


def test_another_base_or_none_is_refused() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    for wrong in (None, {}, target, stepped(base, 0.01, seed=9)):
        with refused("wrong_base"):
            decode(wrong, manifest_of(base, encoded), encoded.payload)


def test_a_root_that_the_caller_vouches_for_is_not_computed_again() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    manifest = manifest_of(base, encoded)
    assert stage(base, manifest, encoded.payload, base_root=manifest.base_root).target_root == root_of(target)
    for weights, claimed, code in ((base, "0" * 64, "wrong_base"), (stepped(base, 0.1, 8), manifest.base_root, None)):
        with pytest.raises(WeightsRefused) as refused:
            stage(weights, manifest, encoded.payload, base_root=claimed)
        assert refused.value.code in {code, "target_root", "corrupt_payload"} - ({None} if code is None else set("x"))


def test_a_tensor_that_moves_far_more_than_its_kind_elsewhere_can_be_read() -> None:
    random = np.random.default_rng(0)
    still = np.zeros(12_000_000, "<u1")
    lively = np.zeros((64, 64), "<u1")
    block = random.random((64, 64)) < 0.93
    block[36:] = block[:, 36:] = False
    signs = (random.random(64) < 0.5)[:, None] ^ (random.random(64) < 0.5)
    target_still, target_lively = still.copy(), lively.copy()
    target_still[5] = 1
    target_lively[block] += np.where(signs, 1, 255).astype("<u1")[block]
    base = {"lively": tensor_of(lively), "still": tensor_of(still)}
    round_trip(base, {"lively": tensor_of(target_lively), "still": tensor_of(target_still)})


def test_what_a_sample_did_not_show_has_a_code_too() -> None:
    old = np.full(2**22, 0x3C00, "<u2")
    new = old.copy()
    new[::97] += 1
    # Of every 1,024 weights the first 256 are counted.
    new[[300, 2**21 + 400]] = 0xFFFF, 0x8000
    old[2**20 + 300 : 2**20 + 400] = new[2**20 + 300 : 2**20 + 400] = 0x7F00
    new[2**20 + 350] -= 9
    encoded = round_trip({"weight": tensor_of(old)}, {"weight": tensor_of(new)})
    assert heads_of(encoded)[0].way == SPARSE
    assert encoded.num_changed == np.count_nonzero(old != new)


def test_one_change_beside_what_is_counted_is_sent() -> None:
    base = {"weight": tensor_of(np.zeros(2**22, "<u2"))}
    target = copied(base)
    target["weight"].data.view("<u2")[2**22 - 1] = 7
    encoded = round_trip(base, target)
    assert (encoded.num_changed, heads_of(encoded)[0].way) == (1, SPARSE)
    assert len(encoded.payload) < 500


def test_bytes_and_changes_are_the_same_with_any_number_of_threads() -> None:
    random = np.random.default_rng(0)
    base = {f"layer.{n}": tensor_of(random.normal(0, 0.02, (1200, 700)).astype("<f4")) for n in range(3)}
    base |= {f"half.{n}": tensor_of(random.integers(0, 2**16, (1024, 1024)).astype("<u2")) for n in range(2)}
    target = stepped(base, 0.03)
    target["layer.1"] = stepped({"layer.1": base["layer.1"]}, 0.4)["layer.1"]
    words = words_of(base["half.1"]).reshape(1024, 1024)
    signs = np.outer(*random.choice([1, -1], (2, 1024))) * np.where(words >> 15 == 1, -1, 1)
    target["half.1"] = tensor_of(words + (signs * (random.random(words.shape) < 0.11)).astype("<u2"))
    found = []
    for threads in (1, 2, 4):
        with limited_to(threads):
            encoded, received = encode(base, target), copied(base)
            staged = stage(base, manifest_of(base, encoded), encoded.payload)
            apply_staged(received, staged)
        assert same(received, target)
        found.append((encoded.payload, list(staged.changes), list(staged.moves), list(encoded.moves)))
    assert found[0] == found[1] == found[2]
    assert {head.way for head in heads_of(encoded)} >= {SPARSE, DENSE}
    assert any(head.factor_bytes for head in heads_of(encoded)), "sums of floats are in it"


def peak_of(work: Callable[[], object]) -> int:
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_staging_and_encoding_take_twice_the_largest_tensor_and_what_changed() -> None:
    random = np.random.default_rng(0)
    base = {f"layer.{n}": tensor_of(random.integers(0, 2**16, (1024, 1024)).astype("<u2")) for n in range(4)}
    target, history = stepped(base, 0.01), History()
    first = encode(base, target, history)
    history.advance(first.moves, first.target_root)
    base, target = target, stepped(target, 0.01, seed=2)
    encoded = encode(base, target, history)
    manifest = manifest_of(base, encoded, history)
    largest = 2 * 1024 * 1024
    staged = peak_of(lambda: stage(base, manifest, encoded.payload, history, base_root=manifest.base_root))
    assert staged < 2 * largest + 16 * encoded.num_changed + 2**20
    assert peak_of(lambda: encode(base, target, history)) < 2 * largest + 48 * encoded.num_changed + 2**20
    done: list[Staged] = []
    apply = stage(base, manifest, encoded.payload, history)
    assert peak_of(lambda: done.append(apply_staged(base, apply))) < 16 * encoded.num_changed + 2**18


def test_a_payload_is_cut_into_chunks_that_join_again() -> None:
    payload = bytes(range(256)) * (CHUNK_BYTES // 256) + b"end"
    parts = split_chunks(payload)
    assert [len(part) for part in parts] == [CHUNK_BYTES, 3]
    assert b"".join(parts) == payload
