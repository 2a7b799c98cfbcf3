"""Which attempt of a request this is, as its client counts them. Pure.

The SDKs of OpenAI and Anthropic send `x-stainless-retry-count` with every request, and by default no `Idempotency-Key`. All attempts have the same
path, body, labels, purpose and API key, so a hash of these identifies the request. The join marks answers that a later attempt replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from contracts.records import Attempt
from services.http import authorization_of

RETRY_COUNT = "x-stainless-retry-count"
_MAX_DIGITS = 3


def attempt_of(headers: Mapping[str, str], asked: bytes) -> Attempt | None:
    """The attempt; None if the client counts none, or sends an `Idempotency-Key`. `headers` have lower-case names.

    `asked`: what tells the request from others, see `identity_of`.
    """
    count = headers.get(RETRY_COUNT, "")
    if headers.get("idempotency-key") or len(count) > _MAX_DIGITS or not (count.isascii() and count.isdecimal()):
        return None
    # Keyed with the caller's secret: the hash is stored in clear, and must not confirm a guessed body.
    secret = blake2b(authorization_of(headers).encode()).digest()
    return Attempt(blake2b(asked, digest_size=16, key=secret).hexdigest(), int(count))
