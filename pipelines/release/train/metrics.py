"""The metrics that a train compares, and how a loss is told from chance and from what the settings permit. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from runtime.train_settings import TrainSettings

Better = Literal["higher", "lower", "same"]
REWARD, HEARD, TOKENS, SECONDS = "reward", "heard", "tokens", "seconds"
UNFELT_SECONDS = 0.1
"""What takes less feels instant (Miller, "Response time in man-computer conversational transactions", 1968)."""


class Metric(NamedTuple):
    """A number of an answer whose mean is compared."""

    name: str
    label: str
    """For a person: "v7 has more {label}"."""
    better: Better
    is_log: bool = False
    """True: the number is a logarithm, and differences are shown as ratio - 1. False: a share or a reward, in [0, 1]."""
    added: float = 0.0
    """To what the logarithm was taken of, in its unit: differences that are small beside it count for little."""
    blames_version: bool = True
    """False: the place of the canary's slots may be the cause (too few, a slow machine), so a loss revokes nothing."""


PRIMARY = Metric(REWARD, "reward", "higher")
RESPONSE = Metric(HEARD, "answers that users spoke of", "same")
"""If other people speak in one arm, what they say cannot be compared."""
ANSWERS = Metric("answers", "answers of each unit", "same", is_log=True)
"""If records of one arm are lost, or its people come back less often, the answers that are left are not those of all."""

GUARDRAILS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("truncated", "answers that were cut off", "lower"),
        Metric("errors", "answers that failed", "lower", blames_version=False),
        Metric("cancelled", "answers that nobody waited for", "lower", blames_version=False),
        Metric("empty", "empty answers", "lower"),
        Metric("refuses", "refusals", "lower"),
        Metric("misshapen", "misshapen answers", "lower"),
        Metric("invalid_tool_call", "invalid tool calls", "lower"),
        Metric(TOKENS, "tokens per answer", "lower", is_log=True, added=1.0),
        Metric(SECONDS, "seconds per answer", "lower", is_log=True, added=UNFELT_SECONDS, blames_version=False),
    )
}
"""Fast facts by their name in `AnswerRow.metrics`. """
NAMES = (*GUARDRAILS, HEARD)
"""What is read of `AnswerRow.metrics`."""

SHADOW_PART = 0.1
"""Of a version's level: its shadow. The rest is for what users do, which sees smaller losses."""
_PRIMARY_PART = 0.8
"""Of the level: the rare false alarm is best spent where most versions lose, and guardrails lose in leaps."""


class Levels(NamedTuple):
    """The level of each comparison, so that all of them together falsely end the train with at most the canary's level (Bonferroni)."""

    primary: float
    guardrail: float


def shadow_level(settings: TrainSettings) -> float:
    """The chance that the shadow refuses a version which is no worse."""
    return SHADOW_PART * settings.level if settings.shadow_prompts > 0 else 0.0


def canary_level(settings: TrainSettings) -> float:
    """The same for the canary. Both together are the level of the version."""
    return settings.level - shadow_level(settings)


def levels(level: float, *, num_tasks: int, num_primaries: int) -> Levels:
    """Share the level among all metrics of all tasks, whether they have data yet or not."""
    num_guardrails = num_tasks * len(GUARDRAILS) + num_primaries + 1  # the last: `ANSWERS`
    if not num_primaries:
        return Levels(level, level / max(1, num_guardrails))
    return Levels(_PRIMARY_PART * level / num_primaries, (1.0 - _PRIMARY_PART) * level / num_guardrails)


def margin_of(metric: Metric, settings: TrainSettings) -> float:
    """The largest loss that is permitted, in natural units."""
    if metric.name == REWARD:
        return settings.margin
    return settings.length_margin if metric.is_log else settings.guardrail_margin
