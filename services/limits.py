"""How many requests one key may send in a minute, as the operator set it. Limits are about load, never about training."""

from __future__ import annotations

import math

from contracts.errors import RateLimited
from contracts.keys import Caller
from runtime.replicas import RateLimiter


class Limit:
    """One limit of a service. `subject`: what is counted, in the plural; part of headers and messages. `per_minute` 0: no limit."""

    def __init__(self, limiter: RateLimiter, subject: str, per_minute: int) -> None:
        self._limiter, self._subject, self._per_minute = limiter, subject, per_minute

    async def check(self, caller: Caller, num: int = 1) -> dict[str, str]:
        """Count `num` against a caller's limit. Returns the headers that state what is left. Raises RateLimited; then nothing was counted."""
        if self._per_minute == 0 or num == 0 or caller.role == "operator":
            return {}
        allowance = await self._limiter.allow(f"{self._subject}:{caller.key_id}", self._per_minute, num)
        headers = {
            f"x-ratelimit-limit-{self._subject}": str(allowance.limit),
            f"x-ratelimit-remaining-{self._subject}": str(allowance.remaining),
            f"x-ratelimit-reset-{self._subject}": f"{allowance.reset_seconds:.3f}s",
        }
        if (seconds := allowance.wait_seconds) > 0:
            most = f"this key may send {self._per_minute} {self._subject} a minute"
            error = RateLimited(f"{most}; try again in {seconds:.1f} s")
            # The SDK reads the first header; the second is HTTP's own, in whole seconds.
            waits = {"retry-after-ms": str(math.ceil(seconds * 1000)), "retry-after": str(math.ceil(seconds))}
            error.headers = headers | waits
            raise error
        return headers
