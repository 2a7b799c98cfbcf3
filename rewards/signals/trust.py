"""Whether to trust a person: how often they agree with audits, compared with chance. Pure.

Chance agreement is that of Scott's pi (1955), which pools both raters, not that of Cohen's kappa: a person who always votes
down has a kappa of exactly zero whatever the truth, and would never be found.
"""

from __future__ import annotations

import math
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

    @property
    def pi(self) -> float:
        """(agreed - chance) / (1 - chance), in [-1, 1]; 0 if nothing was checked."""
        if not self.num_checked or self.chance == 1.0:
            return 0.0
        return (self.num_agreed / self.num_checked - self.chance) / (1 - self.chance)


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
