"""How much one person may say: a cap on votes, and a mean of their own that is drawn towards everybody's. Pure.

A cap bounds a person, not a crowd: n invented identities have n people's votes. Whoever gives out identities has to make them
cost something.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rewards.signals.trust import Agreement

ANONYMOUS = "anonymous"
"""What feedback writes where the app names nobody."""


@dataclass
class Person:
    """What is remembered of who votes. `num` and `total`: their votes and the sum of those rewards, counted or not."""

    num: int = 0
    total: float = 0.0
    window_started_at: float = 0.0
    window_num: int = 0
    agreement: Agreement = field(default_factory=Agreement)

    def has_votes(self, at: float, votes: int, window_seconds: float) -> bool:
        """Whether a vote received then still counts; what is older than the window belongs to it."""
        return at >= self.window_started_at + window_seconds or self.window_num < votes

    def spend(self, at: float, window_seconds: float) -> None:
        """One vote of the window is gone; the first after it ended opens the next."""
        if at >= self.window_started_at + window_seconds or not self.window_num:
            self.window_started_at, self.window_num = at, 0
        self.window_num += 1


def shrunk_mean(num: int, total: float, everybody: float, shrinkage: float) -> float:
    """(n r + k R) / (n + k): a person's mean r over n votes, drawn towards everybody's mean R by k votes' worth."""
    return (total + shrinkage * everybody) / (num + shrinkage) if num + shrinkage > 0 else everybody


def offset_of(person: Person, everybody: float, shrinkage: float) -> float:
    """What is added to a reward so that it says how much better the answer is than what this person gives: R - b."""
    return everybody - shrunk_mean(person.num, person.total, everybody, shrinkage)


def clipped(reward: float, low: float, high: float) -> float:
    """Inside the task's range."""
    return min(high, max(low, reward))
