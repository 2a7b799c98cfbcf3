"""Sections about people: how many are asked, what is audited, and how much one person counts."""

from __future__ import annotations

from pydantic import Field

from contracts.tasks.section import TaskSection


class AskingRule(TaskSection):
    """A random share of answers carries `ask_feedback`. The app asks there, so it is known who could have answered."""

    probability: float = Field(gt=0, le=1)
    """Probability that an answer carries `ask_feedback`."""
    signals: tuple[str, ...] = ()
    """Signals to ask for. Default: those with `means = "thumbs"`."""
    volunteers: float = Field(default=0.0, ge=0, le=1)
    """Weight of a sample that one of these signals decided without a question: volunteers are not a random sample."""


class AuditRule(TaskSection):
    """A judge grades a random share of samples, independent of users' signals; this corrects the estimates for all others."""

    probability: float = Field(default=0.005, gt=0, le=1)
    """Probability that a sample is audited."""
    judge: str
    """The name of a judge of this task, with the role `watch`."""


class BurstRule(TaskSection):
    """A burst: many equal votes about one kind of prompt, far above its history. Such votes get weight 0 for a while."""

    bucket_seconds: float = Field(default=600.0, gt=0)
    """Length of the intervals in which votes are counted."""
    history: int = Field(default=144, ge=6)
    """Number of intervals in the history."""
    tail: float = Field(default=1e-6, ge=1e-12, le=0.1)
    """A count is a burst if the history gives it, or a higher one, at most this probability."""
    min_votes: int = Field(default=20, ge=2)
    """Fewer votes in one interval are never a burst."""
    quarantine_seconds: float = Field(default=3600.0, ge=0)
    """How long after a burst such votes have weight 0, unless an operator clears it."""


class TrustRule(TaskSection):
    """How far one person's signals move the policy."""

    votes: int = Field(default=20, ge=1)
    """Samples that one person decides at full weight in a window; further ones have weight 0. Signals without a submitter have
    no limit: send the user with each signal to be protected."""
    window_seconds: float = Field(default=86_400.0, gt=0)
    """The window, from a person's first vote in it."""
    shrinkage: float = Field(default=20.0, ge=0)
    """A person's own mean gets the weight n / (n + shrinkage), the mean of all people the rest."""
    relative: bool = False
    """True: the reward is the difference from the person's own mean, so a person who always votes down has no effect."""
    suspend_tail: float = Field(default=1e-3, gt=0, le=0.1)
    """A person is suspended (weight 0) if chance would give as little agreement with audits with at most this probability."""
    burst: BurstRule | None = None
    quarantine_seconds: float = Field(default=0.0, ge=0)
    """How long a sample waits before its first use, so that bursts are detected, and withdrawn signals are never used."""
