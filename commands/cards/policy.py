"""Which card moves next, and why. Pure: no clock, no process, no file.

    trainer ──▶ users   their load, now or as it will be once a further card could help, is more than the replicas carry well
    users ──▶ trainer   fewer replicas would still carry it well, and samples wait

One card at a time, and none is taken from users before the last move has had ten times its own duration to show what it did. Users come
first: a card that they need is not weighed against samples, and waits for nothing but the move before. A third class, rollouts, gets what neither needs; nothing is moved to it yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

CardUse = Literal["users", "training", "rollouts", "nobody"]
"""What a card works for. `nobody`: it failed."""

DWELL_MOVES = 10.0
"""Durations of the last move that pass before users lose a card: what moves cost stays small."""
_SHORTEST_DWELL_SECONDS = 300.0
"""Traffic shows no trend within less."""
_FULL = 0.98
"""Share of the load that a replica carries in good time: with more of it in a busy minute, users get a further card."""
_SPARE, _SPARE_WHEN_OLD = 0.95, 0.96
"""Load that the remaining replicas may have after one is taken. Below `_FULL`, so that a card does not come back at once."""
_OLD_SECONDS = 6 * 3600.0
"""Age of the live version from which more is risked for a newer one."""


class Demand(NamedTuple):
    """What users and trainer need now."""

    load: float
    """Replicas' worth of requests in flight: the mean of the last minutes."""
    peak: float
    """The same, the busiest of the last twenty minutes."""
    slope: float
    """Growth of `load` per second."""
    backlog: int
    """Samples that wait for the trainer."""
    live_age: float
    """Seconds since the live version was published."""


class NextMove(NamedTuple):
    """A decision. `card` None: everything stays."""

    why: str
    card: int | None = None
    to: CardUse = "nobody"


def dwell_seconds(move_seconds: float) -> float:
    """Seconds after a move that took `move_seconds` in which users lose no card."""
    return max(_SHORTEST_DWELL_SECONDS, DWELL_MOVES * move_seconds)


def decide(
    cards: Mapping[int, CardUse], demand: Demand, now: float, *, floor: int, moved_at: float, move_seconds: float
) -> NextMove:
    """What to do now.

    Args:
        cards: by number, what each works for; a replica that does not serve yet counts as `nobody`'s.
        demand: as measured.
        now: seconds, on the clock of `moved_at`.
        floor: replicas that users keep, whatever else is asked for.
        moved_at: when the last move ended.
        move_seconds: how long it took.
    """
    users = sorted(card for card, use in cards.items() if use == "users")
    training = sorted(card for card, use in cards.items() if use == "training")
    dwell = dwell_seconds(move_seconds)
    # A card that is asked for now helps after one move, and one that is given away is not missed for a dwell: so far ahead one has to look.
    ahead = demand.load + max(0.0, demand.slope) * (move_seconds + dwell)
    heavy = max(demand.peak, ahead)
    wanted = max(floor, math.ceil(heavy / _FULL))
    figures = f"users need {heavy:.1f} of {len(users)} replicas, {demand.backlog} samples wait"
    if wanted > len(users) and training:
        return NextMove(f"{figures}; above {_FULL:.0%} of a replica's load users get a card", training[-1], "users")
    if wanted > len(users):
        return NextMove(f"{figures}; users need {wanted} cards, and no other is left")
    if (left := moved_at + dwell - now) > 0:
        return NextMove(f"{figures}; the last move is {left:.0f} s too young")
    if kept := _why_kept(len(users), heavy, demand, floor):
        return NextMove(f"{figures}; {kept}")
    return NextMove(f"{figures}; {len(users) - 1} replicas carry it", users[-1], "training")


def _why_kept(num_users: int, heavy: float, demand: Demand, floor: int) -> str:
    """Why users keep all of their cards; empty if the trainer may have one."""
    spare = _SPARE_WHEN_OLD if demand.live_age > _OLD_SECONDS else _SPARE
    if num_users <= floor:
        return f"{floor} replicas are the floor"
    if heavy > spare * (num_users - 1):
        return f"{num_users - 1} would be more than {spare:.0%} full"
    return "" if demand.backlog else "the trainer has no work for a card that users could spare"
