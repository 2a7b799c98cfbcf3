"""How many signals about one answer are taken in. Those beyond what counts toward its reward would only be stored, joined and rejected.

In: signals that were read, and what became of them. Out: those that wait for the next window are refused before anything is stored.
A signal that was taken in before passes, and one that was not stored leaves its place. Each process counts for itself.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import NamedTuple

from contracts.errors import RateLimited
from services.feedback.requests import ReceivedItem, TargetKey

WINDOW_SECONDS = 600.0
MOST_OF_ANSWER, MOST_OF_SUBMITTER = 256, 64
"""In a window. Twice as many as ever count, so that words that replace others still come through; see `pipelines.episodes.join`."""
MOST_OF_KEY = 1024
"""About one session or join key, which means another answer with each turn."""
MOST_KEPT = 100_000
"""Signals in memory; the targets whose windows began first are forgotten first."""

Target = tuple[str, str | TargetKey, int]


class _Window(NamedTuple):
    began: float
    submitters: dict[str, str]
    """Signal id to submitter id."""


class TargetLimit:
    """Counts signals per target and per submitter. `clock`: monotonic seconds. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[Target, _Window] = OrderedDict()
        """In the order in which they began."""
        self.num_kept = 0
        """Signals in memory."""

    def refusal(self, item: ReceivedItem) -> RateLimited | None:
        """Why a signal is not taken in now; None, and it has a place, if there is room."""
        now, said = self._clock(), item.signal
        window = self._window(_target(item), now)
        if said.id in window.submitters:
            return None
        num, seconds = len(window.submitters), window.began + WINDOW_SECONDS - now
        if item.key is not None:
            kind = "session" if item.key.kind == "session" else "join key"
            if num >= MOST_OF_KEY:
                return _refusal(f"{MOST_OF_KEY} signals about this {kind}", seconds)
        elif num >= MOST_OF_ANSWER:
            return _refusal(f"{MOST_OF_ANSWER} signals about this answer", seconds)
        elif list(window.submitters.values()).count(said.submitter.id) >= MOST_OF_SUBMITTER:
            return _refusal(f"{MOST_OF_SUBMITTER} signals from this submitter about this answer", seconds)
        window.submitters[said.id] = said.submitter.id
        self.num_kept += 1
        while self.num_kept > MOST_KEPT and len(self._windows) > 1:
            self.num_kept -= len(self._windows.popitem(last=False)[1].submitters)
        return None

    def give_back(self, items: Iterable[ReceivedItem]) -> None:
        """The places of signals that were not stored."""
        for item in items:
            window = self._windows.get(_target(item))
            if window is not None and window.submitters.pop(item.signal.id, None) is not None:
                self.num_kept -= 1

    def _window(self, target: Target, now: float) -> _Window:
        window = self._windows.get(target)
        if window is None or now - window.began >= WINDOW_SECONDS:
            self.num_kept -= len(window.submitters) if window else 0
            window = self._windows[target] = _Window(now, {})
            self._windows.move_to_end(target)
        return window


def _target(item: ReceivedItem) -> Target:
    return item.signal.tenant, item.key or item.signal.completion_id, item.signal.choice


def _refusal(what: str, seconds: float) -> RateLimited:
    error = RateLimited(
        f"{what} came within {WINDOW_SECONDS / 60:.0f} minutes, more than count toward a reward; try again in {math.ceil(seconds)} s"
    )
    error.headers = MappingProxyType({"retry-after": str(math.ceil(seconds))})
    return error
