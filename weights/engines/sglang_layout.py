"""Writes versions to the folders that SGLang's `POST /pull_weights` reads. In: tensors. Out: files. Waits for: the disk.

    <folder>/weight_v000007/model-00000-of-00002.safetensors    U8 [compressed bytes] per changed tensor: zstd(previous XOR new)
    <folder>/weight_v000007/model.safetensors.index.json        the version, and the file of each tensor

This follows the code below exactly, as of 2026-11; it was never run against a real server here:

- writer: THUDM/slime `slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py` (shards count from
  0, versions are six-digit strings, zstd level 1, `__metadata__` of a shard holds the checksum of each tensor's *new*
  bytes) and `slime/utils/disk_delta.py` (names of checksums);
- reader: sgl-project/sglang `python/sglang/srt/weight_sync/local_checkpoint.py` (pull requests 30366, 30367) and THUDM/slime
  `docker/patch/latest/sglang-pull_weights.patch`.

The reader applies the numbers one by one and starts from its own `--model-path` as number 0. So a number here is a position in
the stream of one server, without gaps; Millrace's versions may have gaps. It copies every file of a full version and removes
all others, so `export_full` includes configuration and tokenizer.
"""

from __future__ import annotations

import filecmp
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3
from zstandard import ZstdCompressor

from contracts.errors import Conflict, InvalidValue, NotFound
from weights.engines.changes import check_same_tensors
from weights.files import full_disk_named, make_folder_durably, sync_folder, write_durably
from weights.tensors import INDEX_FILE, SINGLE_FILE, Tensors, write_safetensors

Checksum = Literal["blake3", "adler32"]
Bytes = npt.NDArray[np.uint8]

SHARD_BYTES = 1 << 30
"""Approximate size of a shard, which is built in memory."""
_ZSTD_LEVEL = 1


def export_delta(
    folder: Path,
    version: int,
    base_version: int,
    base: Tensors,
    target: Tensors,
    *,
    checksum: Checksum = "blake3",
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write the change from `base` to `target` as number `version`, atomically. One writer per folder.

    Args:
        folder: the server's `source_dir`.
        version: number in the stream, from 1.
        base_version: number of `base`: the reader only accepts the number before.
        base: the server's tensors at `base_version`.
        target: its tensors at `version`.
        checksum: over each tensor's new bytes; `adler32` if the server does not have the package `blake3`.
        shard_bytes: compressed bytes per file, about.

    Returns:
        The folder of the version. If it exists with the same bytes, nothing is written.

    Raises:
        Conflict: the number is taken by other weights.
        InvalidValue: a number below 1, or a base that is not the number before.
        Unavailable: the disk is full.
        WeightsRefused: a tensor was added, removed or reshaped (see `check_same_tensors`); use `export_full`.
    """
    if base_version != version - 1:
        raise InvalidValue(
            f"number {version} must be a change of {version - 1}, not of {base_version}: the server applies them one by one",
            param="base_version",
        )
    check_same_tensors(base, target)
    shards = list(_shards(_differences(base, target), shard_bytes))

    def write(staged: Path) -> None:
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards):
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            checksums = {name: _digest(checksum, target[name].data) for name in shard}
            write_durably(staged / file, _safetensors(shard, checksums))
            weight_map |= dict.fromkeys(shard, file)
        metadata = {
            "version": f"{version:06d}",
            "base_version": f"{base_version:06d}",
            "delta_encoding": "xor",
            "compression_format": "zstd",
            "checksum_format": checksum,
        }
        write_durably(staged / INDEX_FILE, [msgspec.json.encode({"metadata": metadata, "weight_map": weight_map})])

    return _publish(folder, version, write)


def export_full(folder: Path, version: int, tensors: Tensors, checkpoint: Path) -> Path:
    """Write all of `tensors` as number `version`: to start a server, or to repair one.

    Args:
        folder: the server's `source_dir`.
        version: number in the stream, from 1.
        tensors: the weights.
        checkpoint: the folder the policy was loaded from; its other files are copied.

    Returns:
        The folder of the version. If it exists with the same bytes, nothing is written.

    Raises:
        Conflict: the number is taken by other weights.
        InvalidValue: a number below 1.
        NotFound: `checkpoint` has no `config.json`; a server could not load the version.
        Unavailable: the disk is full.
    """
    if not (checkpoint / "config.json").is_file():
        raise NotFound(f"{checkpoint} has no config.json: name the folder that the policy was loaded from")

    def write(staged: Path) -> None:
        for file in sorted(path for path in checkpoint.iterdir() if path.is_file() and not _holds_weights(path)):
            write_durably(staged / file.name, [file.read_bytes()])
        write_safetensors(staged / SINGLE_FILE, tensors)

    return _publish(folder, version, write)


def _holds_weights(path: Path) -> bool:
    return path.suffix in {".safetensors", ".bin", ".pt", ".pth"} or path.name.endswith((".index.json", ".tmp"))


def _differences(base: Tensors, target: Tensors) -> Iterator[tuple[str, Bytes]]:
    """Each changed tensor's compressed difference."""
    for name in sorted(target):
        difference = base[name].data ^ target[name].data
        if difference.any():
            compressed = ZstdCompressor(level=_ZSTD_LEVEL).compress(difference.data)
            yield name, np.frombuffer(compressed, dtype=np.uint8)


def _shards(differences: Iterator[tuple[str, Bytes]], shard_bytes: int) -> Iterator[dict[str, Bytes]]:
    shard: dict[str, Bytes] = {}
    held = 0
    for name, difference in differences:
        if shard and held + difference.size > shard_bytes:
            yield shard
            shard, held = {}, 0
        shard[name] = difference
        held += difference.size
    if shard:
        yield shard


def _safetensors(shard: dict[str, Bytes], metadata: dict[str, str]) -> list[bytes | memoryview]:
    """A file's parts. The library's writer orders `__metadata__` randomly, but equal versions must have equal bytes."""
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, compressed in shard.items():
        start, end = end, end + compressed.size
        header[name] = {"dtype": "U8", "shape": [compressed.size], "data_offsets": [start, end]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(compressed.data for compressed in shard.values())]


def _digest(checksum: Checksum, data: Bytes) -> str:
    return blake3(data.data).hexdigest() if checksum == "blake3" else f"{zlib.adler32(data.data):08x}"


def _publish(folder: Path, version: int, write: Callable[[Path], None]) -> Path:
    """Write to a temporary folder and rename it: a server never sees a part of a version."""
    if version < 1:
        raise InvalidValue(f"numbers count from 1 (0 is the server's own checkpoint), not {version}", param="version")
    place = folder / f"weight_v{version:06d}"
    staged = folder / f".{place.name}.tmp"
    shutil.rmtree(staged, ignore_errors=True)  # left by a killed writer
    make_folder_durably(staged)
    try:
        write(staged)
        if not place.exists():
            with full_disk_named(place):
                staged.rename(place)
            sync_folder(folder)
        elif not _same_files(staged, place):
            raise Conflict(f"{place} holds other weights: take the next number", path=str(place))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return place


def _same_files(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names
