"""Finds the weight of a sample: who voted, how much they voted before, and whether more signals may come.

In: scored samples of users, in the order of the log, each revision once. Out: a weight for each, inside the worker's transaction. Waits
for: nothing. A vote is the signal that decided a reward, charged to its submitter once per sample. A refused vote weighs nothing; if
another person had decided before, their vote stays. Operators, judges, code and nameless signals have no limits. While a slower signal
may still decide, the weight is the share of such signals that would have arrived by now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from contracts.tasks import Task
from rewards.signals import delay, repository
from rewards.signals.expectations import Expectations, expects, longest_window
from rewards.signals.people import clipped
from rewards.signals.silence import Expected, first_cohort
from rewards.signals.votes import Ballot, Rules, ScoredSample, Vote, everybody_of, start_of

REMEMBERED_SECONDS = 30 * 86_400.0
"""How long a vote is remembered as charged; at least twice the longest window."""
_REFRESH_SECONDS, _FORGET_SECONDS = 60.0, 600.0


class Weight(NamedTuple):
    """The weight of a sample, in [0, 1], and the reward that replaces its own."""

    value: float
    reason: str
    """Why the newest vote counts less (votes.py), else empty. If it was refused, an earlier one may be in force."""
    reward: float | None
    expected: Expected | None = None
    """It stands for the users if no vote counts; `reward` is then not used."""


class Weighing:
    """Weighs samples. Rows that it changes stay locked until the transaction ends."""

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float]) -> None:
        """Raises InvalidTask if a task asks for a signal that it does not declare."""
        self._tasks, self._clock = tasks, clock
        self._rules = {name: Rules(task) for name, task in tasks.items()}
        self._curves: dict[tuple[str, str], delay.Curve] = {}
        self._refreshed: dict[str, float] = {}
        self._forgot_at = clock()

    def weigh(self, connection: Connection, items: Sequence[ScoredSample]) -> list[Weight]:
        """The weight of each, in their order. Expects each (key, revision) once, and first revisions before later ones."""
        if not items:
            return []
        votes = [self._rules[item.task].vote(item) for item in items]
        before = {item.key for item in items if item.revision > 1}
        known = repository.remembered(
            connection, before | {vote.copied_from for vote in votes if vote and vote.copied_from}
        )
        voters = {vote.who for vote in votes if vote is not None and vote.who is not None}
        compared = {name for name, task in self._tasks.items() if task.trust.relative or task.learning.reads_edits}
        voters |= {everybody_of(name) for name in voters if name[1] in compared}
        paces = {vote.pace for vote in votes if vote is not None and vote.pace is not None}
        paces |= set(map(start_of, paces))
        people = repository.hold_people(connection, voters)
        ballot = Ballot(dict(known), people, repository.hold_paces(connection, paces))
        self._refresh(connection, items)
        silence = Expectations(connection, self._tasks, items)
        weights = [self._weigh(ballot, silence, item, vote) for item, vote in zip(items, votes, strict=True)]
        changed = {key: made for key, made in ballot.made.items() if known.get(key) != made}
        repository.remember(connection, changed, known.keys(), max(item.closed_at for item in items))
        repository.keep_people(connection, ballot.people)
        repository.keep_paces(connection, ballot.paces)
        repository.add_delays(connection, ballot.delays)
        silence.keep(connection)
        return weights

    def forget(self, connection: Connection) -> None:
        """Delete what is too old to matter, a part at a time; most calls do nothing."""
        now = self._clock()
        if now - self._forgot_at < _FORGET_SECONDS:
            return
        slow = [(task, name, window) for task, rules in self._rules.items() for name, window in rules.slow.items()]
        for task, name, window in slow:
            oldest = now - delay.KEPT_WINDOWS * window
            repository.forget_delays(connection, task, name, delay.cohort_of(oldest, window))
        for rule in filter(expects, self._tasks.values()):
            repository.forget_heard(connection, rule.name, first_cohort(now, longest_window(rule)))
        if repository.forget_votes(connection, now - max([REMEMBERED_SECONDS, *(2 * window for _, _, window in slow)])):
            self._forgot_at = now

    def _weigh(self, ballot: Ballot, silence: Expectations, item: ScoredSample, vote: Vote | None) -> Weight:
        rules = self._rules[item.task]
        earlier = ballot.made.get(item.key)
        made, reason = ballot.take(rules, item, vote)
        said = item.said if vote is None else made.value
        is_heard = made.weight > 0.0 and said is not None
        ballot.remember_evidence(
            item.key, silence.count(item, earlier.evidence if earlier else "", said if is_heard else None)
        )
        if (item.is_silent or (made.weight == 0.0 and reason)) and (expected := silence.of(item)) is not None:
            return Weight(expected.weight * self._share(item, None), reason, made.reward, expected)
        reward = made.reward
        if reward is not None and made.offset:
            reward = clipped(reward + made.offset, rules.task.reward.low, rules.task.reward.high)
        share = self._share(item, vote) if made.weight > 0.0 else 1.0
        return Weight(made.weight * share, reason, reward)

    def _share(self, item: ScoredSample, vote: Vote | None) -> float:
        """Of the slow signals that may still replace this vote, the share that would have arrived by now."""
        if not item.provisional:
            return 1.0
        elapsed = item.closed_at - item.finished_at
        waiting = self._rules[item.task].waiting(item, vote.name if vote else None)
        return min((self._curves[item.task, name].completion(elapsed) for name in waiting), default=1.0)

    def _refresh(self, connection: Connection, items: Sequence[ScoredSample]) -> None:
        """Reread old curves that are needed. Uses the time of the records, so that a backlog does not look like silence."""
        now: dict[str, float] = {}
        for item in items:
            if item.provisional and self._rules[item.task].slow:
                now[item.task] = max(now.get(item.task, -math.inf), item.closed_at)
        due = {task for task, at in now.items() if at - self._refreshed.get(task, -math.inf) >= _REFRESH_SECONDS}
        counts = repository.delays_of(connection, due)
        for task in due:
            self._refreshed[task] = now[task]
            rule = self._rules[task].task
            first = max(rule.window_seconds, rule.trust.quarantine_seconds)
            for name, window in self._rules[task].slow.items():
                known = counts.get((task, name), ())
                self._curves[task, name] = delay.curve_of(known, now[task], window, first)
