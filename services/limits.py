"""How many requests one key may send in a minute, as the operator set it. Limits are about load, never about training."""

from __future__ import annotations

import math

from contracts.errors import RateLimited
from contracts.keys import Caller
from runtime.replicas import Allowance, RateLimiter


class Limit:
    """One limit of a service.

    Args:
        limiter: counts the requests.
        subject: what is counted, in the plural; part of headers and messages.
        per_minute: the limit; 0 is no limit.
    """

    def __init__(self, limiter: RateLimiter, subject: str, per_minute: int) -> None:
        self._limiter = limiter
        self._subject = subject
        self._per_minute = per_minute

    async def check(self, caller: Caller, num: int = 1) -> dict[str, str]:
        """Count `num` against a caller's limit. Returns the headers that state what is left.

        Raises:
            RateLimited: it exceeds the limit; nothing was counted.
        """
        if self._per_minute == 0 or num == 0 or caller.role == "operator":
            return {}
        allowance = await self._limiter.allow(f"{self._subject}:{caller.key_id}", self._per_minute, num)
        headers = _headers(self._subject, allowance)
        if allowance.wait_seconds > 0:
            error = RateLimited(
                f"this key may send {self._per_minute} {self._subject} a minute; "
                f"try again in {allowance.wait_seconds:.1f} s"
            )
            error.headers = headers | _retry_headers(allowance.wait_seconds)
            raise error
        return headers


def _headers(subject: str, allowance: Allowance) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{subject}": str(allowance.limit),
        f"x-ratelimit-remaining-{subject}": str(allowance.remaining),
        f"x-ratelimit-reset-{subject}": f"{allowance.reset_seconds:.3f}s",
    }


def _retry_headers(seconds: float) -> dict[str, str]:
    # The SDK reads the first header; the second is HTTP's own, in whole seconds.
    return {"retry-after-ms": str(math.ceil(seconds * 1000)), "retry-after": str(math.ceil(seconds))}
