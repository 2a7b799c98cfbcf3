"""Small policies for the tests of this folder."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.codec.delta import CODEC
from weights.codec.history import History
from weights.publish import publish_fold, publish_version
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors
from weights.versions.manifest import Chunk, Manifest
from weights.versions.signing import Signer

POLICY = "reservations"
DTYPES = {1: "I8", 2: "BF16", 4: "F32", 8: "F64"}


@contextmanager
def full_disk(name: str) -> Iterator[None]:
    """No file whose path ends with `name` can be made durable: the disk is full, as its last sync says on a network file system."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with patch("os.fsync", fsync):
        yield


@contextmanager
def refused(code: str, match: str = "") -> Iterator[None]:
    """What follows is refused under this code, with `match` in the words."""
    with pytest.raises(WeightsRefused, match=match or None) as found:
        yield
    assert found.value.code == code


def tensor_of(words: npt.NDArray[Any], dtype: str | None = None) -> Tensor:
    return Tensor(dtype or DTYPES[words.itemsize], words.shape, np.frombuffer(words.tobytes(), dtype=np.uint8).copy())


def bf16_policy(seed: int = 0) -> Tensors:
    """Three tensors whose exponents look like trained weights."""
    random = np.random.default_rng(seed)
    shapes = {"embed": (64, 32), "layer.0.norm": (32,), "layer.0.weight": (32, 96)}
    return {
        name: tensor_of((random.normal(0, 0.02, shape).astype("<f4").view("<u4") >> 16).astype("<u2"))
        for name, shape in shapes.items()
    }


def stepped(tensors: Tensors, density: float, seed: int = 1) -> Tensors:
    """Every tensor with about `density` of its elements one or two units in the last place away."""
    random = np.random.default_rng(seed)
    result = {}
    for name, tensor in tensors.items():
        words = tensor.data.view("<u2").copy()
        steps = random.choice(np.array([1, 2, 0xFFFE, 0xFFFF], dtype="<u2"), words.size)
        words[:] += steps * (random.random(words.size) < density)
        result[name] = tensor._replace(data=words.view(np.uint8))
    return result


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name][:2] == right[name][:2] and np.array_equal(left[name].data, right[name].data) for name in left
    )


def publish(
    store: WeightStore, version: int, target: Tensors, *, parent: int | None = None, base: Tensors | None = None,
    created_at: float = 1000.0, history: History | None = None, signer: Signer | None = None, epoch: int = 0,
) -> Manifest:  # fmt: skip
    return publish_version(
        store, policy=POLICY, run="run-1", version=version, parent=parent, base=base, target=target, step=version,
        epoch=epoch, num_samples=32, created_at=created_at, history=history, signer=signer,
    )  # fmt: skip


def fold(store: WeightStore, weights: list[Tensors], base_version: int, version: int) -> Manifest:
    return publish_fold(
        store, policy=POLICY, base_version=base_version, base=weights[base_version], version=version,
        target=weights[version],
    )  # fmt: skip


def publish_chain(store: WeightStore, length: int, history: History | None = None) -> list[Tensors]:
    """Versions 0, 1, 2 and so on, each a step of the one before."""
    weights = [bf16_policy()]
    publish(store, 0, weights[0], history=history)
    for version in range(1, length):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        publish(store, version, weights[-1], parent=version - 1, base=weights[-2], history=history)
    return weights


def edge(
    version: int, base_version: int | None, parent: int | None = None, num_bytes: int = 10, **more: Any
) -> Manifest:
    """A manifest without a payload behind it; a full one if it has no base."""
    facts: dict[str, Any] = {
        "policy": POLICY, "run": "run-1", "version": version, "parent": parent, "base_version": base_version,
        "base_root": None if base_version is None else f"root-{base_version}", "target_root": f"root-{version}",
        "codec": CODEC, "history": None, "history_after": None, "full_bytes": 1000, "num_changed": 1, "num_weights": 500,
        "created_at": 0.0, "step": 0, "epoch": 0, "num_samples": 0,
        "chunks": (Chunk(blake3(f"{version} {base_version}".encode()).hexdigest(), num_bytes),),
    }  # fmt: skip
    return Manifest(**(facts | more))


def chunks_of(manifests: Iterable[Manifest]) -> Iterator[str]:
    return (chunk.name for manifest in manifests for chunk in manifest.chunks)
