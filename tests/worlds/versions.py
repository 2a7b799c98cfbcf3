"""Synthetic policies and their published versions, for every benchmark that needs a chain of versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from weights.codec.delta import apply_staged, stage
from weights.codec.history import History
from weights.publish import publish_version
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors
from weights.versions.manifest import Manifest
from weights.versions.signing import Keyring, Signer


def make_signer(phrase: str) -> Signer:
    """A key pair that is the same for the same phrase."""
    return Signer(Ed25519PrivateKey.from_private_bytes(blake3(phrase.encode()).digest()))


def keyring(*signers: Signer) -> Keyring:
    """Trusts these."""
    return Keyring({one.key_id: one.public_key for one in signers})


def random_bf16(draws: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal values with a standard deviation of 0.02, as bfloat16."""
    words = draws.normal(0, 0.02, shape).astype("<f4").view("<u4") >> 16
    return Tensor("BF16", shape, words.astype("<u2").reshape(-1).view(np.uint8))


def moved(tensors: Mapping[str, Tensor], density: float, seed: int) -> Tensors:
    """A copy in which this share of the bfloat16 weights went one unit in the last place up or down."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, tensor in tensors.items():
        words = tensor.data.view("<u2").copy()
        places = draw.choice(words.size, size=draw.binomial(words.size, density), replace=False, shuffle=False)
        # Adding to the bits moves a positive weight away from zero: the sign of a step is as random as the weight's.
        words[places] += draw.choice(np.array([1, 2**16 - 1], dtype=np.uint16), size=places.size)
        words[_is_not_finite(words)] = 0
        found[name] = tensor._replace(data=words.view(np.uint8))
    return found


def decode(
    base: Mapping[str, Tensor] | None, manifest: Manifest, payload: bytes, history: History | None = None
) -> Tensors:
    """The target of a payload, in memory of its own. Raises WeightsRefused as `stage`."""
    staged = stage(base, manifest, payload, history)
    known = {} if base is None or manifest.base_root is None else base
    tensors = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in known.items()}
    apply_staged(tensors, staged)
    return tensors


def publish_next(
    store: WeightStore,
    policy: str,
    version: int,
    *,
    base: Tensors | None,
    target: Tensors,
    run: str = "benchmark",
    history: History | None = None,
    signer: Signer | None = None,
) -> Manifest:
    """Publish `target` as the version after `version` - 1, whose tensors are `base`; version 0 in full. Raises as `publish_version`."""
    return publish_version(
        store,
        policy=policy,
        run=run,
        version=version,
        parent=version - 1 if version else None,
        base=base if version else None,
        target=target,
        step=version,
        epoch=0,
        num_samples=1,
        created_at=1_780_000_000.0,
        history=history,
        signer=signer,
    )


def _is_not_finite(words: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    is_special: np.ndarray[Any, np.dtype[np.bool_]] = (words & 0x7F80) == 0x7F80
    return is_special
