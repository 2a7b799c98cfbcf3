"""The section [[judges]]: which models are asked, about what, what they may cost, and how good they must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.rewards import GraderRule, Role
from contracts.tasks.section import Misplaced, TaskSection

PAIRWISE_LEVELS = ("second", "tie", "first")
"""Results of a comparison, worst to best for the first answer."""


class Bar(TaskSection):
    """Quality that a judge must reach on labels before its scores count (docs/rewards.md)."""

    kappa: float = Field(default=0.6, ge=-1, le=1)
    """Least agreement with the labels beyond chance. With more than two levels, weighted by their distance."""
    order_flips: float = Field(default=0.05, ge=0, le=1)
    """Largest share of pairs whose verdict changes with their order."""
    master_keys: float = Field(default=0.01, ge=0, le=1)
    """Largest share of empty phrases that the judge accepts as an answer."""


class Price(TaskSection):
    """Price of a million tokens, in the currency of `money_per_day`."""

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)


class JudgeEndpoint(TaskSection):
    """One model behind an OpenAI-compatible endpoint."""

    url: str = Field(pattern=r"^https?://")
    """Base URL, including `/v1`."""
    model: str = Field(min_length=1)
    """Name of the model at this endpoint."""
    revision: str = ""
    """Revision of the weights, if the name does not include it. Another revision is another judge."""
    api_key_env: str | None = None
    """Environment variable with the API key."""
    price_per_million_tokens: Price = Price()


class JudgeRule(GraderRule):
    """One judge: one model, or several whose verdicts are combined. With the role `watch` it never affects training."""

    role: Role = "component"
    """As for a verifier. `watch` makes it a hold-out judge."""
    about: Literal["answer", "follow_up"] = "answer"
    """What is judged: the answer, or the user's next message (only for `signal` and `watch`)."""
    protocol: Literal["pointwise", "pairwise"] = "pointwise"
    """Absolute levels, or comparisons in both orders with the other choices of the same completion."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """As for a member: a judge has one model, or `members`."""
    model: str | None = Field(default=None, min_length=1)
    """As for a member."""
    revision: str = ""
    """As for a member."""
    api_key_env: str | None = None
    """As for a member."""
    price_per_million_tokens: Price = Price()
    """As for a member."""
    members: tuple[JudgeEndpoint, ...] = ()
    """Several models, of different families. All of them are asked."""
    combine: Literal["min", "quantile"] = "min"
    """How the members' values combine."""
    quantile: float = Field(default=0.25, ge=0, le=0.5)
    """For `quantile`: which quantile of their values."""
    fallback: JudgeEndpoint | None = None
    """Asked if another endpoint gave no verdict. It must be admitted too."""

    criteria: str = Field(min_length=1)
    """The question: one criterion, in words."""
    levels: tuple[str, ...] = Field(default=("no", "yes"), min_length=2)
    """Levels from worst to best, evenly spaced from 0 to 1."""
    expected_level: bool = False
    """Use the mean level, weighted by probability, if the endpoint offers `top_logprobs`."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of the judge."""
    max_tokens: int = Field(default=512, ge=16)
    """Longest answer of the judge, in tokens."""
    request: dict[str, Any] = Field(default_factory=dict)
    """More fields of the request, for example `reasoning_effort`; they override ours. `max_completion_tokens` removes
    `max_tokens`."""
    max_chars: int = Field(default=16_000, ge=200)
    """Longer texts are cut in the middle."""
    pregate: bool = True
    """Give answers that are empty, only symbols or only an opening phrase the worst level, without asking."""

    connect_seconds: float = Field(default=5.0, gt=0)
    """Timeout for connecting."""
    read_seconds: float = Field(default=60.0, gt=0)
    """Timeout for a whole reply."""
    retries: int = Field(default=2, ge=0, le=2)
    """Retries after 429, 5xx and timeouts."""
    concurrency: int = Field(default=16, ge=1, le=256)
    """Concurrent calls."""
    cache_days: float = Field(default=30.0, gt=0)
    """How long a verdict is kept."""

    sample_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the answers that is judged, drawn by key."""
    imported: bool = False
    """Judge imported answers too. There may be as many at once as in years of traffic."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Above this rate, the share is halved repeatedly. Each process has its own limit."""
    money_per_day: float | None = Field(default=None, gt=0)
    """The same for money, over all processes. It is spent evenly over the day, within about an hour."""

    admission: Path | None = None
    """The file that `millrace judge admit` wrote, relative to the task file. Without it, the judge may only watch."""
    bar: Bar = Bar()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        alone = self.url is not None and self.model is not None
        if alone == bool(self.members) or (self.members and (self.url or self.model)):
            raise ValueError(
                "a judge has either `url` and `model`, or `members` with these fields: give one of the two"
            )
        if len({level.strip().casefold() for level in self.levels} - {""}) != len(self.levels):
            raise Misplaced("levels must be different and not empty", "levels")
        if self.about == "follow_up" and self.role not in {"signal", "watch"}:
            raise Misplaced("a judge of the user's next message is a signal: set role to `signal` or `watch`", "about")
        if self.about == "follow_up" and self.protocol == "pairwise":
            raise Misplaced(
                "the user's next message has nothing to compare with: set protocol to `pointwise`", "protocol"
            )
        if self.money_per_day is not None and not any(
            end.price_per_million_tokens.input or end.price_per_million_tokens.output for end in self.endpoints
        ):
            message = "this needs `price_per_million_tokens`, for example { input = 0.5, output = 1.5 }"
            raise Misplaced(message, "money_per_day")
        return self

    @property
    def endpoints(self) -> tuple[JudgeEndpoint, ...]:
        """The endpoints that are asked about every answer."""
        if self.members:
            return self.members
        return (JudgeEndpoint.model_validate({name: getattr(self, name) for name in JudgeEndpoint.model_fields}),)

    @property
    def scale(self) -> tuple[str, ...]:
        """Possible verdicts, worst to best."""
        return PAIRWISE_LEVELS if self.protocol == "pairwise" else self.levels
