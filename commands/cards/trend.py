"""From single measurements to `Demand`. In: the load of users, samples that wait, the age of live, every few seconds. Waits for nothing."""

from __future__ import annotations

from collections import deque

from commands.cards.policy import Demand

_MINUTE = 60.0
_SLOPE_MINUTES, _MEAN_MINUTES = 20, 5


class DemandTrend:
    """Keeps one number per minute. Times are seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[float, float]] = deque(maxlen=_SLOPE_MINUTES)
        """Begin and mean load of each of the last minutes."""
        self._begun, self._sum, self._num = float("-inf"), 0.0, 0
        self._backlog, self._live_age = 0, 0.0

    def note(self, now: float, load: float, backlog: int, live_age: float) -> None:
        """Take one measurement. `load`: replicas' worth of requests in flight."""
        if now - self._begun >= _MINUTE:
            if self._num:
                self._minutes.append((self._begun, self._sum / self._num))
            self._begun, self._sum, self._num = now, 0.0, 0
        self._sum, self._num = self._sum + load, self._num + 1
        self._backlog, self._live_age = backlog, live_age

    @property
    def demand(self) -> Demand | None:
        """As it is now; None until there are enough minutes for a mean."""
        loads = [load for _, load in self._minutes]
        if len(loads) < _MEAN_MINUTES:
            return None
        mean = sum(loads[-_MEAN_MINUTES:]) / _MEAN_MINUTES
        return Demand(mean, max(loads), _slope(self._minutes), self._backlog, self._live_age)


def _slope(minutes: deque[tuple[float, float]]) -> float:
    """Least squares, per second; 0 until there are all minutes: a short look takes noise for a trend."""
    if len(minutes) < _SLOPE_MINUTES:
        return 0.0
    middle = sum(at for at, _ in minutes) / len(minutes)
    spread = sum((at - middle) ** 2 for at, _ in minutes)
    return sum((at - middle) * load for at, load in minutes) / spread
