"""Loads published versions in a process without a replica: a whole version at the first call, then only deltas.

In: the address of a weight store, and a version. Out: its tensors, verified. Waits for: the store. One version stays in memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from contracts.errors import InvalidSettings
from weights.codec.history import History
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensors
from weights.versions.keys import TRUSTED_KEYS, trusted_keys
from weights.versions.signing import Keyring


class _Last(NamedTuple):
    store: WeightStore
    place: str
    policy: str
    version: int
    tensors: Tensors
    history: History


class PublishedVersions:
    """Called with (store, policy, version). The store is `s3://bucket/prefix` or a folder; the environment has the keys.

    The last version is kept, and the next one is made from it with a delta. Not for several threads.
    """

    def __init__(self) -> None:
        self._last: _Last | None = None

    def __call__(self, store: str, policy: str, version: int) -> Tensors:
        """The tensors of a version; read only.

        Raises:
            InvalidSettings: no key is trusted, or the store cannot be used.
            NotFound, Unavailable, WeightsRefused: as `WeightReader.load`.
        """
        last = self._last
        if last is None or (last.place, last.policy) != (store, policy):
            weights = open_store_at(store, _keyring())
            tensors, history = weights.load_state(policy, version)
        elif last.version == version:
            return last.tensors
        else:
            weights = last.store
            tensors, history = weights.load_state_onto(policy, version, last.version, last.tensors, last.history)
        self._last = _Last(weights, store, policy, version, tensors, history)
        return tensors


def _keyring() -> Keyring:
    # There is no home and so no folder of keys: the environment names the trusted keys.
    trusted = trusted_keys(Path()) if os.environ.get(TRUSTED_KEYS) else {}
    if not trusted:
        raise InvalidSettings(
            f"no key is trusted: set {TRUSTED_KEYS}, where this process runs, to the publisher's public keys: the path of "
            "a folder with their .pub files, or PEM texts"
        )
    return Keyring(trusted)
