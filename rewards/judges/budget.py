"""What a judge may cost, kept by asking about fewer answers, each with a known probability.

A shed answer is drawn by its key, so that the same answer meets the same fate again; the share of those kept is logged
whenever it changes and stands in every score, so that an estimate can weigh what was kept by 1 / share.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import structlog

from contracts.tasks.judges import JudgeRule
from rewards.judges.store import JudgeCosts, JudgeStore
from runtime.metrics import JUDGE_SHARE

DAY_SECONDS = 86_400.0
_BURST = 24.0
"""Money for an hour may be spent at once."""
_NUM_STEPS = 7

log = structlog.get_logger()


class Bucket:
    """A token bucket: it fills steadily up to `capacity`. What was spent beyond it has to fill up first."""

    def __init__(self, capacity: float, per_second: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._clock = clock
        self._level = capacity
        self._at = clock()

    def available(self) -> float:
        """What may be spent now."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Spend."""
        self._level = self.available() - amount


class Budget:
    """The budget of one judge in one process. Clocks: seconds that only grow, and UTC epoch seconds."""

    def __init__(
        self,
        task: str,
        rule: JudgeRule,
        store: JudgeStore,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._task, self._rule, self._store, self._clock = task, rule, store, clock
        per_minute, per_day = rule.tokens_per_minute, rule.money_per_day
        self._tokens = Bucket(per_minute, per_minute / 60.0, monotonic) if per_minute else None
        self._money = Bucket(per_day / _BURST, per_day / DAY_SECONDS, monotonic) if per_day else None
        self._unsaved = JudgeCosts()
        self._announced = rule.sample_share

    def share(self, tokens: float, money: float) -> float:
        """Share of a batch to ask about, if all of it would cost so much; 0 if nothing is left."""
        affordable = 1.0
        if self._tokens:
            affordable = min(affordable, _part(self._tokens.available(), tokens))
        if self._money and self._rule.money_per_day:
            left = self._rule.money_per_day - self._unsaved.money
            left -= self._store.spent(self._task, self._rule.name, self._day()).money
            affordable = min(affordable, _part(min(left, self._money.available()), money))
        share = step(self._rule.sample_share, affordable)
        if share != self._announced:
            log.warning(
                "judge asks about another share",
                task=self._task,
                judge=self._rule.name,
                share=share,
                was=self._announced,
            )
            self._announced = share
        JUDGE_SHARE.labels(self._rule.name).set(share)
        return share

    def spend(self, spent: JudgeCosts) -> None:
        """Count what was spent; it is kept by day, so that a restart does not forget.

        Raises:
            Unavailable: it could not be written; it is added to what comes next.
        """
        if self._tokens:
            self._tokens.take(spent.num_tokens)
        if self._money:
            self._money.take(spent.money)
        self._unsaved = self._unsaved.plus(spent)
        if self._unsaved.num_calls:
            self._store.spend(self._task, self._rule.name, self._day(), self._unsaved)
            self._unsaved = JudgeCosts()

    def _day(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def step(wanted: float, affordable: float) -> float:
    """`wanted`, or its half, quarter ... that `affordable` still covers; 0 below the last step."""
    if affordable >= 1.0:
        return wanted
    return next((wanted / 2**number for number in range(_NUM_STEPS) if wanted / 2**number <= affordable), 0.0)


def is_drawn(judge: str, key: str, share: float) -> bool:
    """Whether an answer is among the share: always the same for a key, judge and share, and nested in larger shares."""
    digest = hashlib.blake2b(f"{judge}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64 < share


def _part(available: float, wanted: float) -> float:
    return 1.0 if wanted <= available else max(0.0, available) / wanted
