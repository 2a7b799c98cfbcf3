import errno
import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from contracts.errors import Unavailable
from contracts.faults import no_fault
from tests.unit.weights.examples import bf16_policy, publish, refused, same, stepped, tensor_of
from weights.blocks import blocks_of
from weights.codec.delta import encode
from weights.codec.history import History
from weights.mapped import map_safetensors
from weights.reader import advance_history
from weights.replica.model import ModelFile
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors, read_safetensors, root_of, write_safetensors
from weights.versions.manifest import Leaf, Manifest, StoredPart


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return open_store_at(tmp_path / "store")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def policy() -> Tensors:
    """Of several widths, with an empty tensor and a scalar."""
    return bf16_policy() | {
        "empty": tensor_of(np.empty((0, 3), "<u4")),
        "odd": tensor_of(np.arange(7, dtype="<u1")),
        "scalar": tensor_of(np.array(5, "<u8")),
    }


def in_parts(
    manifest: Manifest, weights: Mapping[str, Tensor], *parts: tuple[str, ...]
) -> tuple[Manifest, list[bytes]]:
    """The edge of a full copy as one of parts, and the payload of each."""
    payloads, stored = [], []
    for names in parts:
        encoded = encode(None, {name: weights[name] for name in names})
        payloads.append(encoded.payload)
        stored.append((encoded.chunks, StoredPart(len(encoded.chunks), tuple(Leaf(*leaf) for leaf in encoded.leaves))))
    return msgspec.structs.replace(
        manifest,
        chunks=tuple(chunk for chunks, _ in stored for chunk in chunks),
        parts=tuple(part for _, part in stored),
    ), payloads


def test_a_full_copy_is_written_as_write_safetensors_would(store: WeightStore, path: Path, tmp_path: Path) -> None:
    manifest = publish(store, 0, policy())
    with ModelFile(path, no_fault) as file:
        moves = file.take({}, manifest, store.payload, History(), base_root=None)
    assert moves == {}
    write_safetensors(tmp_path / "other", policy())
    assert path.read_bytes() == (tmp_path / "other").read_bytes()


def test_an_edge_may_be_taken_over_what_the_file_holds_and_the_base_stays(store: WeightStore, path: Path) -> None:
    weights, history, base = [bf16_policy()], History(), path.with_name("base")
    publish(store, 0, weights[0])
    write_safetensors(base, weights[0])
    known, root = map_safetensors(base), root_of(weights[0])
    with ModelFile(path, no_fault) as file:
        for version in (1, 2):
            weights.append(stepped(weights[-1], 0.03, seed=version))
            edge = publish(store, version, weights[-1], parent=version - 1, base=weights[-2], history=history.copy())
            moves = file.take(known, edge, store.payload, history, base_root=root)
            assert moves is not None
            advance_history(history, edge, moves)
            assert history.digest == edge.history_after
            known, root = map_safetensors(path), edge.target_root
            assert same(known, weights[-1])
    assert same(read_safetensors(path), weights[2])
    assert same(read_safetensors(base), weights[0])


def test_a_file_cannot_take_another_layout_or_a_type_whose_bytes_do_not_follow(store: WeightStore, path: Path) -> None:
    first, second = publish(store, 0, bf16_policy()), publish(store, 1, policy())
    with ModelFile(path, no_fault) as file:
        assert file.take({}, first, store.payload, History(), base_root=None) is not None
        assert file.take({}, second, store.payload, History(), base_root=None) is None
    packed = {"w": Tensor("F4", (4,), np.zeros(2, np.uint8))}
    with ModelFile(path.with_name("packed"), no_fault) as file:
        assert file.take({}, publish(store, 2, packed), store.payload, History(), base_root=None) is None


def test_a_file_that_is_there_is_never_written(path: Path) -> None:
    path.write_bytes(b"somebody reads it")
    with pytest.raises(FileExistsError):
        ModelFile(path, no_fault)
    assert path.read_bytes() == b"somebody reads it"


def test_other_bits_than_the_manifest_names_are_refused(store: WeightStore, path: Path) -> None:
    weights = bf16_policy()
    target = stepped(weights, 0.03) | {"embed": weights["embed"]}
    publish(store, 0, weights)
    edge = publish(store, 1, target, parent=0, base=weights)
    rotten = weights | {"embed": bf16_policy(1)["embed"]}
    with ModelFile(path, no_fault) as file, refused("target_root"):
        file.take(rotten, edge, store.payload, History(), base_root=edge.base_root)


def test_a_payload_larger_than_its_manifest_says_is_refused_before_a_byte_is_written(
    store: WeightStore, path: Path
) -> None:
    manifest = publish(store, 0, bf16_policy())
    small = msgspec.structs.replace(manifest, full_bytes=manifest.full_bytes - 1)
    with ModelFile(path, no_fault) as file, refused("corrupt_payload", "its manifest says"):
        file.take({}, small, store.payload, History(), base_root=None)
    assert path.stat().st_size == 0


def test_parts_are_written_where_their_blocks_belong(store: WeightStore, path: Path, tmp_path: Path) -> None:
    with patch("weights.blocks.BLOCK_BYTES", 1000):
        weights = bf16_policy()
        names = [*blocks_of(weights)]
        assert len(names) > 9
        manifest, payloads = in_parts(
            publish(store, 0, weights), blocks_of(weights), tuple(names[1::2]), tuple(names[::2])
        )
        pieces = dict(zip(manifest.parts or (), payloads, strict=True))
        with ModelFile(path, no_fault) as file:
            file.take({}, manifest, lambda edge: pieces[(edge.parts or ())[0]], History(), base_root=None)
    write_safetensors(tmp_path / "other", weights)
    assert path.read_bytes() == (tmp_path / "other").read_bytes()


def test_a_part_with_tensors_that_its_manifest_does_not_name_is_refused(store: WeightStore, path: Path) -> None:
    weights = bf16_policy()
    manifest, _ = in_parts(publish(store, 0, weights), weights, tuple(weights))
    strange = encode(None, {f"strange {name}": tensor for name, tensor in weights.items()})
    forged = msgspec.structs.replace(manifest, chunks=strange.chunks)
    with ModelFile(path, no_fault) as file, refused("corrupt_payload", "other tensors"):
        file.take({}, forged, lambda _: strange.payload, History(), base_root=None)


def test_a_full_disk_is_named_and_short_writes_go_on(store: WeightStore, path: Path) -> None:
    manifest = publish(store, 0, policy())
    real = os.pwrite
    with (
        patch("os.pwrite", lambda file, content, start: real(file, content[:100], start)),
        ModelFile(path, no_fault) as file,
    ):
        file.take({}, manifest, store.payload, History(), base_root=None)
    assert same(read_safetensors(path), policy())
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        ModelFile(path.with_name("full"), no_fault) as file,
        patch("os.pwrite", side_effect=full),
        pytest.raises(Unavailable, match="free space"),
    ):
        file.take({}, manifest, store.payload, History(), base_root=None)
