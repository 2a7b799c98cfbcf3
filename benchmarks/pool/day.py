"""One day of a pool, second by second: users' tokens wait for replicas, samples wait for the trainer, cards move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.pool.traffic import DAY, REQUEST_TOKENS
from commands.cards.policy import CardUse, decide
from commands.cards.trend import DemandTrend

CARD_TOKENS = 1_600.0
"""Tokens per second of answers that a card carries within its latency: 8 B parameters, 32 in flight at 20 ms a token."""
SAMPLES_PER_CARD = 2.6
"""Samples per second of a rank: 8 B parameters, 1,366 tokens a sample, 3,500 tokens/s (17% of an H200's arithmetic, as measured)."""
MOVE_SECONDS = 60.0
"""From the decision until the card works again: 12 s drained, then loading; an engine of .6 B parameters was measured to load in 10 to 12 s."""
_RESTART_SECONDS = 45.0
"""All ranks of the trainer stand still for so long when their number changes."""
BUDGET_SECONDS = 2.0
"""Longest wait of a request for its place."""
_LOOK_SECONDS = 5
_LOAD_SECONDS = 10
"""Requests in flight are those of the last seconds, so that a load is a mean over as many."""


class DayFigures(NamedTuple):
    """What became of a day."""

    idle_share: float
    """Card-seconds in which a card did nothing, or less than it could, of all."""
    late: int
    """Requests that waited longer than the budget."""
    requests: int
    worst_wait: float
    samples_learned: int
    moves: int
    fewest_replicas: int
    most_replicas: int


Chooser = Callable[[int, float, int], int]
"""From the second, the load and the samples that wait: how many cards users have from now on."""


def fixed(users: int) -> Chooser:
    """The same number of replicas all day."""
    return lambda *_: users


class ByRule:
    """The product's own rule over the product's own measurements."""

    def __init__(self, num_cards: int, users: int, floor: int) -> None:
        self._cards: dict[int, CardUse] = {
            number: "users" if number < users else "training" for number in range(num_cards)
        }
        self._floor, self._trend = floor, DemandTrend()
        self._moved_at = -math.inf

    def __call__(self, second: int, load: float, backlog: int) -> int:
        """See `Chooser`."""
        if second >= self._moved_at and second % _LOOK_SECONDS == 0:
            self._trend.note(second, load, backlog, 0.0)
            if (demand := self._trend.demand) is not None:
                found = decide(
                    self._cards, demand, second, floor=self._floor, moved_at=self._moved_at, move_seconds=MOVE_SECONDS
                )
                if found.card is not None:
                    self._cards[found.card] = found.to
                    self._moved_at = second + MOVE_SECONDS
        return sum(use == "users" for use in self._cards.values())


def oracle(asked: npt.NDArray[np.float64], num_cards: int) -> Chooser:
    """Knows the day: in each ten minutes the fewest replicas that keep every wait within the budget. Its moves are free."""
    period = 600
    needed = list[int]()
    for start in range(0, DAY, period):
        part = asked[start : start + period]
        needed.append(next((n for n in range(1, num_cards) if _worst_wait(part, n) <= BUDGET_SECONDS), num_cards))
    return lambda second, *_: needed[second // period]


def _worst_wait(asked: Sequence[float] | npt.NDArray[np.float64], replicas: int) -> float:
    waiting = worst = 0.0
    for tokens in asked:
        waiting = max(0.0, waiting + tokens - replicas * CARD_TOKENS)
        worst = max(worst, waiting)
    return worst / (replicas * CARD_TOKENS)


def live(asked: npt.NDArray[np.float64], num_cards: int, choose: Chooser, *, moves_cost: bool = True) -> DayFigures:
    """Let a chooser conduct a day. `moves_cost`: False for a bound that nobody reaches."""
    users = choose(0, float(asked[0]) / CARD_TOKENS, 0)
    waiting = backlog = idle = late = learned = worst = 0.0
    moves, begun, fewest, most = 0, -math.inf, users, users
    in_flight = np.convolve(asked, np.ones(_LOAD_SECONDS) / _LOAD_SECONDS)[:DAY]
    for second, tokens in enumerate(asked.tolist()):
        before, users = (
            users,
            choose(second, in_flight[second] / CARD_TOKENS + waiting / CARD_TOKENS / _LOAD_SECONDS, int(backlog)),
        )
        if users != before:
            moves, begun = moves + 1, second if moves_cost else -math.inf
            came = users > before
        is_moving, is_restarting = second - begun < MOVE_SECONDS, second - begun < _RESTART_SECONDS
        serving = users - (is_moving and came)
        ranks = num_cards - users - (is_moving and not came)
        room = serving * CARD_TOKENS
        done = min(room, waiting + tokens)
        waiting += tokens - done
        wait = waiting / room
        late += (wait > BUDGET_SECONDS) * tokens / REQUEST_TOKENS
        worst = max(worst, wait)
        backlog += tokens / REQUEST_TOKENS
        taught = 0.0 if is_restarting else min(backlog, ranks * SAMPLES_PER_CARD)
        backlog, learned = backlog - taught, learned + taught
        idle += num_cards - done / CARD_TOKENS - taught / SAMPLES_PER_CARD
        fewest, most = min(fewest, serving), max(most, serving)
    requests = round(float(asked.sum()) / REQUEST_TOKENS)
    return DayFigures(idle / (num_cards * DAY), round(late), requests, worst, round(learned), moves, fewest, most)
