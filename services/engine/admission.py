"""How many requests one arm accepts at once; further ones are refused before they wait. Pure.

Without a limit the queue would grow until all answers are late. A refusal says when to try again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from contracts.errors import Overloaded

BACKGROUND_SHARE = 0.5
"""The share of the bounds that rollouts, sentinels and shadows may use; the rest is for users."""
_TURNOVER = 0.1  # the share of open requests that must end before a retry is worthwhile
_LEAST_SECONDS, _MOST_SECONDS = 1, 30


class Bounds(NamedTuple):
    """The most that one arm may have open, running or waiting."""

    num_requests: int
    num_tokens: int
    """Tokens of prompts and of the longest possible answers."""


def admit(
    bounds: Bounds,
    open_tokens: Collection[int],
    num_tokens: int,
    ends: Sequence[float],
    now: float,
    *,
    background: bool,
) -> None:
    """Return if a request of `num_tokens`, of its prompt and longest possible answer, may be accepted; always if no other is open.

    `open_tokens`: the same for each open request. `ends`: when the last requests ended, oldest first, on any clock that tells `now` too.
    `background`: it is not a user's. Raises Overloaded, with the seconds after which to try again.
    """
    share = BACKGROUND_SHARE if background else 1.0
    most_requests, most_tokens = max(1, int(bounds.num_requests * share)), int(bounds.num_tokens * share)
    if not open_tokens or (len(open_tokens) < most_requests and sum(open_tokens) + num_tokens <= most_tokens):
        return
    seconds = retry_seconds(len(open_tokens), ends, now)
    raise Overloaded(
        f"the engine has {len(open_tokens)} requests with up to {sum(open_tokens)} tokens open, and takes {most_requests} with "
        f"{most_tokens}{' for requests that are not of users' if background else ''}; try again in {seconds} s",
        seconds,
    )


def retry_seconds(num_open: int, ends: Sequence[float], now: float) -> int:
    """Seconds until a tenth of the open requests will have ended, at the rate of the last ends; from 1 to 30."""
    if len(ends) < 2:  # noqa: PLR2004 a rate needs two
        return _LEAST_SECONDS
    pace = len(ends) / max(now - ends[0], 1e-3)
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, math.ceil(num_open * _TURNOVER / pace)))
