"""Small policies for the tests of this folder."""

from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.weights.format import Manifest, Tensor, Tensors
from contracts.weights.store import WeightStore, publish_version

DTYPES = {1: "I8", 2: "BF16", 4: "F32", 8: "F64"}


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


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        left[name][:2] == right[name][:2] and np.array_equal(left[name].data, right[name].data) for name in left
    )


def publish(
    store: WeightStore, version: int, target: Tensors, *, parent: int | None = None, base: Tensors | None = None,
    created_at: float = 1000.0,
) -> Manifest:  # fmt: skip
    return publish_version(
        store, policy="reservations", run="run-1", version=version, parent=parent, base=base, target=target,
        step=version, epoch=0, num_samples=32, created_at=created_at,
    )  # fmt: skip


def publish_chain(store: WeightStore, length: int) -> list[Tensors]:
    weights = [bf16_policy()]
    publish(store, 0, weights[0])
    for version in range(1, length):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        publish(store, version, weights[-1], parent=version - 1, base=weights[-2])
    return weights
