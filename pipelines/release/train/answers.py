"""What a train knows of its answers, as columns. Pure.

    log worker ──▶ train_answer ──▶ Answers.put ──▶ assess ──▶ decide

A row may be put again with more in it (its reward came): the later one counts. Rows that cannot be evidence are left out, by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CANARY, LIVE = "canary", "live"
_LEAST_GRACE, _MOST_GRACE, _GRACE_SHARE = 2.0, 60.0, 0.1


class AnswerRow(NamedTuple):
    """One answer to a user. Times are UTC epoch seconds."""

    key: str
    arm: str
    """`canary` or `live`."""
    task: str
    unit: str
    unit_kind: str
    cluster: str
    """Name of the group of prompts; empty if there is none."""
    sampling: str
    probability: float
    """With which the draw gives this arm to any unit, as it was logged."""
    at: float
    metrics: Mapping[str, float]
    """Fast facts; a fact that the answer does not have is absent."""
    reward: float | None
    """In [0, 1], as it was known at the comparing age: see `known_until`."""
    status: str
    """Of that experience: scored, unlabelled or unscored; empty if there was none yet."""
    scored_at: float | None


class TaskRule(NamedTuple):
    """How the answers of a task are compared."""

    has_primary: bool
    """False: users and verifiers give no reward, so guardrails alone decide, and the page says so."""
    age_seconds: float
    """The age at which the rewards of both arms are compared."""


def known_until(at: float, age_seconds: float) -> float:
    """Until when a reward of an answer at `at` counts: its age, and some time to be computed. Later knowledge is ignored in both arms."""
    return at + age_seconds + min(_MOST_GRACE, max(_LEAST_GRACE, _GRACE_SHARE * age_seconds))


class Answers:
    """The answers of one train, by key."""

    def __init__(self) -> None:
        self._rows: dict[str, AnswerRow] = {}
        self.left_out: Counter[str] = Counter()
        """Rows that can never be evidence, by reason."""

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, rows: Iterable[AnswerRow]) -> None:
        """Add rows, or replace those with the same key."""
        for row in rows:
            self._rows[row.key] = row
