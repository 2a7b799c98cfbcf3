"""Whom to believe, and how far, declared: who is asked, who is audited, how much one person may say."""

from __future__ import annotations

from pydantic import Field

from contracts.tasks.part import Part


class AskingRule(Part):
    """A random share of answers carries `ask_feedback`: the app asks there, so that it is known who could have spoken."""

    probability: float = Field(gt=0, le=1)
    """Of being asked."""


class AuditRule(Part):
    """A random share of samples is shown to a judge, whatever users said: what corrects the estimate of all others."""

    probability: float = Field(default=0.005, gt=0, le=1)
    """Of being audited."""
    judge: str
    """The name of a judge of this task, with the role `watch`."""


class TrustRule(Part):
    """How far one person's signals move the policy."""

    votes: int = Field(default=20, ge=1)
    """Samples a person decides at full weight in a window; further ones weigh nothing."""
    window_seconds: float = Field(default=86_400.0, gt=0)
    """The window."""
    shrinkage: float = Field(default=20.0, ge=0)
    """A person's own mean counts as n / (n + shrinkage) against everybody's."""
    quarantine_seconds: float = Field(default=0.0, ge=0)
    """How long a sample waits before its first use, so that bursts are seen and withdrawals cost nothing."""
