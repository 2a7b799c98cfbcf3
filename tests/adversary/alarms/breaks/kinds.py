"""What a break of `tests.adversary.alarms` is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from tests.adversary.alarms.world import WatchedHome

LONGEST_SECONDS = 180.0


class Break(NamedTuple):
    """A fault, the alarm that must name it, and for which process ("" where the alarm names none)."""

    name: str
    alarm: str
    process: str
    broken: Callable[[WatchedHome], AbstractContextManager[None]]
    users: bool = False
    """People work meanwhile."""
    hurried: bool = False
    """The alarm waits for long, so its hurried copy is looked at, see `tests.adversary.alarms.hurry`."""
    longest_seconds: float = LONGEST_SECONDS
    """How long the alarm is waited for. Above the default: what it counts takes its time, so it need not ring within a minute."""
    options: tuple[str, ...] = ()
    """More options of `millrace up`. Breaks with the same ones are tried in one home."""
    alone: bool = False
    """In a home of its own: what other breaks did there, or what this one leaves, would be mistaken for something else."""

    @property
    def home(self) -> tuple[tuple[str, ...], str]:
        """Breaks of the same value share a home."""
        return self.options, self.name if self.alone else ""
