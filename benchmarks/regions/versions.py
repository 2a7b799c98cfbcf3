"""What the trainer of `benchmarks.regions` publishes: two policies in one store, signed.

`cycle`   a synthetic run in bf16: Adam's walk at one density, behind its first steps, with a step for every version, a
          full copy at the anchors, and a fold for whoever was away
`large`   random bits, all of them new in every version: a payload as long as one wants, from a small model

Flows in: sizes. Flows out: versions and pointers in a folder. Waits for: the disk.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.deltas.traces import Walk, learning_rate_for, random_walk
from contracts.assignments import LIVE
from tests.worlds.versions import keyring, make_signer, publish_next
from weights.codec.history import History
from weights.publish import publish_fold
from weights.stores.opening import open_store_at
from weights.tensors import Tensor, Tensors
from weights.versions.keys import trusted_folder
from weights.versions.manifest import Manifest
from weights.versions.pointer import Pointer, move_pointer
from weights.versions.signing import public_pem

CYCLE, LARGE = "cycle", "large"
RUN = "regions"
_SETTLED = 12
"""Steps of the walk before the chain begins: Adam's first ones are longer, and a policy that is live had them long ago."""
_NUM_MATRICES = 8
_WEIGHT_BYTES = 2
_MEGA = 1e6


class RegionTrainer:
    """Publishes into `root`, and says which version is live."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._signer = make_signer(secrets.token_hex())
        self._keyring = keyring(self._signer)
        self.store = open_store_at(root, self._keyring)
        self._epoch = 0

    def trust(self, folder: Path) -> None:
        """Put the public key where a replica in `folder` looks for it."""
        trusted_folder(folder).mkdir(parents=True)
        (trusted_folder(folder) / f"{self._signer.key_id}.pub").write_bytes(public_pem(self._signer.public_key))

    def point(self, policy: str, version: int) -> None:
        """Make a version live."""
        self._epoch += 1
        pointer = Pointer(policy=policy, run=RUN, arm=LIVE, version=version, epoch=self._epoch)
        move_pointer(self.store, pointer, self._signer, self._keyring)

    def publish_cycle(self, walk: Walk, density: float, held: int) -> list[Manifest]:
        """All versions of the walk, and a fold from version `held` to the last, as for a replica that says it has that.

        Returns:
            The primary edges in order; then the fold.
        """
        versions = random_walk(walk, learning_rate_for(walk, density)).tensors
        history, parent, edges = History(), None, []
        held_tensors: Tensors = {}
        held_history = History()
        for version, target in enumerate(islice(versions, _SETTLED, None)):
            edges.append(self._publish(CYCLE, version, parent, target, history))
            if version == held:
                held_tensors, held_history = target, history.copy()
            parent = target
        fold = publish_fold(
            self.store,
            policy=CYCLE,
            base_version=held,
            base=held_tensors,
            version=len(edges) - 1,
            target=parent or {},
            history=held_history,
            signer=self._signer,
        )
        return [*edges, fold]

    def publish_large(self, megabytes: int, num_versions: int) -> list[Manifest]:
        """The primary edges in order, the first a full copy; each payload has about so many MB."""
        edges: list[Manifest] = []
        parent = None
        for version, target in enumerate(islice(_random_versions(megabytes), num_versions)):
            edges.append(self._publish(LARGE, version, parent, target, None))
            parent = target
        return edges

    def _publish(
        self, policy: str, version: int, parent: Tensors | None, target: Tensors, history: History | None
    ) -> Manifest:
        return publish_next(
            self.store, policy, version, base=parent, target=target, run=RUN, history=history, signer=self._signer
        )


def walk_of(rows: int, num_versions: int) -> Walk:
    """One that `publish_cycle` makes so many versions of, the first included."""
    return Walk(rows, 2048, _NUM_MATRICES, _SETTLED + num_versions - 1)


def text_bytes_of(manifest: Manifest) -> int:
    """Of a manifest as it is stored."""
    return len(msgspec.json.format(msgspec.json.encode(manifest)))


def _random_versions(megabytes: int) -> Iterator[Tensors]:
    draw = np.random.default_rng(0)
    num_words = int(megabytes * _MEGA) // _WEIGHT_BYTES // _NUM_MATRICES
    while True:
        yield {
            f"matrix{number}": Tensor(
                "BF16", (num_words,), draw.integers(0, 2**8, num_words * _WEIGHT_BYTES, dtype=np.uint8)
            )
            for number in range(_NUM_MATRICES)
        }
