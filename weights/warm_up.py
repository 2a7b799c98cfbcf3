"""Compiles the codec's loops before they are needed; the code is cached on disk, so only the first start is slow."""

from __future__ import annotations

import functools
import time

import numpy as np
import numpy.typing as npt
import structlog

from weights.codec.delta import CODEC, apply_staged, encode, stage
from weights.codec.history import History
from weights.reader import advance_history
from weights.tensors import Tensor, Tensors, root_of
from weights.versions.manifest import Manifest

_SIDE = 256
_NAME = "matrix"
_SCATTERED, _IN_ROWS = 0.02, 0.11
"""Shares of weights that move. The second is dense enough that factors of rows and columns are sent."""
_log = structlog.get_logger(__name__)


@functools.cache
def warm_up() -> None:
    """Encode and decode a few bfloat16 weights in every way that a policy's are sent, once: about ten seconds the first time."""
    started = time.perf_counter()
    draw = np.random.default_rng(0)
    floats = draw.normal(0, 0.02, (_SIDE, _SIDE)).astype("<f4")
    tensors, history = _tensors((floats.view("<u4") >> 16).astype("<u2")), History()
    rows, columns = (draw.choice(np.array([1, -1]), _SIDE) for _ in range(2))
    scattered, in_rows = (draw.random((_SIDE, _SIDE)) < share for share in (_SCATTERED, _IN_ROWS))
    ones = np.ones((_SIDE, _SIDE), np.int64)
    # At last what has moved before, and nothing else: then states tell how soon a weight moves.
    for moved, signs in ((scattered, ones), (in_rows, np.outer(rows, columns)), (scattered, ones)):
        words = tensors[_NAME].data.view("<u2").reshape(signs.shape)
        # Towards the signs: adding to the bits of a negative weight makes it smaller.
        steps = np.where(words >> 15 == 1, -signs, signs) * moved
        _travel(tensors, _tensors(words + steps.astype("<u2")), history)
    _log.info("codec_warmed_up", seconds=round(time.perf_counter() - started, 3))


def _travel(base: Tensors, target: Tensors, history: History) -> None:
    encoded = encode(base, target, history)
    manifest = Manifest(
        policy="warm-up",
        run="warm-up",
        version=1,
        parent=0,
        base_version=0,
        base_root=root_of(base),
        target_root=encoded.target_root,
        codec=CODEC,
        history=history.digest,
        history_after=history.next_digest(encoded.target_root),
        chunks=encoded.chunks,
        full_bytes=encoded.full_bytes,
        num_changed=encoded.num_changed,
        num_weights=encoded.num_weights,
        created_at=0.0,
        step=0,
        epoch=0,
        num_samples=0,
    )
    staged = stage(base, manifest, encoded.payload, history)
    apply_staged(base, staged)
    advance_history(history, manifest, staged.moves)
    history.to_bytes()


def _tensors(words: npt.NDArray[np.uint16]) -> Tensors:
    return {_NAME: Tensor("BF16", words.shape, words.reshape(-1).view(np.uint8))}
