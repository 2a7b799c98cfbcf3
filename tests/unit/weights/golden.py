"""The golden files of the weight format: an edge of every kind, small. `python -m tests.unit.weights.golden` writes
them anew; do that only when the codec has a new name, for they stand for what is in stores already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tests.unit.weights.sealed import manifest_of
from weights.codec.delta import encode
from weights.codec.history import History
from weights.tensors import Tensor, Tensors, words_of

FOLDER = Path(__file__).parents[2] / "golden" / "weights"
LAST = 4
FOLDED_FROM = 1

Numbers = npt.NDArray[Any]


def files_of(base_version: int | None, version: int) -> tuple[Path, Path]:
    """Manifest and payload of an edge."""
    kind = "full" if base_version is None else "step" if base_version == version - 1 else f"fold-from-{base_version}"
    return FOLDER / f"{version}-{kind}.json", FOLDER / f"{version}-{kind}.bin"


def write() -> None:
    versions, history = make_versions(), History()
    _write(None, 0, versions, None)
    for version in range(1, LAST + 1):
        _write(version - 1, version, versions, history)
    _write(FOLDED_FROM, LAST, versions, None)


def _write(base_version: int | None, version: int, versions: list[Tensors], history: History | None) -> None:
    base = None if base_version is None else versions[base_version]
    encoded = encode(base, versions[version], history)
    manifest = manifest_of(base, encoded, history, version=version, base_version=base_version or 0)
    text, payload = files_of(base_version, version)
    text.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    payload.write_bytes(encoded.payload)
    if history is not None:
        history.advance(encoded.moves, encoded.target_root)


def make_versions() -> list[Tensors]:
    """Version 0 to 4; 1 and 2 move a few weights, 3 moves a matrix in one rank, 4 changes the layout."""
    random = np.random.default_rng(20261121)
    versions = [_first(random)]
    for _ in range(2):
        versions.append(_stepped(random, versions[-1]))
    versions.append(_moved_in_one_rank(random, versions[-1]))
    versions.append(_rebuilt(random, versions[-1]))
    return versions


def _first(random: np.random.Generator) -> Tensors:
    bits = random.integers
    specials = [0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 1, 0x8001, 0x3F80]
    return {
        "attention.weight": _tensor("BF16", _bf16(random, (160, 192))),
        "double": _tensor("F64", random.normal(0, 1, 9).view("<u8")),
        "eight.e5m2": _tensor("F8_E5M2", bits(0, 256, (50, 20)).astype("<u1")),
        "empty": _tensor("F32", np.zeros((0, 4), "<u4")),
        "half": _tensor("F16", random.normal(0, 0.1, (40, 24)).astype("<f2").view("<u2")),
        "head": _tensor("BF16", _bf16(random, (16, 24))),
        "mask": _tensor("U8", bits(0, 2, 100).astype("<u1")),
        "norm": _tensor("BF16", np.array(specials, "<u2")),
        "packed": Tensor("F4", (31,), bits(0, 256, 16).astype("<u1")),
        "places": _tensor("I64", bits(0, 2**40, 64).astype("<u8")),
        "quantised": _tensor("I8", bits(0, 256, 600).astype("<u1")),
        "scalar": _tensor("BF16", np.array(0x3F80, "<u2")),
        "single": _tensor("F32", random.normal(0, 0.02, (24, 30)).astype("<f4").view("<u4")),
        "two blocks": _tensor("F8_E4M3", np.zeros(2**18 + 1000, "<u1")),
    }


def _stepped(random: np.random.Generator, tensors: Tensors) -> Tensors:
    """Few weights move, the first ones again and again; one tensor at the ends of its blocks, with long gaps."""
    result = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}
    for name in ("attention.weight", "eight.e5m2", "half", "head", "mask", "packed", "places", "quantised", "single"):
        words = words_of(result[name])
        always = slice(0, 4 + words.size // 64)
        moved = random.random(words.size) < 0.03
        moved[always] = True
        distances = random.choice(np.array([1, 1, 1, 1, 2, 9, 300]), words.size) * random.choice([-1, 1], words.size)
        distances[always] = 1
        words[moved] += distances[moved].astype(words.dtype)
    words = words_of(result["two blocks"])
    words[[0, 1, 2, 3, 4, 2**18 - 1, 2**18, 2**18 + 999]] += np.uint8(1)
    words_of(result["scalar"])[0] ^= 0x8000
    return result


def _moved_in_one_rank(random: np.random.Generator, tensors: Tensors) -> Tensors:
    weight = tensors["attention.weight"]
    words = words_of(weight).copy().reshape(weight.shape)
    rows, columns = random.normal(0, 1, weight.shape[0]), random.normal(0, 1, weight.shape[1])
    pulls = np.outer(rows, columns)
    moved = random.random(weight.shape) < 0.18 * np.abs(pulls)
    is_down = (pulls < 0) ^ (random.random(weight.shape) < 0.05)
    # Down is towards a larger magnitude below zero.
    words[moved] += np.where(is_down ^ (words >> 15 == 1), 0xFFFF, 1).astype("<u2")[moved]
    return tensors | {"attention.weight": _tensor("BF16", words)}


def _rebuilt(random: np.random.Generator, tensors: Tensors) -> Tensors:
    """Some are added, removed, reshaped, of another type, changed all over, or noise."""
    double, single = tensors["double"], words_of(tensors["single"]).copy()
    single[random.random(single.size) < 0.6] += np.uint32(1)
    return {name: tensor for name, tensor in tensors.items() if name not in {"mask", "norm"}} | {
        "bias": _tensor("BF16", _bf16(random, (24,))),
        "double": double._replace(data=random.integers(0, 256, double.data.size).astype("<u1")),
        "head": tensors["head"]._replace(shape=(24, 16)),
        "norm.tied": tensors["norm"],
        "quantised": tensors["quantised"]._replace(dtype="U8"),
        "single": tensors["single"]._replace(data=single.view(np.uint8)),
    }


def _bf16(random: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    words: Numbers = (random.normal(0, 0.02, shape).astype("<f4").view("<u4") >> 16).astype("<u2")
    return words


def _tensor(dtype: str, words: Numbers) -> Tensor:
    return Tensor(dtype, words.shape, np.frombuffer(words.tobytes(), np.uint8).copy())


if __name__ == "__main__":
    write()
