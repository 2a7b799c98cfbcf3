"""What a version cost to ship: a delta is never shown as a full copy."""

import time

import numpy as np

from runtime.settings import Settings
from services.dashboard.live.timeline import Published
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY
from weights.publish import ANCHOR_EVERY, publish_version
from weights.stores.opening import open_store_at
from weights.tensors import Tensor, Tensors


def test_a_version_that_is_stored_in_full_too_is_shown_as_the_delta_that_travels(
    small: Settings, reader_of: ReaderOf
) -> None:
    store = open_store_at(small.weights)
    words = np.arange(4096, dtype=np.uint16)
    target: Tensors = {}
    base: Tensors | None = None
    for version in range(100, 101 + ANCHOR_EVERY):
        words[version % 4096] += 1
        target = {"embed": Tensor("BF16", (64, 64), words.copy().view(np.uint8))}
        publish_version(
            store, policy=POLICY, run=small.run, version=version, parent=None if base is None else version - 1, base=base,
            target=target, step=version, epoch=2, num_samples=8, created_at=time.time(),
        )  # fmt: skip
        base = target
    anchor = 100 + ANCHOR_EVERY
    assert sorted(edge.kind for edge in store.edges(POLICY, anchor)) == ["full", "step"]
    published = Published.of(store.manifest(POLICY, anchor))
    assert published.kind == "step"
    assert published.payload_bytes < published.full_bytes
    rows = {row.version: row for row in reader_of(small).read(time.time()).versions}
    assert (rows[anchor].kind, rows[100].kind) == ("step", "full")
    assert rows[NUM_VERSIONS].kind == "step"
