"""A judge, declared: which model is asked, about what, what it may cost, and how good it has to be."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from contracts.tasks.part import Part
from contracts.tasks.rewards import GraderRule, Role


class Bar(Part):
    """What a judge must reach on labels before its word counts (docs/rewards.md)."""

    kappa: float = Field(default=0.6, ge=-1, le=1)
    """Agreement with the labels beyond chance, at least."""
    order_flips: float = Field(default=0.05, ge=0, le=1)
    """Share of pairs whose verdict changes with their order, at most."""
    master_keys: float = Field(default=0.01, ge=0, le=1)
    """Share of empty phrases that pass for an answer, at most."""


class JudgeRule(GraderRule):
    """One judge: an OpenAI-compatible endpoint, ours included. With the role `watch` it never trains anything."""

    role: Role = "component"
    """As of a verifier. `watch` is the hold-out judge."""
    url: str
    """Base URL, up to and with `/v1`."""
    model: str
    """Name of the model there."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    criteria: str
    """What is asked: one criterion, atomic, in words."""
    levels: tuple[str, ...] = Field(default=("no", "yes"), min_length=2)
    """Absolute levels, worst to best, evenly spaced from 0 to 1."""
    admission: Path | None = None
    """What `millrace judge admit` wrote; without it the judge may only watch. Relative to the task file."""
    bar: Bar = Bar()
