import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from contracts.errors import NotFound, Unavailable, WeightsRefused
from contracts.files import MAX_BYTES
from tests.each_case import each_case
from tests.unit.weights.examples import bf16_policy, edge, full_disk, refused, same, tensor_of
from weights.tensors import (
    Tensor,
    Tensors,
    element_width,
    read_safetensors,
    root_of,
    words_of,
    write_safetensors,
)
from weights.versions.manifest import OLDEST_SCHEMA, parse_manifest


def mixed_policy() -> Tensors:
    return bf16_policy() | {
        "bytes": tensor_of(np.arange(3, dtype="<i1")),
        "scalar": tensor_of(np.array(1.5, dtype="<f4")),
        "none": tensor_of(np.zeros((0, 4), dtype="<f8")),
        "a.wide": tensor_of(np.arange(5, dtype="<f8")),
    }


def test_a_written_file_reads_back_with_the_same_root(tmp_path: Path) -> None:
    tensors = mixed_policy()
    write_safetensors(tmp_path / "model.safetensors", tensors)
    for path in (tmp_path / "model.safetensors", tmp_path):
        read = read_safetensors(path)
        assert same(read, tensors)
        assert root_of(read) == root_of(tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_reference_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in mixed_policy().items() if tensor.dtype != "BF16"}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded["scalar"] == np.float32(1.5)
    assert loaded["a.wide"].tolist() == [0, 1, 2, 3, 4]
    assert loaded.keys() == tensors.keys()


def test_we_read_what_the_reference_library_writes(tmp_path: Path) -> None:
    save_file({"half": np.array([1, -2], dtype="<f2")}, tmp_path / "model.safetensors")
    half = read_safetensors(tmp_path)["half"]
    assert (half.dtype, half.shape, half.data.view("<f2").tolist()) == ("F16", (2,), [1, -2])


def test_reading_gives_memory_of_its_own(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", bf16_policy())
    read_safetensors(tmp_path)["embed"].data[:] = 0
    assert same(read_safetensors(tmp_path), bf16_policy())


def test_every_tensor_is_aligned_to_its_elements(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, mixed_policy())
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    widths = {"F64": 8, "F32": 4, "BF16": 2, "I8": 1}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        assert name == "__metadata__" or (8 + length + entry["data_offsets"][0]) % widths[entry["dtype"]] == 0


def test_who_reads_the_old_file_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, bf16_policy())
    content = path.read_bytes()
    with path.open("rb") as reader:
        write_safetensors(path, bf16_policy(seed=1))
        assert reader.read() == content
    assert path.read_bytes() != content


def test_the_root_depends_on_every_part_but_not_on_order() -> None:
    tensors = bf16_policy()
    embed = tensors["embed"]
    flipped = embed.data.copy()
    flipped[-1] ^= 1
    variants = [
        tensors,
        tensors | {"embed": embed._replace(data=flipped)},
        tensors | {"embed": embed._replace(dtype="F16")},
        tensors | {"embed": embed._replace(shape=(32, 64))},
        {name: tensor for name, tensor in tensors.items() if name != "embed"},
        {("other" if name == "embed" else name): tensor for name, tensor in tensors.items()},
    ]
    assert len({root_of(variant) for variant in variants}) == len(variants)
    assert root_of(dict(reversed(tensors.items()))) == root_of(tensors)


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, bf16_policy())
    path.write_bytes(path.read_bytes()[:kept])
    with refused("truncated"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("content", [b"<html>404 not found</html>", b"\x02\0\0\0\0\0\0\0[]", b"PK\x03\x04" * 50])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with refused("not_safetensors"):
        read_safetensors(tmp_path)


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = bf16_policy()
    shard_of = {name: f"model-{ordinal}.safetensors" for ordinal, name in enumerate(tensors)}
    for name, shard in shard_of.items():
        write_safetensors(tmp_path / shard, {name: tensors[name]})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    assert same(read_safetensors(tmp_path), tensors)

    index.write_text(json.dumps({"weight_map": shard_of | {"head": "model-0.safetensors"}}))
    with refused("truncated", "head"):
        read_safetensors(tmp_path)

    (tmp_path / "model-1.safetensors").unlink()
    with refused("truncated", "model-1"):
        read_safetensors(tmp_path)

    index.write_text("not json")
    with refused("not_safetensors"):
        read_safetensors(tmp_path)


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "secret.safetensors", bf16_policy())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"embed": "../secret.safetensors"}}')
    with pytest.raises(WeightsRefused):
        read_safetensors(folder)


def test_absent_weights_are_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(NotFound):
            read_safetensors(path)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, bf16_policy())
    with full_disk("model.safetensors.tmp"), pytest.raises(Unavailable, match="free space"):
        write_safetensors(path, bf16_policy(seed=1))
    assert same(read_safetensors(path), bf16_policy())
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_manifests_that_cannot_be_read_are_refused_by_name() -> None:
    for text, code in (
        (b"{}", "corrupt_manifest"),
        (b'{"sc', "corrupt_manifest"),
        (b'{"schema": 2}', "corrupt_manifest"),
        (b'{"schema": 2, "policy": "\xff"}', "corrupt_manifest"),
        (b'{"schema": 2, "policy": ' + b"[" * 100_000, "corrupt_manifest"),
        (b'{"schema": 1, "tensors": []}', "older_schema"),
        (b'{"schema": 5, "chunks": "elsewhere"}', "newer_schema"),
    ):
        with refused(code):
            parse_manifest(text)


def test_a_written_manifest_reads_back() -> None:
    manifest = edge(7, 4, parent=6)
    assert parse_manifest(msgspec.json.encode(manifest)) == manifest
    assert (manifest.schema, manifest.kind, manifest.payload_bytes) == (OLDEST_SCHEMA, "fold", 10)


@each_case(
    ("num_bytes", "shape", "width"),
    [(0, (0, 4), 1), (8, (), 8), (6, (3,), 2), (12, (3,), 4), (9, (3,), 1), (7, (3,), 1), (16, (32,), 1), (4, (0,), 4)],
)
def test_words_are_as_wide_as_elements_or_a_byte(num_bytes: int, shape: tuple[int, ...], width: int) -> None:
    tensor = Tensor("ANY", shape, np.arange(num_bytes, dtype=np.uint8))
    assert element_width(tensor) == width
    words = words_of(tensor)
    assert (words.itemsize, words.nbytes) == (width, num_bytes)
    assert num_bytes == 0 or np.shares_memory(words, tensor.data)


def test_the_files_are_marked_for_torch(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", bf16_policy())
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_is_no_plain_file_or_too_large_an_index_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with refused("not_safetensors", "no plain file"):
        read_safetensors(tmp_path / "pipe.safetensors")
    with (tmp_path / "model.safetensors.index.json").open("wb") as index:
        index.truncate(MAX_BYTES + 1)
    with refused("not_safetensors", "more than 64 MiB"):
        read_safetensors(tmp_path)
