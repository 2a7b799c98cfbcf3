"""Whose vote decided a reward, and how much that vote weighs. Pure: people and paces are passed in, and changed in memory.

A vote is refused if the person, in this order, was not asked (`not_asked`), disagrees with audits (`suspended_submitter`), inserts the same
text again and again (`repeated_edit`), has used up their votes (`influence_cap`), or is part of a burst (`burst`). Only a vote that counts is
charged to the cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from contracts.draws import is_asked
from contracts.errors import InvalidTask
from contracts.ids import parse_sample_key
from contracts.records import Fault, Score, Signal
from contracts.tasks import Task
from contracts.tasks.people import BurstRule
from rewards.signals import bursts, delay
from rewards.signals.bursts import VotePace
from rewards.signals.edits import edit_in
from rewards.signals.people import ANONYMOUS, Person, clipped, is_suspended, offset_of
from rewards.signals.repeats import is_repeated, sketch_of

PersonName = tuple[str, str, str]
"""Tenant, task, id."""
PaceName = tuple[str, str, str]
"""Task, cluster, side."""
DelayName = tuple[str, str, int, int]
"""Task, signal, cohort, bucket."""
_MAX_ID, _MAX_CLUSTER = 128, 64
_HALF = 0.5


class ScoredSample(NamedTuple):
    """A revision of a user's sample that was scored, with or without a reward. Times: UTC epoch seconds."""

    task: str
    tenant: str
    key: str
    revision: int
    version: int
    cluster: str
    signals: Sequence[Signal]
    scores: Sequence[Score]
    """Of the signals; the one with a weight decided."""
    finished_at: float
    closed_at: float
    provisional: bool
    reward: float | None
    fault: Fault = "none"
    person: str | None = None
    """The person who asked the question. They count as the submitter of an anonymous signal."""
    ask_probability: float = 0.0
    """Copied from the generation."""
    audited: float | None = None
    """The value of the audit, in [0, 1], if it was audited."""
    grade: float | None = None
    """The value by graders alone, in [0, 1]; None if a grader is missing, or if the task does not need it."""
    said: float | None = None
    """The reward by users alone, before votes are weighed; None if there is none, or if the task does not need it."""
    is_silent: bool = False
    """It has no reward, and the only reason is that no user reacted."""
    prompt: str = ""
    text: str = ""
    """The answer's; both are empty unless its task learns the text of edits."""


class Vote(NamedTuple):
    """The signal that decided a reward. `who` is None if the person is unknown or the submitter is not a user."""

    name: str
    submitter: str
    value: float
    is_good: bool
    at: float
    who: PersonName | None
    pace: PaceName | None
    copied_from: str = ""
    """The sample key of a session's last call, if the signal was made from one about the session."""
    sketch: bytes | None = None
    """Of what the voter inserted into the answer (repeats.py), empty if that is nothing. None if its text would not be learned."""


class VoteDecision(NamedTuple):
    """The decision about a sample: its submitter ("" if there was no vote), value, weight, and reward before the offset.

    `counted`: the signals whose delay was counted. `evidence`: where its reaction is counted for silent answers (silence.py).
    """

    submitter: str
    value: float
    weight: float
    reason: str
    reward: float | None
    offset: float
    counted: tuple[str, ...] = ()
    evidence: str = ""


UNDECIDED = VoteDecision("", 0.0, 1.0, "", None, 0.0)
"""For a sample that must be stored although it has no vote."""


class Rules:
    """The rules of a task about votes, ready for use. Raises InvalidTask if it asks for a signal that it does not declare."""

    def __init__(self, task: Task) -> None:
        self.task = task
        windows = {name: rule.window_seconds or 0.0 for name, rule in task.signals.items()}
        self.slow = {name: window for name, window in windows.items() if window > task.window_seconds}
        if unknown := sorted(task.asked_for - task.signals.keys()):
            raise InvalidTask(
                f"{task.where('asking', 'signals')}: asking.signals: {unknown[0]!r} is not a signal of task {task.name!r}; "
                f"ask for some of {sorted(task.signals)}"
            )

    def waiting(self, item: ScoredSample, decided_by: str | None) -> list[str]:
        """The slow signals that are missing and would replace the deciding one; empty if users decide nothing."""
        if item.fault == "model" or self.task.signals_weight <= 0:
            return []
        heard = {signal.name for signal in item.signals}
        asked = was_asked(item)
        order = [name for name, _ in (self.task.ranked_signals if asked else self.task.ranked_unasked)]
        above = order if decided_by is None else order[: order.index(decided_by)]
        return [name for name in above if name in self.slow and name not in heard and self.share(name, asked=asked) > 0]

    def share(self, name: str, *, asked: bool) -> float:
        """The weight of a signal before its submitter is looked at."""
        asking = self.task.asking
        return 1.0 if asking is None or asked or name not in self.task.asked_for else asking.volunteers

    def vote(self, item: ScoredSample) -> Vote | None:
        """The vote that decided the reward; None if no signal did."""
        if item.reward is None or item.fault == "model" or self.task.signals_weight <= 0:
            return None
        score = next((score for score in item.scores if score.weight > 0 and score.value is not None), None)
        said = [signal for signal in item.signals if score is not None and signal.name == score.name]
        if score is None or score.value is None or not said:
            return None
        newest = max(said, key=lambda signal: (signal.at, signal.id))
        low, high = self.task.reward.low, self.task.reward.high
        is_good = score.value >= low + _HALF * (high - low)
        submitter = newest.submitter
        # The name in the request was never validated, and PostgreSQL cannot store NUL.
        asker = (item.person or "").replace("\0", "")
        person = (submitter.id if submitter.id != ANONYMOUS else asker)[:_MAX_ID]
        is_user = submitter.kind == "user"
        is_watched = is_user and self.task.trust.burst is not None
        own = [signal for signal in item.signals if signal.submitter == submitter]
        reads = self.task.learning.reads_edits
        return Vote(
            name=score.name,
            submitter=person or submitter.id[:_MAX_ID],
            value=score.value,
            is_good=is_good,
            at=newest.received_at,
            who=(item.tenant, item.task, person) if person and is_user else None,
            pace=(item.task, item.cluster[:_MAX_CLUSTER], "good" if is_good else "bad") if is_watched else None,
            copied_from=newest.share.last if newest.share is not None and newest.share.is_derived else "",
            sketch=sketch_of(item.prompt, item.text, edit_in(self.task, own) or item.text) if reads else None,
        )


def everybody_of(who: PersonName) -> PersonName:
    """The name of the row that sums up all people of the task."""
    return (*who[:2], "")


def start_of(pace: PaceName) -> PaceName:
    """The name of the row that remembers when the first vote of the task came."""
    return pace[0], "", "all"


class Ballot:
    """Decides about the votes of a batch, one after the other."""

    def __init__(
        self, earlier: dict[str, VoteDecision], people: dict[PersonName, Person], paces: dict[PaceName, VotePace]
    ) -> None:
        """`earlier`: previous decisions about these samples, by key. The arguments are changed in place."""
        self.made, self.people, self.paces = earlier, people, paces
        self.delays: Counter[DelayName] = Counter()

    def take(self, rules: Rules, item: ScoredSample, vote: Vote | None) -> tuple[VoteDecision, str]:
        """The decision about a sample, and why its vote weighs less. If the vote is refused, an earlier one stays in force."""
        earlier = self.made.get(item.key)
        counted = self._count_delays(rules, item, earlier.counted if earlier else ())
        if vote is None:
            if counted:
                self.made[item.key] = (earlier or UNDECIDED)._replace(counted=counted)
            return VoteDecision("", 0.0, 1.0, "", item.reward, 0.0), ""
        first = self.made.get(vote.copied_from) if vote.copied_from else None
        if first is not None and first.submitter == vote.submitter:
            # One person said it once, of the whole session: it was weighed and charged with the session's last call.
            copied = first._replace(counted=counted, evidence=earlier.evidence if earlier else "", reward=item.reward)
            self.made[item.key] = copied
            return copied, first.reason
        share = rules.share(vote.name, asked=was_asked(item))
        # A volunteer's first vote weighed nothing, so it was not charged. Another signal of theirs may count as a new vote.
        is_new = earlier is not None and earlier.reason == "not_asked" and earlier.weight == 0.0 < share
        if earlier is not None and earlier.submitter == vote.submitter and not is_new:
            made = self._revised(item, vote, earlier, share)
        else:
            made = self._weighed(rules, item, vote, share)
        reason = made.reason
        if made.weight == 0.0 and earlier is not None and earlier.submitter and earlier.weight > 0.0:
            made = earlier
        self.made[item.key] = made._replace(counted=counted, evidence=earlier.evidence if earlier else "")
        return made, reason

    def remember_evidence(self, key: str, evidence: str) -> None:
        """Store where a sample's reaction is counted for silent answers."""
        if evidence or key in self.made:
            self.made[key] = self.made.get(key, UNDECIDED)._replace(evidence=evidence)

    def _revised(self, item: ScoredSample, vote: Vote, earlier: VoteDecision, share: float) -> VoteDecision:
        if self._is_repeated(vote):
            return earlier._replace(weight=0.0, reason="repeated_edit")
        if vote.who and earlier.reason != "not_asked":
            self.people[vote.who].total += vote.value - earlier.value
        if earlier.reason == "not_asked" and share == 1.0:
            earlier = earlier._replace(weight=1.0, reason="")
        return earlier._replace(reward=item.reward, value=vote.value)

    def _weighed(self, rules: Rules, item: ScoredSample, vote: Vote, share: float) -> VoteDecision:
        trust, offset, reason = rules.task.trust, 0.0, "" if share == 1.0 else "not_asked"
        if share > 0.0 and vote.who is not None:
            person = self.people[vote.who]
            if trust.relative:
                everybody = self.people[everybody_of(vote.who)]
                mean = everybody.total / everybody.num if everybody.num else vote.value
                offset = offset_of(person, mean, trust.shrinkage)
            if refusal := self._refusal(rules, item, vote, person):
                share, reason = 0.0, refusal
            elif trust.relative:
                # Everybody's mean takes the corrected vote, so that frequent voters do not dominate it.
                said = clipped(vote.value + offset, rules.task.reward.low, rules.task.reward.high)
                everybody.num, everybody.total = everybody.num + 1, everybody.total + said
        elif share > 0.0 and self._is_burst(rules.task.trust.burst, vote):
            share, reason = 0.0, "burst"
        return VoteDecision(vote.submitter, vote.value, share, reason, item.reward, rules.task.signals_weight * offset)

    def _refusal(self, rules: Rules, item: ScoredSample, vote: Vote, person: Person) -> str:
        trust = rules.task.trust
        person.num, person.total = person.num + 1, person.total + vote.value
        if item.audited is not None:
            person.agreement = person.agreement.plus(said_good=vote.is_good, found_good=item.audited >= _HALF)
        if is_suspended(person.agreement, trust.suspend_tail):
            return "suspended_submitter"
        if self._is_repeated(vote):
            return "repeated_edit"
        if not person.has_votes(vote.at, trust.votes, trust.window_seconds):
            return "influence_cap"
        if self._is_burst(trust.burst, vote):
            return "burst"
        person.spend(vote.at, trust.window_seconds)
        return ""

    def _is_repeated(self, vote: Vote) -> bool:
        if vote.sketch is None or vote.who is None:
            return False
        return is_repeated(self.people[vote.who], self.people[everybody_of(vote.who)], vote.sketch)

    def _is_burst(self, rule: BurstRule | None, vote: Vote) -> bool:
        if rule is None or vote.pace is None:
            return False
        bucket, start = math.floor(vote.at / rule.bucket_seconds), start_of(vote.pace)
        if self.paces[start].bucket < 0:
            self.paces[start] = VotePace(bucket)
        pace = self.paces[vote.pace]
        if pace.bucket < 0:
            # Count as silent since the first vote of the task: a rare prompt must not be a way to start without a history.
            pace = VotePace(min(bucket, self.paces[start].bucket)).at(bucket, rule.history)
        self.paces[vote.pace], is_burst = bursts.vote(pace, vote.at, rule)
        return is_burst

    def _count_delays(self, rules: Rules, item: ScoredSample, counted: tuple[str, ...]) -> tuple[str, ...]:
        """Count a new answer, and each slow signal when it first arrives; returns the signals counted so far."""
        for name, window in rules.slow.items():
            cohort = delay.cohort_of(item.finished_at, window)
            if item.revision == 1:
                self.delays[item.task, name, cohort, delay.ANSWERS] += 1
            received = [signal.received_at for signal in item.signals if signal.name == name]
            if received and name not in counted:
                counted = (*counted, name)
                seconds = max(0.0, min(received) - item.finished_at)
                if seconds <= window:
                    self.delays[item.task, name, cohort, delay.bucket_of(seconds)] += 1
        return counted


def was_asked(item: ScoredSample) -> bool:
    """Whether the app was told to ask this user for feedback."""
    return is_asked(parse_sample_key(item.key)[0], item.ask_probability)
