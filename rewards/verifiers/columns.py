"""A batch as trl's reward functions and OpenRLHF's reward servers take it, and the rewards that they give back.

Not a kind of verifier: `function` and `http` share it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, Check, broken, unlabelled

RESERVED = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"})


class ColumnsConfig(TaskSection):
    """What both kinds have in their configs."""

    conversational: bool = True
    """Prompts and completions are lists of messages, as trl passes chats; else texts."""
    reference_column: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """`metadata.reference` is passed under this name too, for example `solution`; answers without one are not asked."""
    minimum: float = 0.0
    """The reward that is worth 0."""
    maximum: float = 1.0
    """The reward that is worth 1."""
    batch_size: int = Field(default=32, ge=1, le=1024)
    """Answers in one call, at most."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.maximum <= self.minimum:
            raise ValueError("maximum must be above minimum")
        if self.reference_column in RESERVED:
            raise ValueError(f"reference_column: {self.reference_column!r} is the name of something else")
        return self


def columns_of(answers: Sequence[Answer], config: ColumnsConfig) -> dict[str, list[Any]]:
    """`prompts`, `completions`, and a list for each key of the metadata of any answer, None where it is missing."""
    keys = {key: None for answer in answers for key in answer.metadata if key not in RESERVED}
    columns: dict[str, list[Any]] = {key: [answer.metadata.get(key) for answer in answers] for key in keys}
    if config.reference_column:
        columns[config.reference_column] = [answer.reference for answer in answers]
    if config.conversational:
        columns["prompts"] = [[dict(message) for message in answer.messages] for answer in answers]
        columns["completions"] = [[{"role": "assistant", "content": answer.text}] for answer in answers]
    else:
        columns["prompts"] = ["\n\n".join(_text(message) for message in answer.messages) for answer in answers]
        columns["completions"] = [answer.text for answer in answers]
    return columns


def unasked(answer: Answer, config: ColumnsConfig) -> Check | None:
    """Why there is no point in asking about this answer."""
    if config.reference_column and answer.reference is None:
        return unlabelled("no metadata.reference")
    return None


def checks_of(rewards: object, num_answers: int, config: ColumnsConfig) -> list[Check] | str:
    """One check for each reward; or, as text, why this is no list of rewards for these answers."""
    if not isinstance(rewards, list):
        return f"it answered {type(rewards).__name__} for {num_answers} answers, not a list"
    if len(rewards) != num_answers:
        return f"it answered {len(rewards)} rewards for {num_answers} answers"
    return [_check(reward, config) for reward in rewards]


def _check(reward: object, config: ColumnsConfig) -> Check:
    if reward is None:
        return unlabelled("it has nothing to say")
    # Bools are numbers, as trl takes them: right is 1 and wrong is 0.
    if not isinstance(reward, int | float):
        return broken(f"it answered {reward!r}, which is no number")
    try:
        reward = float(reward)
    except OverflowError:
        return broken("it answered a whole number that no float can hold")
    if not math.isfinite(reward):
        return broken(f"it answered {reward!r}")
    if not config.minimum <= reward <= config.maximum:
        return broken(
            f"it answered {reward:g}, outside of {config.minimum:g} to {config.maximum:g}; set minimum and maximum"
        )
    return Check((reward - config.minimum) / (config.maximum - config.minimum))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return str(content or "")
