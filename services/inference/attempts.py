"""Which try of a request this is, as its client counts them. Pure.

The OpenAI SDK sends `x-stainless-retry-count` with every request and, unless it is told to, no `Idempotency-Key`. All tries have
the same body and the same key, so a hash of both says that they are one request. The join names what a later try replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from contracts.records import Attempt

RETRY_COUNT = "x-stainless-retry-count"
_MAX_DIGITS = 3


def attempt_of(headers: Mapping[str, str], body: bytes) -> Attempt | None:
    """None if the client counts no tries, or names its request itself. `headers` have lower-case names."""
    count = headers.get(RETRY_COUNT, "")
    if headers.get("idempotency-key") or len(count) > _MAX_DIGITS or not (count.isascii() and count.isdecimal()):
        return None
    # Keyed with what only the caller knows: the hash stays in clear heads, and must not tell whether a guessed body is right.
    secret = blake2b(headers.get("authorization", "").encode()).digest()
    return Attempt(blake2b(body, digest_size=16, key=secret).hexdigest(), int(count))
