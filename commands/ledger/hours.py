"""The hours of many keys at once, with numpy: what `hour_of` says about each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from runtime.seals import ELSEWHEN, HOUR_MS, LAST_HOUR

Mask = NDArray[np.bool_]

_HEAD = b"chatcmpl-tttttttt-tttt-"
"""The beginning of an id of ours: `t` stands for a digit of its time."""
_CHARACTERS = np.frombuffer(_HEAD, np.uint8)
_IS_TIME = np.array([at > _HEAD.index(b"-") and letter == ord("t") for at, letter in enumerate(_HEAD)])
_NO_DIGIT = 255
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_POWERS = 16 ** np.arange(np.count_nonzero(_IS_TIME) - 1, -1, -1, dtype=np.int64)


def hours_of(keys: Sequence[bytes]) -> NDArray[np.int64]:
    """[keys]: `hour_of` of each."""
    heads = np.array(keys, f"S{len(_HEAD)}").view(np.uint8).reshape(len(keys), len(_HEAD))
    digits = _VALUES[heads[:, _IS_TIME]]
    is_id = (heads[:, ~_IS_TIME] == _CHARACTERS[~_IS_TIME]).all(axis=1) & (digits != _NO_DIGIT).all(axis=1)
    hours = digits.astype(np.int64) @ _POWERS // HOUR_MS
    return np.where(is_id & (hours < LAST_HOUR), hours, ELSEWHEN)


def by_hour(keys: Sequence[bytes]) -> Iterator[tuple[int, Mask]]:
    """Each hour that some of the keys have, and which ones: [keys]."""
    hours = hours_of(keys)
    for hour in np.unique(hours).tolist():
        yield hour, hours == hour
