"""What is remembered of a voter: how often they agree with audits, and how much influence they have used up. Pure.

Chance agreement is that of Scott's pi (1955), not that of Cohen's kappa: a person who always votes down has a kappa of exactly zero
whatever the truth. The cap on votes bounds a person, not a crowd: n invented identities have n votes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

_EXACT = 1000


class Agreement(NamedTuple):
    """Counts over the audited samples of one person: agreements, and how often each of the two said good."""

    num_checked: int = 0
    num_agreed: int = 0
    num_said_good: int = 0
    num_found_good: int = 0

    def plus(self, *, said_good: bool, found_good: bool) -> Agreement:
        """The counts with one more sample."""
        return Agreement(
            self.num_checked + 1,
            self.num_agreed + (said_good == found_good),
            self.num_said_good + said_good,
            self.num_found_good + found_good,
        )

    @property
    def chance(self) -> float:
        """Agreement by chance, at least one half: g^2 + (1 - g)^2, where g is the share of good among both raters' votes."""
        good = (self.num_said_good + self.num_found_good) / (2 * self.num_checked) if self.num_checked else 0.5
        return good**2 + (1 - good) ** 2


def is_suspended(agreement: Agreement, tail: float) -> bool:
    """Whether a person who votes at random would agree so rarely with a probability below `tail`."""
    if agreement.num_agreed >= agreement.chance * agreement.num_checked:
        return False
    return lower_tail(agreement.num_agreed, agreement.num_checked, agreement.chance) < tail


def lower_tail(num: int, num_trials: int, probability: float) -> float:
    """P(X <= num), X binomial, 0 < probability < 1: exact up to 1,000 trials, then normal with continuity correction."""
    if num_trials > _EXACT:
        spread = math.sqrt(num_trials * probability * (1 - probability))
        return NormalDist().cdf((num + 0.5 - num_trials * probability) / spread)
    odds, all_ways = math.log(probability) - math.log1p(-probability), math.lgamma(num_trials + 1)
    terms = (
        all_ways
        - math.lgamma(k + 1)
        - math.lgamma(num_trials - k + 1)
        + k * odds
        + num_trials * math.log1p(-probability)
        for k in range(num + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


ANONYMOUS = "anonymous"
"""The submitter that feedback writes if the app names none."""


@dataclass
class Person:
    """What is stored about a voter. `num` and `total`: number and sum of the rewards they gave, including refused votes."""

    num: int = 0
    total: float = 0.0
    window_started_at: float = 0.0
    window_num: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    num_speaking: int = 0
    """1 if they said two things; in the row of everybody, how many people did."""
    num_repeating: int = 0
    """The same of people who repeat themselves."""
    edits: bytes = b""
    """Sketches of the newest edits (repeats.py)."""

    def has_votes(self, at: float, votes: int, window_seconds: float) -> bool:
        """Whether a vote received at this time is within the cap. A vote older than the window counts as in the window."""
        return at >= self.window_started_at + window_seconds or self.window_num < votes

    def spend(self, at: float, window_seconds: float) -> None:
        """Use up one vote of the window. The first vote after its end opens the next window."""
        if at >= self.window_started_at + window_seconds or not self.window_num:
            self.window_started_at, self.window_num = at, 0
        self.window_num += 1


def offset_of(person: Person, everybody: float, shrinkage: float) -> float:
    """R - (n r + k R) / (n + k), added to a reward to correct for how generous this person is.

    The person's mean r over n votes is drawn towards everybody's mean R by k votes' worth.
    """
    num = person.num + shrinkage
    return everybody - (person.total + shrinkage * everybody) / num if num > 0 else 0.0


def clipped(reward: float, low: float, high: float) -> float:
    """The reward, limited to the task's range."""
    return min(high, max(low, reward))
