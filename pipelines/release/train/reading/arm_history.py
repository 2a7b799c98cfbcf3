"""Which version and which share an arm had at a time, from the moves of the arms. Pure.

Answers are read from the log some time after they were drawn, perhaps after the arm moved on. What they are compared with depends on
the time of the draw alone, so a slow reader takes the same sample as a fast one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE


class ArmMove(NamedTuple):
    """One move of an arm. `version` None: it was emptied. `at`: UTC epoch seconds."""

    arm: str
    version: int | None
    share: float
    at: float


class Served(NamedTuple):
    """What an arm served at a time."""

    version: int
    share: float


class ArmHistory:
    """The moves of some arms, each arm's oldest first."""

    def __init__(self, moves: Iterable[ArmMove] = ()) -> None:
        self._moves: dict[str, list[ArmMove]] = {}
        for move in moves:
            self._moves.setdefault(move.arm, []).append(move)
        # A clock that was set back must not hide a later move: times never fall.
        self._times: Mapping[str, Sequence[float]] = {
            arm: list(accumulate((move.at for move in found), max)) for arm, found in self._moves.items()
        }

    def at(self, arm: str, time: float) -> Served | None:
        """What the arm served; None if it was empty, or if nothing is known about that time."""
        place = bisect_right(self._times.get(arm, ()), time) - 1
        if place < 0 or (move := self._moves[arm][place]).version is None:
            return None
        return Served(move.version, move.share)

    def drawn(self, arm: str, time: float) -> Served | None:
        """The same; also None if the arm had no share, so that nobody was given it."""
        found = self.at(arm, time)
        return found if found is not None and found.share > 0.0 else None

    def guarded(self, time: float) -> Served | None:
        """What the learning arm gave to users, unless everybody had it."""
        found, live = self.drawn(LEARNING, time), self.at(LIVE, time)
        return found if found is not None and live is not None and found.version != live.version else None

    def compared(self, time: float) -> set[int]:
        """The versions that answers of that time are compared with: those of a canary and of a hold-out that had a share."""
        return {found.version for arm in (CANARY, HOLDOUT) if (found := self.drawn(arm, time)) is not None}
