"""Bounds the influence of one person: a cap on votes, and a personal mean that is shrunk towards everybody's mean. Pure.

The cap bounds a person, not a crowd: n invented identities have n votes. The app that issues identities must make them
costly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewards.signals.trust import Agreement

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

    def has_votes(self, at: float, votes: int, window_seconds: float) -> bool:
        """Whether a vote received at this time is within the cap. A vote older than the window counts as in the window."""
        return at >= self.window_started_at + window_seconds or self.window_num < votes

    def spend(self, at: float, window_seconds: float) -> None:
        """Use up one vote of the window. The first vote after its end opens the next window."""
        if at >= self.window_started_at + window_seconds or not self.window_num:
            self.window_started_at, self.window_num = at, 0
        self.window_num += 1


def shrunk_mean(num: int, total: float, everybody: float, shrinkage: float) -> float:
    """(n r + k R) / (n + k): a person's mean r over n votes, drawn towards everybody's mean R by k votes' worth."""
    return (total + shrinkage * everybody) / (num + shrinkage) if num + shrinkage > 0 else everybody


def offset_of(person: Person, everybody: float, shrinkage: float) -> float:
    """R - b, added to a reward to correct for how generous this person is; b is the shrunk mean of their rewards."""
    return everybody - shrunk_mean(person.num, person.total, everybody, shrinkage)


def clipped(reward: float, low: float, high: float) -> float:
    """The reward, limited to the task's range."""
    return min(high, max(low, reward))
