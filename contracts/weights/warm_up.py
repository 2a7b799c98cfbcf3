"""Compiles the codec's loops before somebody waits for them: a process that serves must not compile beside serving.

What was compiled is kept on disk beside the code, so only the first start of an installation takes long.
"""

from __future__ import annotations

import functools
import time

import numpy as np
import structlog

from contracts.weights.codec import CODEC, apply_staged, encode, stage
from contracts.weights.format import Tensor, Tensors, root_of
from contracts.weights.history import History
from contracts.weights.manifest import NO_HISTORY, Manifest
from contracts.weights.reader import advance_history

_ROWS, _COLUMNS = 256, 256
_log = structlog.get_logger(__name__)


@functools.cache
def warm_up() -> None:
    """Encode and stage a few bfloat16 weights, in every way that their loops are called; once a process.

    Takes seconds where it was never done, else about a tenth of one.
    """
    started = time.perf_counter()
    base, history = _matrix(), History()
    for target in (_moved_everywhere(base), _moved_by_rows(base)):
        encoded = encode(base, target, history)
        manifest = Manifest(
            policy="warm-up", run="warm-up", version=1, parent=0, base_version=0, base_root=root_of(base),
            target_root=encoded.target_root, codec=CODEC, history=history.digest,
            history_after=history.next_digest(encoded.target_root), chunks=encoded.chunks,
            full_bytes=encoded.full_bytes, num_changed=encoded.num_changed, num_weights=encoded.num_weights,
            created_at=0.0, step=0, epoch=0, num_samples=0,
        )  # fmt: skip
        for known in (base, _read_only(base)):
            staged = stage(known, manifest, encoded.payload, history)
        apply_staged(base, staged)
        advance_history(history, manifest, staged.moves)
    assert history.digest != NO_HISTORY
    _log.info("codec_warmed_up", seconds=round(time.perf_counter() - started, 3))
