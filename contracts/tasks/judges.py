"""A judge, declared: which models are asked, about what, what they may cost, and how good they have to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.rewards import GraderRule, Role
from contracts.tasks.section import Misplaced, TaskSection

PAIRWISE_LEVELS = ("second", "tie", "first")
"""What a comparison may say, worst to best for the first answer."""


class Bar(TaskSection):
    """What a judge must reach on labels before its word counts (docs/rewards.md)."""

    kappa: float = Field(default=0.6, ge=-1, le=1)
    """Agreement with the labels beyond chance, at least; with more than two levels, weighted by how far apart they are."""
    order_flips: float = Field(default=0.05, ge=0, le=1)
    """Share of pairs whose verdict changes with their order, at most."""
    master_keys: float = Field(default=0.01, ge=0, le=1)
    """Share of empty phrases that pass for an answer, at most."""


class Price(TaskSection):
    """Money for a million tokens, in the currency of `money_per_day`."""

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)


class JudgeEndpoint(TaskSection):
    """One model behind an OpenAI-compatible endpoint."""

    url: str = Field(pattern=r"^https?://")
    """Base URL, up to and with `/v1`."""
    model: str = Field(min_length=1)
    """Name of the model there."""
    revision: str = ""
    """Which weights stand behind that name, if the name does not say it: another one is another judge."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    price_per_million_tokens: Price = Price()


class JudgeRule(GraderRule):
    """One judge: one model, or several whose verdicts are combined. With the role `watch` it never trains anything."""

    role: Role = "component"
    """As of a verifier. `watch` is the hold-out judge."""
    about: Literal["answer", "follow_up"] = "answer"
    """What is judged: the answer, or what the user wrote next (`signal` and `watch` only)."""
    protocol: Literal["pointwise", "pairwise"] = "pointwise"
    """Absolute levels, or comparison in both orders with the other choices of the same completion."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """As of a member: a judge is one model, or `members`."""
    model: str | None = Field(default=None, min_length=1)
    """As of a member."""
    revision: str = ""
    """As of a member."""
    api_key_env: str | None = None
    """As of a member."""
    price_per_million_tokens: Price = Price()
    """As of a member."""
    members: tuple[JudgeEndpoint, ...] = ()
    """Several models, of different families, all of whom are asked."""
    combine: Literal["min", "quantile"] = "min"
    """How the members make one value."""
    quantile: float = Field(default=0.25, ge=0, le=0.5)
    """Which quantile of their values, for `quantile`: a lower one."""
    fallback: JudgeEndpoint | None = None
    """Who is asked where another gave no verdict. It has to be admitted as well."""

    criteria: str = Field(min_length=1)
    """What is asked: one criterion, atomic, in words."""
    levels: tuple[str, ...] = Field(default=("no", "yes"), min_length=2)
    """Absolute levels, worst to best, evenly spaced from 0 to 1."""
    expected_level: bool = False
    """Weigh the levels by their probabilities, where the endpoint offers `top_logprobs`."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Of the judge's own answer."""
    max_tokens: int = Field(default=512, ge=16)
    """Of the judge's own answer."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Other fields of the request, for example `reasoning_effort`; they replace ours. With `max_completion_tokens`,
    `max_tokens` is left out."""
    max_chars: int = Field(default=16_000, ge=200)
    """Longer texts lose their middle."""
    pregate: bool = True
    """Answers that are empty, symbols only or an opening phrase only are the worst, unasked."""

    connect_seconds: float = Field(default=5.0, gt=0)
    """For a connection."""
    read_seconds: float = Field(default=60.0, gt=0)
    """For a whole reply."""
    retries: int = Field(default=2, ge=0, le=2)
    """After 429, 5xx and timeouts."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Calls side by side."""
    cache_days: float = Field(default=30.0, gt=0)
    """How long a verdict is kept."""

    sample_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the answers that is judged at all, drawn by key."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Above that, the share falls by halves; each process has as many."""
    money_per_day: float | None = Field(default=None, gt=0)
    """Likewise, over all processes. It is not spent faster than evenly over the day, give or take an hour."""

    admission: Path | None = None
    """What `millrace judge admit` wrote; without it the judge may only watch. Relative to the task file."""
    bar: Bar = Bar()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        alone = self.url is not None and self.model is not None
        if alone == bool(self.members) or (self.members and (self.url or self.model)):
            raise ValueError("a judge is `url` and `model`, or `members`, each with its own: say one of the two")
        if len({level.strip().casefold() for level in self.levels} - {""}) != len(self.levels):
            raise Misplaced("levels must differ, and none may be empty", "levels")
        if self.about == "follow_up" and self.role not in {"signal", "watch"}:
            raise Misplaced("what the user wrote next is a signal: set role to `signal` or `watch`", "about")
        if self.about == "follow_up" and self.protocol == "pairwise":
            raise Misplaced("what the user wrote next has no siblings: set protocol to `pointwise`", "protocol")
        if self.money_per_day is not None and not any(
            end.price_per_million_tokens.input or end.price_per_million_tokens.output for end in self.endpoints
        ):
            message = "it needs `price_per_million_tokens`, for example { input = 0.5, output = 1.5 }"
            raise Misplaced(message, "money_per_day")
        return self

    @property
    def endpoints(self) -> tuple[JudgeEndpoint, ...]:
        """Everybody who is asked of every answer."""
        if self.members:
            return self.members
        return (
            JudgeEndpoint(
                url=self.url or "",
                model=self.model or "",
                revision=self.revision,
                api_key_env=self.api_key_env,
                price_per_million_tokens=self.price_per_million_tokens,
            ),
        )

    @property
    def scale(self) -> tuple[str, ...]:
        """What a verdict may say, worst to best."""
        return PAIRWISE_LEVELS if self.protocol == "pairwise" else self.levels
