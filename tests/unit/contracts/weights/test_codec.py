import math
import random
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import WeightsRefused
from contracts.weights.codec import CODEC, Encoded, decode, encode
from contracts.weights.format import Manifest, Tensor, Tensors, parse_manifest, root_of
from tests.unit.contracts.weights.examples import DTYPES, bf16_policy, same, stepped, tensor_of

BF16_SPECIALS = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FC1, 0xFFFF, 0x7F81, 0x0001, 0x8001, 0x3F80]


def manifest_of(base: Tensors | None, target: Tensors, encoded: Encoded) -> Manifest:
    return Manifest(
        policy="reservations",
        run="run-1",
        version=1,
        parent=0,
        kind="full" if base is None else "delta",
        base_root=None if base is None else root_of(base),
        target_root=root_of(target),
        codec=CODEC,
        tensors=encoded.entries,
        payload_blake3=blake3(encoded.payload).hexdigest(),
        payload_bytes=len(encoded.payload),
        full_bytes=sum(tensor.data.size for tensor in target.values()),
        num_changed=encoded.num_changed,
        num_weights=sum(math.prod(tensor.shape) for tensor in target.values()),
        created_at=1000.0,
        step=7,
        epoch=0,
        num_samples=32,
    )


def resealed(manifest: Manifest, payload: bytes) -> Manifest:
    """A manifest that vouches for other bytes, so that a test reaches the decoder behind the hash."""
    return msgspec.structs.replace(manifest, payload_bytes=len(payload), payload_blake3=blake3(payload).hexdigest())


def round_trip(base: Tensors | None, target: Tensors) -> Encoded:
    encoded = encode(base, target)
    before = None if base is None else root_of(base)
    decoded = decode(base, manifest_of(base, target, encoded), encoded.payload)
    assert same(decoded, target)
    assert encoded.target_root == root_of(target)
    assert before == (None if base is None else root_of(base))
    assert all(tensor.data.flags.writeable for tensor in decoded.values())
    for name, tensor in (base or {}).items():
        assert name not in decoded or not np.shares_memory(tensor.data, decoded[name].data)
    return encoded


@st.composite
def tensors_of_bits(draw: st.DrawFn) -> Tensor:
    width = draw(st.sampled_from([1, 2, 4, 8]))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = math.prod(shape)
    if width == 2 and draw(st.booleans()):
        bits = draw(st.lists(st.sampled_from(BF16_SPECIALS), min_size=size, max_size=size))
        return tensor_of(np.array(bits, dtype="<u2").reshape(shape))
    content = draw(st.binary(min_size=size * width, max_size=size * width))
    return Tensor(DTYPES[width], tuple(shape), np.frombuffer(bytearray(content), dtype=np.uint8))


@st.composite
def pairs_of_versions(draw: st.DrawFn) -> tuple[Tensors, Tensors]:
    """Tensors are kept, changed in place, replaced by anything, removed or added."""
    base = draw(st.dictionaries(st.text(max_size=4), tensors_of_bits(), max_size=4))
    target: Tensors = draw(st.dictionaries(st.text(max_size=4), tensors_of_bits(), max_size=2))
    for name, tensor in base.items():
        fate = draw(st.sampled_from(["kept", "changed", "removed", "replaced"]))
        data = tensor.data.copy()
        if fate == "changed":
            for place in draw(st.lists(st.integers(0, max(data.size - 1, 0)), max_size=data.size)):
                data[place] = draw(st.integers(0, 255))
        if fate in {"kept", "changed"}:
            target[name] = tensor._replace(data=data)
        elif fate == "replaced":
            target[name] = draw(tensors_of_bits())
    return base, target


@given(pairs_of_versions())
@settings(max_examples=150, deadline=None)
def test_any_bits_survive_a_delta_and_a_full_version(versions: tuple[Tensors, Tensors]) -> None:
    base, target = versions
    encoded = round_trip(base, target)
    full = round_trip(None, target)
    raw_bytes = sum(tensor.data.size for tensor in target.values())
    assert len(encoded.payload) <= raw_bytes == len(full.payload)
    assert full.num_changed == sum(math.prod(tensor.shape) for tensor in target.values())


@pytest.mark.parametrize(
    ("density", "encoding"),
    [(0.0, "unchanged"), (0.001, "sparse"), (0.02, "sparse"), (0.9, "dense"), (1.0, "dense")],
)
def test_each_density_gets_the_encoding_that_is_smallest(density: float, encoding: str) -> None:
    base = {"weight": tensor_of(np.random.default_rng(0).integers(0, 2**16, (64, 256)).astype("<u2"))}
    target = stepped(base, density)
    encoded = round_trip(base, target)
    assert encoded.entries[0].encoding == encoding
    changed = int(np.count_nonzero(base["weight"].data.view("<u2") != target["weight"].data.view("<u2")))
    assert encoded.num_changed == changed
    manifest = manifest_of(base, target, encoded)
    assert manifest.density == changed / (64 * 256)
    assert manifest.ratio == 64 * 256 * 2 / max(len(encoded.payload), 1)


def test_noise_costs_its_raw_bytes_and_no_more() -> None:
    random_bits = np.random.default_rng(0).integers(0, 2**32, (2, 5000)).astype("<u4")
    base, target = {"weight": tensor_of(random_bits[0])}, {"weight": tensor_of(random_bits[1])}
    encoded = round_trip(base, target)
    assert (encoded.entries[0].encoding, len(encoded.payload)) == ("raw", 20000)


def test_two_percent_of_single_steps_shrink_at_least_forty_times() -> None:
    base = {"weight": tensor_of(np.random.default_rng(0).integers(0, 2**16, 200_000).astype("<u2"))}
    encoded = round_trip(base, stepped(base, 0.02))
    assert 400_000 / len(encoded.payload) > 40


def test_specials_change_into_each_other() -> None:
    pairs = np.array(np.meshgrid(BF16_SPECIALS, BF16_SPECIALS), dtype="<u2").reshape(2, -1)
    padding = np.zeros(5000, dtype="<u2")
    base = {"weight": tensor_of(np.concatenate([pairs[0], padding]))}
    target = {"weight": tensor_of(np.concatenate([pairs[1], padding]))}
    assert round_trip(base, target).num_changed == len(BF16_SPECIALS) * (len(BF16_SPECIALS) - 1)


def test_reshaped_and_retyped_tensors_travel_raw_and_removed_ones_vanish() -> None:
    base = bf16_policy()
    embed, norm = base["embed"], base["layer.0.norm"]
    target = {"embed": embed._replace(shape=(32, 64)), "layer.0.norm": norm._replace(dtype="F16"), "new": norm}
    assert [entry.encoding for entry in round_trip(base, target).entries] == ["raw", "raw", "raw"]


def test_refusals_come_in_order_and_name_themselves() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    manifest = manifest_of(base, target, encoded)
    bad_entry = msgspec.structs.replace(manifest.tensors[0], blake3="0" * 64)
    faults: list[tuple[str, dict[str, Any]]] = [
        ("newer_schema", {"schema": 2}),
        ("unknown_codec", {"codec": "other/9"}),
        ("wrong_base", {"base_root": "0" * 64}),
        ("payload_size", {"payload_bytes": 1}),
        ("payload_hash", {"payload_blake3": "0" * 64}),
        ("tensor_hash", {"tensors": (bad_entry, *manifest.tensors[1:])}),
        ("target_root", {"target_root": "0" * 64}),
    ]
    # All later faults are present too: the first one must be the one that is named.
    for first in range(len(faults)):
        changes: dict[str, Any] = {}
        for _, change in faults[first:]:
            changes |= change
        with pytest.raises(WeightsRefused) as refused:
            decode(base, msgspec.structs.replace(manifest, **changes), encoded.payload)
        assert refused.value.code == faults[first][0]


def test_another_base_or_none_is_refused() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    manifest = manifest_of(base, target, encoded)
    for wrong in (None, {}, target, stepped(base, 0.01, seed=9)):
        with pytest.raises(WeightsRefused) as refused:
            decode(wrong, manifest, encoded.payload)
        assert refused.value.code == "wrong_base"


def test_a_truncated_payload_is_refused_even_when_vouched_for() -> None:
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    manifest = manifest_of(base, target, encoded)
    for kept in (0, 3, len(encoded.payload) // 2, len(encoded.payload) - 1):
        short = encoded.payload[:kept]
        with pytest.raises(WeightsRefused) as refused:
            decode(base, manifest, short)
        assert refused.value.code == "payload_size"
        with pytest.raises(WeightsRefused) as refused:
            decode(base, resealed(manifest, short), short)
        assert refused.value.code == "corrupt_payload"


def test_300_mutations_of_the_payload_never_give_other_weights() -> None:
    chance = random.Random(2)
    base = bf16_policy()
    target = stepped(base, 0.05) | {"layer.0.weight": stepped(base, 1.0)["layer.0.weight"], "new": base["embed"]}
    encoded = encode(base, target)
    assert {entry.encoding for entry in encoded.entries} >= {"sparse", "dense", "raw"}
    manifest, root = manifest_of(base, target, encoded), root_of(base)
    codes = set()
    for _ in range(300):
        payload = bytearray(encoded.payload)
        place = chance.randrange(len(payload))
        if chance.random() < 0.5:
            payload[place] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.5:
            payload[place : place + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(9))
        else:
            payload[place : place + 8] = bytes(8)
        if payload == encoded.payload:
            continue
        with pytest.raises(WeightsRefused):
            decode(base, manifest, bytes(payload))
        try:
            assert same(decode(base, resealed(manifest, bytes(payload)), bytes(payload)), target)
        except WeightsRefused as refused:
            codes.add(refused.code)
        assert root_of(base) == root
    assert codes == {"corrupt_payload", "tensor_hash"}


def leaves_of(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in leaves_of(value, (*path, key))]
    if isinstance(tree, list):
        return [leaf for key, value in enumerate(tree) for leaf in leaves_of(value, (*path, key))]
    return [path]


def test_300_mutations_of_the_manifest_never_give_other_weights() -> None:
    chance = random.Random(3)
    base, target = bf16_policy(), stepped(bf16_policy(), 0.05)
    encoded = encode(base, target)
    text, root = msgspec.json.encode(manifest_of(base, target, encoded)), root_of(base)
    others: list[Any] = [None, -1, 0, 1, 2, 2**31, 2**63, 2**70, 0.5, "", "raw", "dense", "sparse", "unchanged", "F32", "\0", "0" * 64,
              [], [0], {}, True]  # fmt: skip
    codes = set()
    for _ in range(300):
        tree = msgspec.json.decode(text)
        *path, key = chance.choice(leaves_of(tree))
        parent = tree
        for step in path:
            parent = parent[step]
        if chance.random() < 0.15:
            parent.pop(key)
        else:
            parent[key] = chance.choice(others)
        try:
            decoded = decode(base, parse_manifest(msgspec.json.encode(tree)), encoded.payload)
            assert same(decoded, target)
        except WeightsRefused as refused:
            codes.add(refused.code)
        assert root_of(base) == root
    assert codes >= {"corrupt_manifest", "corrupt_payload", "target_root", "tensor_hash", "payload_size", "wrong_base"}


def chunk_for(base: Tensors, encoding: str, chunk: bytes) -> Manifest:
    """A manifest whose one tensor holds `chunk`."""
    encoded = encode(base, stepped(base, 0.05))
    entry = msgspec.structs.replace(encoded.entries[0], encoding=encoding, offset=0, length=len(chunk))
    return resealed(manifest_of(base, base, encoded._replace(entries=(entry,))), chunk)


@pytest.mark.parametrize(("encoding", "head"), [("dense", b""), ("sparse", b"\7\0\0\0"), ("sparse", b"\xff" * 4)])
def test_a_small_payload_cannot_fill_the_memory(encoding: str, head: bytes) -> None:
    base = {"weight": bf16_policy()["embed"]}
    bomb = head + zstandard.compress(bytes(2**27))
    assert len(bomb) < 2**15
    tracemalloc.start()
    try:
        with pytest.raises(WeightsRefused) as refused:
            decode(base, chunk_for(base, encoding, bomb), bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code == "corrupt_payload"
    assert peak < 2**20


@pytest.mark.parametrize("gap", [2047, 2048, 2**32 - 1])
def test_a_change_beyond_the_last_element_is_refused(gap: int) -> None:
    base = {"weight": bf16_policy()["embed"]}
    gaps = np.array([0, gap], dtype="<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T.tobytes() + np.ones((2, 2), dtype=np.uint8).tobytes()
    chunk = (2).to_bytes(4, "little") + zstandard.compress(planes)
    with pytest.raises(WeightsRefused, match="beyond its last element") as refused:
        decode(base, chunk_for(base, "sparse", chunk), chunk)
    assert refused.value.code == "corrupt_payload"


def test_bytes_that_belong_to_no_tensor_are_refused() -> None:
    target = bf16_policy()
    encoded = encode(None, target)
    payload = encoded.payload + b"more"
    with pytest.raises(WeightsRefused, match="4 bytes") as refused:
        decode(None, resealed(manifest_of(None, target, encoded), payload), payload)
    assert refused.value.code == "corrupt_payload"


def test_a_manifest_cannot_give_a_change_another_shape() -> None:
    base = bf16_policy()
    encoded = encode(base, stepped(base, 0.05))
    entries = (msgspec.structs.replace(encoded.entries[0], shape=(32, 64)), *encoded.entries[1:])
    lying = encoded._replace(entries=entries)
    manifest = msgspec.structs.replace(manifest_of(base, base, lying), target_root=lying.target_root)
    with pytest.raises(WeightsRefused) as refused:
        decode(base, manifest, encoded.payload)
    assert refused.value.code == "corrupt_payload"


def test_a_tensor_named_twice_is_refused() -> None:
    target = {"weight": bf16_policy()["embed"]}
    entry = encode(None, target).entries[0]
    payload = target["weight"].data.tobytes() * 2
    twice = Encoded((entry, msgspec.structs.replace(entry, offset=entry.length)), payload, 0)
    manifest = msgspec.structs.replace(manifest_of(None, target, twice), target_root=twice.target_root)
    with pytest.raises(WeightsRefused) as refused:
        decode(None, manifest, payload)
    assert refused.value.code == "target_root"


def test_packed_and_unknown_types_travel_byte_by_byte() -> None:
    base = {"packed": Tensor("F4", (64,), np.arange(32, dtype=np.uint8))}
    changed = base["packed"].data.copy()
    changed[3] ^= 0x0F
    assert round_trip(base, {"packed": base["packed"]._replace(data=changed)}).num_changed == 1
