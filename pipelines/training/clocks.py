"""Two clocks of the trainer: one that only rises, for its timers; and one for ages, that no jump makes older.

In: the machine's clocks. Out: seconds. Waits: for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def rising() -> float:
    """Seconds that only ever rise, also while the machine sleeps, if it can say so; of no use outside of this process."""
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


def wall_for_ages(wall: Clock, monotonic: Clock) -> Clock:
    """UTC epoch seconds from which ages are taken.

    It follows the wall clock backwards, and forwards only as fast as time passes: a clock that jumps ahead would make
    samples stale at once, and that is final. One that is behind makes them younger than they are, which costs a little
    weight.
    """
    began_wall, began = wall(), monotonic()
    return lambda: min(wall(), began_wall + monotonic() - began)


def began_before(now: float, seconds_ago: float, at_most: float) -> float:
    """When a timer began that ran before a restart, on the rising clock.

    `seconds_ago` is what the wall clock says, which may have been set meanwhile: below 0 it counts as 0, and above the
    timer's own length as that.
    """
    return now - max(0.0, min(seconds_ago, at_most))
