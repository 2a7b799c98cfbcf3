"""A port for what judges remember between batches: verdicts and costs. `repository.py` keeps them in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from rewards.judges.parse import JudgeVerdict


class JudgeCosts(NamedTuple):
    """Calls, tokens (of prompts and replies together) and money."""

    num_calls: int = 0
    num_tokens: int = 0
    money: float = 0.0

    def plus(self, other: JudgeCosts) -> JudgeCosts:
        """The sum of both."""
        return JudgeCosts(
            self.num_calls + other.num_calls, self.num_tokens + other.num_tokens, self.money + other.money
        )


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
        self._verdicts = {
            key: kept for key, kept in self._verdicts.items() if not (kept[0] == judge and kept[2] < before)
        }

    def spent(self, task: str, judge: str, day: str) -> JudgeCosts:
        """See `JudgeStore`."""
        return self._spent.get((task, judge, day), JudgeCosts())

    def spend(self, task: str, judge: str, day: str, spent: JudgeCosts) -> None:
        """See `JudgeStore`."""
        self._spent[task, judge, day] = self.spent(task, judge, day).plus(spent)
