from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from blake3 import blake3
from safetensors import safe_open

from contracts.errors import Conflict, InvalidValue, NotFound, WeightsRefused
from tests.unit.weights.awkward_weights import MINUS_ZERO, NAN, bf16, make_checkpoint, same, tensor, version
from tests.unit.weights.fake_sglang import FakeSglang, applied_version
from weights.engines.sglang_layout import Checksum, export_delta, export_full
from weights.tensors import Tensors, read_safetensors


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "base", version(0))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "stream"


def publish(source: Path, *numbers: int) -> None:
    for number in numbers:
        export_delta(source, number, number - 1, version(number - 1), version(number))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_delta_is_laid_out_as_slime_writes_it(source: Path) -> None:
    folder = export_delta(source, 7, 6, version(0), version(1))
    assert folder == source / "weight_v000007"
    assert sorted(files(source)) == [
        "weight_v000007/model-00000-of-00001.safetensors",
        "weight_v000007/model.safetensors.index.json",
    ]
    shard = "model-00000-of-00001.safetensors"
    assert json.loads((folder / "model.safetensors.index.json").read_text()) == {
        "metadata": {
            "version": "000007",
            "base_version": "000006",
            "delta_encoding": "xor",
            "compression_format": "zstd",
            "checksum_format": "blake3",
        },
        "weight_map": {"embed.weight": shard, "layer.0.query": shard},
    }
    with safe_open(folder / shard, framework="np") as opened:
        metadata = opened.metadata()
        for name in ("embed.weight", "layer.0.query"):
            stored = opened.get_tensor(name)
            assert stored.dtype == np.uint8
            assert stored.ndim == 1
            difference = np.frombuffer(zstandard.ZstdDecompressor().decompress(stored.tobytes()), dtype=np.uint8)
            assert np.array_equal(difference ^ version(0)[name].data, version(1)[name].data)
            assert metadata[name] == blake3(version(1)[name].data.tobytes()).hexdigest()


@pytest.mark.parametrize("checksum", ["blake3", "adler32"])
def test_a_server_that_follows_has_every_bit(base: Path, source: Path, tmp_path: Path, checksum: Checksum) -> None:
    server, local = FakeSglang(base), tmp_path / "local"
    for number in (1, 2, 3):
        export_delta(source, number, number - 1, version(number - 1), version(number), checksum=checksum)
        server.pull(local, source, number)
        assert same(read_safetensors(local), version(number))
        assert applied_version(local) == number
    assert read_safetensors(local)["layer.0.query"].data.view("<u2")[1] == MINUS_ZERO
    assert (local / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_a_server_that_is_late_walks_the_whole_stream(base: Path, source: Path, tmp_path: Path) -> None:
    publish(source, 1, 2, 3)
    FakeSglang(base).pull(tmp_path / "local", source, 3)
    assert same(read_safetensors(tmp_path / "local"), version(3))


def test_any_dtype_and_bit_pattern_travels(source: Path, tmp_path: Path) -> None:
    old: Tensors = {
        "quantised": tensor("I8", np.arange(-64, 64, dtype=np.int8)),
        "wide": tensor("F32", np.linspace(-1, 1, 64, dtype="<f4")),
        "half": tensor("BF16", bf16(4, 8, 8)),
        "empty": tensor("BF16", bf16(5, 0, 8)),
    }
    new = dict(old)
    new["quantised"] = tensor("I8", np.arange(64, -64, -1, dtype=np.int8))
    new["wide"] = tensor("F32", np.array([0x7FC01234, 0xFF800000, 0x80000000, 1] * 16, dtype="<u4"))
    new["half"] = tensor("BF16", np.array([[NAN, MINUS_ZERO, 0, 0xFFFF] * 2] * 8, dtype="<u2"))
    export_delta(source, 1, 0, old, new)
    FakeSglang(make_checkpoint(tmp_path / "base", old)).pull(tmp_path / "local", source, 1)
    assert same(read_safetensors(tmp_path / "local"), new)


def test_a_version_without_a_change_is_a_version(base: Path, source: Path, tmp_path: Path) -> None:
    folder = export_delta(source, 1, 0, version(0), version(0))
    assert [path.name for path in folder.iterdir()] == ["model.safetensors.index.json"]
    FakeSglang(base).pull(tmp_path / "local", source, 1)
    assert applied_version(tmp_path / "local") == 1
    assert same(read_safetensors(tmp_path / "local"), version(0))


def test_shards_are_begun_when_one_is_full(base: Path, source: Path, tmp_path: Path) -> None:
    folder = export_delta(source, 1, 0, version(0), version(1), shard_bytes=1)
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "model-00000-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
    ]
    FakeSglang(base).pull(tmp_path / "local", source, 1)
    assert same(read_safetensors(tmp_path / "local"), version(1))


def test_a_wrong_base_is_refused_before_anything_is_written(base: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="must be a change of 2, not of 1"):
        export_delta(source, 3, 1, version(1), version(3))
    assert not source.exists()
    publish(source, 1, 2)
    server, local = FakeSglang(base), tmp_path / "local"
    server.pull(local, source, 1)
    index = source / "weight_v000002" / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"base_version":"000001"', '"base_version":"000000"'))
    before = files(local)
    with pytest.raises(RuntimeError, match="out-of-order delta: local at 1, delta builds on 000000"):
        server.pull(local, source, 2)
    assert files(local) == before


def test_a_server_with_other_weights_under_the_number_notices(source: Path, tmp_path: Path) -> None:
    publish(source, 1)
    server = FakeSglang(make_checkpoint(tmp_path / "other", version(2)))
    with pytest.raises(RuntimeError, match="checksum mismatch for 2 tensors"):
        server.pull(tmp_path / "local", source, 1)
    assert applied_version(tmp_path / "local") is None


def test_a_server_that_dies_in_the_middle_starts_over(base: Path, source: Path, tmp_path: Path) -> None:
    publish(source, 1, 2)
    server, local = FakeSglang(base), tmp_path / "local"
    server.pull(local, source, 1)
    server.dies_after = 1
    with pytest.raises(OSError, match="killed"):
        server.pull(local, source, 2)
    torn = read_safetensors(local)
    assert not same(torn, version(1))
    assert not same(torn, version(2))
    server.dies_after = None
    server.pull(local, source, 2)
    assert same(read_safetensors(local), version(2))


def test_a_full_version_starts_the_stream_anew(base: Path, source: Path, tmp_path: Path) -> None:
    other = {"head.weight": tensor("BF16", bf16(9, 16, 4))} | version(1)
    export_full(source, 1, other, base)
    server, local = FakeSglang(base), tmp_path / "local"
    (local / ".weight_sync").mkdir(parents=True)
    (local / "old-shard.safetensors").write_bytes(b"")
    server.pull(local, source, 1)
    assert same(read_safetensors(local), other)
    assert sorted(path.name for path in local.iterdir() if path.is_file()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    newer = other | {"head.weight": tensor("BF16", bf16(10, 16, 4))}
    export_delta(source, 2, 1, other, newer)
    server.pull(local, source, 2)
    assert same(read_safetensors(local), newer)


def test_a_full_version_needs_the_files_beside_the_weights(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        export_full(source, 1, version(1), tmp_path)
    assert not source.exists()


def test_writing_again_changes_nothing_and_other_weights_are_refused(source: Path, base: Path) -> None:
    publish(source, 1)
    export_full(source, 2, version(2), base)
    before = files(source)
    publish(source, 1)
    export_full(source, 2, version(2), base)
    with pytest.raises(Conflict, match="holds other weights"):
        export_delta(source, 1, 0, version(0), version(2))
    with pytest.raises(Conflict, match="holds other weights"):
        export_full(source, 2, version(3), base)
    assert files(source) == before


def test_what_a_writer_that_died_left_is_not_published(source: Path) -> None:
    staged = source / ".weight_v000001.tmp"
    staged.mkdir(parents=True)
    (staged / "model-00000-of-00009.safetensors").write_bytes(b"half")
    publish(source, 1)
    assert sorted(path.name for path in source.iterdir()) == ["weight_v000001"]
    assert len(files(source)) == 2


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("missing_tensor", {"embed.weight": version(1)["embed.weight"]}),
        ("unknown_tensor", version(1) | {"head.weight": tensor("BF16", bf16(0, 2))}),
        ("wrong_shape", version(1) | {"layer.0.norm": tensor("BF16", bf16(0, 4, 8))}),
        ("wrong_dtype", version(1) | {"layer.0.norm": tensor("F16", bf16(0, 32))}),
    ],
)
def test_what_a_delta_cannot_say_is_refused_by_name(source: Path, code: str, target: Tensors) -> None:
    with pytest.raises(WeightsRefused, match="give the engine the full version") as caught:
        export_delta(source, 1, 0, version(0), target)
    assert caught.value.code == code
    assert not source.exists()


def test_number_zero_is_the_servers_own(source: Path, base: Path) -> None:
    with pytest.raises(InvalidValue, match="numbers count from 1"):
        export_delta(source, 0, -1, version(0), version(1))
    with pytest.raises(InvalidValue, match="numbers count from 1"):
        export_full(source, 0, version(0), base)
    assert not source.exists()


def test_adler32_is_spelled_as_the_reader_spells_it(source: Path) -> None:
    folder = export_delta(source, 1, 0, version(0), version(1), checksum="adler32")
    with safe_open(folder / "model-00000-of-00001.safetensors", framework="np") as opened:
        assert opened.metadata()["embed.weight"] == f"{zlib.adler32(version(1)['embed.weight'].data.tobytes()):08x}"
