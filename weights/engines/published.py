"""Published versions for who keeps none: a whole version at the first call, then only what is new.

In: where a weight store is, and a version. Out: its tensors, verified. Waits for: the store. One version stays in memory.
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
    """Called with (store, policy, version): `s3://bucket/prefix` or a folder; bucket and keys are told by the environment.

    The version loaded last is remembered: the next is made from it out of its delta. Not for several threads.
    """

    def __init__(self) -> None:
        self._last: _Last | None = None

    def __call__(self, store: str, policy: str, version: int) -> Tensors:
        """The tensors of a version; not to be written.

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
    # Without a home its folder of keys is none; the environment says whom to trust.
    trusted = trusted_keys(Path()) if os.environ.get(TRUSTED_KEYS) else {}
    if not trusted:
        raise InvalidSettings(
            f"no key is trusted: set {TRUSTED_KEYS}, where this process runs, to the publisher's public keys: the path of "
            "a folder with their .pub files, or PEM texts"
        )
    return Keyring(trusted)
