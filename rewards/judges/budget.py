"""Keeps a judge within its budget by asking about fewer answers, each with a known probability.

Every score carries the share of answers that were kept, so that an estimate can weight kept answers by 1 / share.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from operator import add
from typing import NamedTuple, Protocol

import structlog

from contracts.tasks.judges import JudgeRule
from rewards.judges.parse import JudgeVerdict
from runtime.metrics import JUDGE_SHARE

DAY_SECONDS = 86_400.0
_BURST = 24.0
"""An hour's share of the daily money may be spent at once."""
_NUM_STEPS = 7

log = structlog.get_logger()


class Clocks(NamedTuple):
    """A monotonic clock in seconds, and one in UTC epoch seconds."""

    monotonic: Callable[[], float] = time.monotonic
    utc: Callable[[], float] = time.time


CLOCKS = Clocks()


class JudgeCosts(NamedTuple):
    """Calls, tokens (of prompts and replies together) and money."""

    num_calls: int = 0
    num_tokens: int = 0
    money: float = 0.0

    def plus(self, other: JudgeCosts) -> JudgeCosts:
        """The sum of both."""
        return JudgeCosts(*map(add, self, other))


class JudgeStore(Protocol):
    """Verdicts by key, and costs by task, judge and day (YYYY-MM-DD, UTC)."""

    def verdicts(self, keys: Collection[str]) -> dict[str, JudgeVerdict]:
        """The stored verdicts among these keys."""

    def keep(self, judge: str, verdicts: Mapping[str, JudgeVerdict], at: float) -> None:
        """Store verdicts. If a key has one already, that one stays."""

    def forget(self, judge: str, before: float) -> None:
        """Delete a judge's verdicts that are older than `before`, UTC epoch seconds."""

    def spent(self, task: str, judge: str, day: str) -> JudgeCosts:
        """The costs of that day, by all processes together."""

    def spend(self, task: str, judge: str, day: str, spent: JudgeCosts) -> None:
        """Add to the costs of that day."""


class MemoryStore:
    """A store in memory, for measuring a judge and for tests."""

    def __init__(self) -> None:
        self._verdicts: dict[str, tuple[str, JudgeVerdict, float]] = {}
        self._spent: dict[tuple[str, str, str], JudgeCosts] = {}

    def verdicts(self, keys: Collection[str]) -> dict[str, JudgeVerdict]:
        """See `JudgeStore`."""
        return {key: self._verdicts[key][1] for key in keys if key in self._verdicts}

    def keep(self, judge: str, verdicts: Mapping[str, JudgeVerdict], at: float) -> None:
        """See `JudgeStore`."""
        for key, verdict in verdicts.items():
            self._verdicts.setdefault(key, (judge, verdict, at))

    def forget(self, judge: str, before: float) -> None:
        """See `JudgeStore`."""
        self._verdicts = {key: kept for key, kept in self._verdicts.items() if kept[0] != judge or kept[2] >= before}

    def spent(self, task: str, judge: str, day: str) -> JudgeCosts:
        """See `JudgeStore`."""
        return self._spent.get((task, judge, day), JudgeCosts())

    def spend(self, task: str, judge: str, day: str, spent: JudgeCosts) -> None:
        """See `JudgeStore`."""
        self._spent[task, judge, day] = self.spent(task, judge, day).plus(spent)


class Bucket:
    """A token bucket: it refills steadily up to `capacity`. The level may become negative, and then refills from there."""

    def __init__(self, capacity: float, per_second: float, clock: Callable[[], float]) -> None:
        self._capacity, self._per_second, self._clock = capacity, per_second, clock
        self._level, self._at = capacity, clock()

    def available(self) -> float:
        """How much may be spent now."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Spend this amount."""
        self._level = self.available() - amount


class Budget:
    """The budget of one judge in one process."""

    def __init__(self, task: str, rule: JudgeRule, store: JudgeStore, clocks: Clocks = CLOCKS) -> None:
        self._task, self._rule, self._store, self._clocks = task, rule, store, clocks
        per_minute, per_day = rule.tokens_per_minute, rule.money_per_day
        self._tokens = Bucket(per_minute, per_minute / 60.0, clocks.monotonic) if per_minute else None
        self._money = Bucket(per_day / _BURST, per_day / DAY_SECONDS, clocks.monotonic) if per_day else None
        self._unsaved = JudgeCosts()
        self._announced = rule.sample_share

    def share(self, tokens: float, money: float) -> float:
        """The share of a batch to ask about, given what the whole batch would cost; 0 if nothing is left."""
        affordable = 1.0
        if self._tokens:
            affordable = min(affordable, _part(self._tokens.available(), tokens))
        if self._money and self._rule.money_per_day:
            left = self._rule.money_per_day - self._unsaved.money
            left -= self._store.spent(self._task, self._rule.name, self._day()).money
            affordable = min(affordable, _part(min(left, self._money.available()), money))
        share = step(self._rule.sample_share, affordable)
        if share != self._announced:
            where, was = {"task": self._task, "judge": self._rule.name}, self._announced
            log.warning("judge asks about another share", **where, share=share, was=was)
            self._announced = share
        JUDGE_SHARE.labels(self._rule.name).set(share)
        return share

    def spend(self, spent: JudgeCosts) -> None:
        """Count costs. They are stored by day, so that they survive a restart. Raises Unavailable: they could not be stored; they are added to the next ones."""
        if self._tokens:
            self._tokens.take(spent.num_tokens)
        if self._money:
            self._money.take(spent.money)
        self._unsaved = self._unsaved.plus(spent)
        if self._unsaved.num_calls:
            self._store.spend(self._task, self._rule.name, self._day(), self._unsaved)
            self._unsaved = JudgeCosts()

    def _day(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clocks.utc()))


def step(wanted: float, affordable: float) -> float:
    """The largest of `wanted`, its half, its quarter ... that is affordable; 0 below the last step."""
    if affordable >= 1.0:
        return wanted
    return next((wanted / 2**number for number in range(_NUM_STEPS) if wanted / 2**number <= affordable), 0.0)


def is_drawn(judge: str, key: str, share: float) -> bool:
    """Whether an answer is drawn: the same for the same judge, key and share. A smaller share is a subset of a larger one."""
    digest = hashlib.blake2b(f"{judge}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share


def _part(available: float, wanted: float) -> float:
    return 1.0 if wanted <= available else max(0.0, available) / wanted
