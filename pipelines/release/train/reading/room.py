"""How many answers each comparison may still get, so that neither its table nor its memory grows without end.

    learning arm   the first `LEARNING_ROWS` of a version; by then it was seen by enough users to be known
    train          as many as come in its patience; while operators hold the arms, and nothing can move, up to `HELD_ROWS`

What is full takes no answer of either arm any more, so the arms stay comparable. Rows are counted now and then, so a little more may come.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from contracts.assignments import CANARY, LEARNING, LIVE
from pipelines.release.train.reading.sampling import CONTROL

LEARNING_ROWS = 50_000
HELD_ROWS = 200_000
_COUNT_SECONDS = 30.0
_TOGETHER = {LEARNING: LEARNING, CONTROL: LEARNING, CANARY: CANARY, LIVE: CANARY}


class Room:
    """See the module. `monotonic`: seconds for timers."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._taken: Counter[tuple[str, int]] = Counter()
        self._count_at = float("-inf")

    def look(self, count: Callable[[], Mapping[tuple[str, int], int]]) -> None:
        """Count anew if it is time. `count`: rows by arm and by the version that they are compared with."""
        if self._monotonic() < self._count_at:
            return
        self._count_at = self._monotonic() + _COUNT_SECONDS
        self._taken = Counter()
        for (arm, version), num in count().items():
            self._taken[_TOGETHER.get(arm, arm), version] += num

    def take(self, arm: str, compared_with: int, *, is_held: bool) -> bool:
        """Whether one more answer may come; it counts then. `is_held`: operators hold the arms."""
        which = _TOGETHER.get(arm, arm)
        most = LEARNING_ROWS if which == LEARNING else HELD_ROWS if which == CANARY and is_held else None
        if most is not None and self._taken[which, compared_with] >= most:
            return False
        self._taken[which, compared_with] += 1
        return True
