"""Values that are expensive to read: the more a read costs, the less often it happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0
COST_SHARE = 0.05
"""At most this share of the time is spent on reads, unless a caller gives a smaller share."""

ValueType = TypeVar("ValueType")


class ThrottledValue(Generic[ValueType]):
    """One value, and when it is due to be read again. Used from one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_seconds: float = MOST_SECONDS) -> None:
        """`most_seconds`: between two reads, however long one takes."""
        self._clock, self._most_seconds = clock, most_seconds
        self._held: tuple[ValueType, float] | None = None

    def get(self, read: Callable[[], ValueType], share: float = COST_SHARE) -> ValueType:
        """The value, read again if it is due. If `read` raises, the old value stays and remains due.

        Args:
            read: reads the value.
            share: the largest share of the time that reads may take.
        """
        started = self._clock()
        if self._held is None or started >= self._held[1]:
            value = read()
            cost = self._clock() - started
            self._held = value, started + min(self._most_seconds, max(LEAST_SECONDS, cost / share))
        return self._held[0]
