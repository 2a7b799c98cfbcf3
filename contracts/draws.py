"""Who is asked, and what is audited: draws that anybody can repeat, so that their probability is known and none is stored.

The draw is a hash of the name, uniform on [0, 1): the same answer is asked about, or not, in every process and at every
replay. Asking and auditing draw independently. Pure.
"""

from __future__ import annotations

import hashlib

_NUM_BYTES = 8


def is_asked(completion_id: str, probability: float) -> bool:
    """Whether the app is told to ask what the user thinks of this completion; true with this probability."""
    return _draw(completion_id, b"asking", b"") < probability


def is_audited(sample_key: str, probability: float, secret: bytes = b"") -> bool:
    """Whether this sample is audited, whatever users said of it; true with this probability.

    Without a secret (64 bytes at most) whoever knows the key can tell, and could be honest only where it is looked at.
    """
    return _draw(sample_key, b"audit", secret) < probability


def _draw(name: str, purpose: bytes, secret: bytes) -> float:
    digest = hashlib.blake2b(name.encode(), digest_size=_NUM_BYTES, person=purpose, key=secret).digest()
    # 53 bits: what a float holds exactly, so that the draw stays below 1.
    return (int.from_bytes(digest) >> 11) / 2.0**53
