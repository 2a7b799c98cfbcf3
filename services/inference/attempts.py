"""Which attempt of a request this is, as its client counts them. Pure.

The SDKs of OpenAI and Anthropic send `x-stainless-retry-count` with every request, and by default no `Idempotency-Key`. All attempts have the same
body and the same API key, so a hash of both identifies the request. The join marks answers that a later attempt replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from contracts.records import Attempt
from services.http import authorization_of

RETRY_COUNT = "x-stainless-retry-count"
_MAX_DIGITS = 3


def attempt_of(headers: Mapping[str, str], body: bytes) -> Attempt | None:
    """The attempt; None if the client counts none, or sends an `Idempotency-Key`. `headers` have lower-case names."""
    count = headers.get(RETRY_COUNT, "")
    if headers.get("idempotency-key") or len(count) > _MAX_DIGITS or not (count.isascii() and count.isdecimal()):
        return None
    # Keyed with the caller's secret: the hash is stored in clear, and must not confirm a guessed body.
    secret = blake2b(authorization_of(headers).encode()).digest()
    return Attempt(blake2b(body, digest_size=16, key=secret).hexdigest(), int(count))
