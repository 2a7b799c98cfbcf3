"""Random draws that every process repeats alike, as hashes of names: to ask a user, to audit a sample, to explore. Pure."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

UnitKind = Literal["user", "session", "answer"]
_NUM_BYTES = 8


class DrawnVersion(msgspec.Struct, frozen=True, array_like=True):
    """What an arm served at a draw, and its share."""

    version: int
    share: float


class LoggedDraw(msgspec.Struct, frozen=True):
    """How the arm of a user's answer was drawn (`contracts/arms.py`), as whoever drew it knew it: no later reader has to guess by clocks."""

    unit: str
    """Hash of the unit's name, see `hash_of`."""
    unit_kind: UnitKind
    version: int
    """Of the arm that was drawn, whichever version made the answer; -1: not known."""
    canary: DrawnVersion | None = None
    """The canary that could have been drawn; None: there was none."""
    holdout: DrawnVersion | None = None
    learning: DrawnVersion | None = None
    """None also if everybody had its version."""
    api_key: str = ""
    """Id of the key that asked: a client chooses its units, an operator gives it its key. Empty in records of older releases."""


def hash_of(text: str) -> str:
    """16 hex digits, so that no name of a person stands in a table. It tells nothing of a draw, which is keyed."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_NUM_BYTES).hexdigest()


def is_asked(completion_id: str, probability: float) -> bool:
    """Whether the app should ask the user about this completion; true with this probability."""
    return _draw(completion_id, b"asking", b"") < probability


def is_audited(sample_key: str, probability: float, secret: bytes = b"") -> bool:
    """Whether this sample is audited, with this probability. `secret` (64 bytes at most) keeps users from being honest only then."""
    return _draw(sample_key, b"audit", secret) < probability


def is_exploring(completion_id: str, share: float) -> bool:
    """Whether this completion is sampled more widely; true with this probability."""
    return _draw(completion_id, b"explore", b"") < share


def _draw(name: str, purpose: bytes, secret: bytes) -> float:
    digest = hashlib.blake2b(name.encode(), digest_size=_NUM_BYTES, person=purpose, key=secret).digest()
    # 53 bits fit a float exactly, so the draw stays below 1.
    return (int.from_bytes(digest) >> 11) / 2.0**53
