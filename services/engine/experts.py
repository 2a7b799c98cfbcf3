"""The experts that each request's tokens were computed with.

In: the parts of each forward, and what hooks on the experts saw. Out: when a request ends, its record. Waits for: the device, to copy the
choices of a step. A position may be computed twice, after the cache of a request was given up. If it chose other experts then, tokens
before and after were computed through different ones, and no single record is right: there is none.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from policy.routing import ExpertRecorder, expert_layers
from services.engine.runners import ForwardObserver, ForwardPart

MAX_RECORDS = 4096
"""More requests are not in flight; the oldest record goes first."""
_FIRST_CAPACITY = 64
_SMALL = 256


def observer_of(model: Any) -> ForwardObserver | None:
    """Records the experts of a mixture; None for a dense model."""
    return ExpertRecords(model) if expert_layers(model) else None


class ExpertRecords(ForwardObserver):
    """See the module. Records belong to one arm, whose request ids never repeat."""

    def __init__(self, model: Any) -> None:
        self._recorder = ExpertRecorder(model)
        most = max(layer.num_experts for layer in self._recorder.layers)
        self._dtype = np.uint8 if most <= _SMALL else np.uint16
        self._parts: Sequence[ForwardPart] = ()
        self._records: dict[str, _Record] = {}
        self._lock = Lock()

    def before(self, parts: Sequence[ForwardPart]) -> None:
        """The next forward computes these tokens."""
        self._parts = parts
        self._recorder.take()

    def after(self) -> None:
        """Add what was chosen for each part to the record of its request."""
        taken = self._recorder.take()
        choices = None if taken is None else taken.cpu().numpy().astype(self._dtype)
        if choices is not None and len(choices) != sum(part.length for part in self._parts):
            choices = None
        begin = 0
        with self._lock:
            for name, start, length in self._parts:
                if start == 0 and name not in self._records:
                    if len(self._records) >= MAX_RECORDS:
                        del self._records[next(iter(self._records))]
                    self._records[name] = _Record()
                if name in self._records:
                    self._records[name].put(start, None if choices is None else choices[begin : begin + length])
                begin += length

    def finish(self, request_id: str, num_tokens: int) -> bytes:
        """The record of a request that ended with so many tokens, as an .npy file [num_tokens - 1, M, K]; empty without one."""
        with self._lock:
            record = self._records.pop(request_id, None)
        return b"" if record is None else record.packed(num_tokens - 1)

    def forget(self, request_id: str) -> None:
        """The request ended without an answer."""
        with self._lock:
            self._records.pop(request_id, None)


class _Record:
    """The choices of one request from its first token on."""

    def __init__(self) -> None:
        self._choices: np.ndarray | None = None
        self._num_known = 0
        self._is_lost = False

    def put(self, start: int, choices: np.ndarray | None) -> None:
        """Add the choices [T, M, K] of positions from `start` on; None if they are not known."""
        if not self._is_lost and choices is not None and start <= self._num_known:
            end = start + len(choices)
            kept = self._make_room(end, choices)
            overlap = min(self._num_known - start, len(choices))
            if np.array_equal(kept[start : start + overlap], choices[:overlap]):
                kept[start:end] = choices
                self._num_known = max(self._num_known, end)
                return
        self._is_lost, self._choices = True, None

    def packed(self, num_tokens: int) -> bytes:
        """An .npy file of the first `num_tokens` positions; empty if one is not known."""
        if self._choices is None or num_tokens < 1 or self._num_known < num_tokens:
            return b""
        file = io.BytesIO()
        np.save(file, self._choices[:num_tokens], allow_pickle=False)
        return file.getvalue()

    def _make_room(self, num_tokens: int, like: np.ndarray) -> np.ndarray:
        known = like[:0] if self._choices is None else self._choices
        if len(known) < num_tokens:
            num_more = max(num_tokens, 2 * len(known), _FIRST_CAPACITY) - len(known)
            known = np.concatenate([known, np.empty((num_more, *known.shape[1:]), known.dtype)])
        self._choices = known
        return known
