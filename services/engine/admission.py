"""How much one arm takes at once: what is more is refused before it waits. Pure.

A queue that only grows makes everybody's answer late and nobody's come. Whoever is refused is told when to come again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from contracts.errors import Overloaded

BACKGROUND_SHARE = 0.5
"""Of the bounds, what rollouts, sentinels and shadows may fill: the rest is for users."""
_TURNOVER = 0.1  # of what is open; once so much has ended, it is worth coming again
_LEAST_SECONDS, _MOST_SECONDS = 1, 30


class Bounds(NamedTuple):
    """What one arm may have open, running or waiting."""

    num_requests: int
    num_tokens: int
    """Prompts, and the most that their answers may be."""


def admit(
    bounds: Bounds,
    open_tokens: Collection[int],
    num_tokens: int,
    ends: Sequence[float],
    now: float,
    *,
    background: bool,
) -> None:
    """Return only if a request of `num_tokens` may come in beside those that are open.

    Args:
        bounds: see there.
        open_tokens: by open request, prompt and the most that its answer may be.
        num_tokens: the same of the request that asks.
        now: on any clock.
        ends: when the last requests ended, oldest first, on the clock of `now`.
        background: not a user's.

    Raises:
        Overloaded: it may not, with the seconds after which it is worth asking again. A request that is alone may always.
    """
    share = BACKGROUND_SHARE if background else 1.0
    most_requests, most_tokens = max(1, int(bounds.num_requests * share)), int(bounds.num_tokens * share)
    if not open_tokens or (len(open_tokens) < most_requests and sum(open_tokens) + num_tokens <= most_tokens):
        return
    seconds = retry_seconds(len(open_tokens), ends, now)
    raise Overloaded(
        f"the engine has {len(open_tokens)} requests with up to {sum(open_tokens)} tokens open, and takes {most_requests} with "
        f"{most_tokens}{' that are not of users' if background else ''}; try again in {seconds} s",
        seconds,
    )


def retry_seconds(num_open: int, ends: Sequence[float], now: float) -> int:
    """Seconds until a tenth of what is open will have ended, at the pace of the last ends; within 1 and 30."""
    if len(ends) < 2:  # noqa: PLR2004 a pace takes two
        return _LEAST_SECONDS
    pace = len(ends) / max(now - ends[0], 1e-3)
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, math.ceil(num_open * _TURNOVER / pace)))
