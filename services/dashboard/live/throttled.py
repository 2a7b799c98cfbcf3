"""Figures that cost a while: read again once they are old enough for what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0
COST_SHARE = 0.05
"""At most this share of the time goes into reading, unless a reader says less."""

ValueType = TypeVar("ValueType")


class ThrottledValue(Generic[ValueType]):
    """One value and when it is due. Used from one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: tuple[ValueType, float] | None = None

    def get(self, read: Callable[[], ValueType], share: float = COST_SHARE) -> ValueType:
        """The value, read anew if it is due. What `read` raises leaves the old one, due as before.

        Args:
            read: makes it.
            share: of the time, that goes into reading at most.
        """
        started = self._clock()
        if self._held is None or started >= self._held[1]:
            value = read()
            cost = self._clock() - started
            self._held = value, started + min(MOST_SECONDS, max(LEAST_SECONDS, cost / share))
        return self._held[0]
