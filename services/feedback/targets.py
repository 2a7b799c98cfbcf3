"""How many signals about one answer are taken in. Those beyond what counts toward its reward would only be stored, joined and rejected.

In: signals that were read. Out: those that wait for the next window are refused before anything is stored. Each process counts for itself.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import MappingProxyType

from contracts.errors import RateLimited
from services.feedback.requests import ReceivedItem

WINDOW_SECONDS = 600.0
MOST_OF_TARGET, MOST_OF_SUBMITTER = 256, 64
"""In a window. Twice as many as ever count, so that words that replace others still come through; see `pipelines.episodes.join`."""
MOST_KEPT = 50_000
"""Counts in memory; the oldest are forgotten first."""


class TargetLimit:
    """Counts signals per target and per submitter. `clock`: monotonic seconds. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """When the window of each key began, and how many came in it; in the order of their windows."""

    @property
    def num_kept(self) -> int:
        """Counts in memory."""
        return len(self._counts)

    def refusal(self, item: ReceivedItem) -> RateLimited | None:
        """Why a signal is not taken in now; None, and it is counted, if there is room."""
        said = item.signal
        target = (said.tenant, item.key or said.completion_id, said.choice)
        limits = {target: MOST_OF_TARGET, (*target, said.submitter.id): MOST_OF_SUBMITTER}
        now = self._clock()
        found = {key: self._count(key, now) for key in limits}
        for key, most in limits.items():
            began, num = found[key]
            if num >= most:
                return _refusal(most, "" if key == target else " from this submitter", began + WINDOW_SECONDS - now)
        for key, (began, num) in found.items():
            self._counts[key] = (began, num + 1)
        while len(self._counts) > MOST_KEPT:
            self._counts.popitem(last=False)
        return None

    def _count(self, key: Hashable, now: float) -> tuple[float, int]:
        began, num = self._counts.get(key, (now, 0))
        if now - began < WINDOW_SECONDS:
            return began, num
        self._counts.move_to_end(key)
        return now, 0


def _refusal(most: int, whose: str, seconds: float) -> RateLimited:
    error = RateLimited(
        f"{most} signals{whose} about this answer came within {WINDOW_SECONDS / 60:.0f} minutes, more than count toward its reward; "
        f"try again in {math.ceil(seconds)} s"
    )
    error.headers = MappingProxyType({"retry-after": str(math.ceil(seconds))})
    return error
