"""Whom to believe, and how far, declared: who is asked, who is audited, how much one person may say."""

from __future__ import annotations

from pydantic import Field

from contracts.tasks.section import TaskSection


class AskingRule(TaskSection):
    """A random share of answers carries `ask_feedback`: the app asks there, so that it is known who could have spoken."""

    probability: float = Field(gt=0, le=1)
    """Of being asked."""
    signals: tuple[str, ...] = ()
    """What is asked for; by default the signals that mean thumbs."""
    volunteers: float = Field(default=0.0, ge=0, le=1)
    """Weight of a sample that such a signal decided where nobody had asked: volunteers are not a random share."""


class AuditRule(TaskSection):
    """A random share of samples is shown to a judge, whatever users said: what corrects the estimate of all others."""

    probability: float = Field(default=0.005, gt=0, le=1)
    """Of being audited."""
    judge: str
    """The name of a judge of this task, with the role `watch`."""


class BurstRule(TaskSection):
    """Many votes to the same effect about one kind of prompt, far above its own history: they weigh nothing for a while."""

    bucket_seconds: float = Field(default=600.0, gt=0)
    """Votes are counted over so long."""
    history: int = Field(default=144, ge=6)
    """So many of these intervals are remembered."""
    tail: float = Field(default=1e-6, ge=1e-12, le=0.1)
    """As many votes or more had this probability, going by the history."""
    min_votes: int = Field(default=20, ge=2)
    """Fewer in one interval are never a burst."""
    quarantine_seconds: float = Field(default=3600.0, ge=0)
    """So long after a burst such votes go on weighing nothing, unless somebody looked and cleared it."""


class TrustRule(TaskSection):
    """How far one person's signals move the policy."""

    votes: int = Field(default=20, ge=1)
    """Samples a person decides at full weight in a window; further ones weigh nothing. Signals that name nobody have no
    such limit: name users to be protected from them."""
    window_seconds: float = Field(default=86_400.0, gt=0)
    """The window, from a person's first vote in it."""
    shrinkage: float = Field(default=20.0, ge=0)
    """A person's own mean counts as n / (n + shrinkage) against everybody's."""
    relative: bool = False
    """True: a reward is how much better it is than the person's own mean, so that who always votes down says nothing."""
    suspend_tail: float = Field(default=1e-3, gt=0, le=0.1)
    """Who agrees with audits so much less than chance that this is its probability is suspended: weight 0."""
    burst: BurstRule | None = None
    quarantine_seconds: float = Field(default=0.0, ge=0)
    """How long a sample waits before its first use, so that bursts are seen and withdrawals cost nothing."""
