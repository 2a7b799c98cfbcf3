"""Batches in the form of trl's reward functions and OpenRLHF's reward servers, and the rewards that they return.

This is not a kind of verifier. `function` and `http` share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, BatchVerifier, Check, broken, unlabelled

RESERVED = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"})


class ColumnsConfig(TaskSection):
    """The settings that both kinds have."""

    conversational: bool = True
    """Prompts and completions are lists of messages, as trl passes chats; else texts."""
    reference_column: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """`metadata.reference` is passed under this name too, for example `solution`; answers without a reference are unlabelled."""
    minimum: float = 0.0
    """The reward that becomes 0."""
    maximum: float = 1.0
    """The reward that becomes 1."""
    batch_size: int = Field(default=32, ge=1, le=1024)
    """The most answers in one call."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.maximum <= self.minimum:
            raise ValueError("maximum must be above minimum")
        if self.reference_column in RESERVED:
            raise ValueError(
                f"reference_column: {self.reference_column!r} is reserved for another column; choose another name"
            )
        return self


def columns_of(answers: Sequence[Answer], config: ColumnsConfig) -> dict[str, list[Any]]:
    """`prompts`, `completions`, and a list for each metadata key of any answer, with None where an answer lacks the key."""
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


def in_batches(
    config: ColumnsConfig, ask: Callable[[Sequence[Sequence[Answer]]], Iterable[Sequence[Check]]]
) -> BatchVerifier:
    """A verifier that calls `ask` with batches, for one check per answer. Answers without a needed reference are left out."""

    def check_all(answers: Sequence[Answer]) -> list[Check]:
        is_asked = [config.reference_column is None or answer.reference is not None for answer in answers]
        asked = list(compress(answers, is_asked))
        batches = [asked[start : start + config.batch_size] for start in range(0, len(asked), config.batch_size)]
        found = chain.from_iterable(ask(batches))
        return [next(found) if is_one else unlabelled("no metadata.reference") for is_one in is_asked]

    return BatchVerifier(check_all)


def checks_of(rewards: object, num_answers: int, config: ColumnsConfig) -> list[Check] | str:
    """One check for each reward; or, as text, why this is not a list of rewards for these answers."""
    if not isinstance(rewards, list):
        return f"it answered {type(rewards).__name__} for {num_answers} answers, not a list"
    if len(rewards) != num_answers:
        return f"it answered {len(rewards)} rewards for {num_answers} answers"
    return [_check(reward, config) for reward in rewards]


def _check(reward: object, config: ColumnsConfig) -> Check:
    if reward is None:
        return unlabelled("it gave no reward")
    # Bools count as numbers, as in trl: True is 1 and False is 0.
    if not isinstance(reward, int | float):
        return broken(f"it answered {reward!r}, which is not a number")
    try:
        reward = float(reward)
    except OverflowError:
        return broken("it answered a whole number that does not fit a float")
    if not math.isfinite(reward):
        return broken(f"it answered {reward!r}")
    low, high = config.minimum, config.maximum
    if not low <= reward <= high:
        return broken(f"it answered {reward:g}, outside of {low:g} to {high:g}; set minimum and maximum")
    return Check((reward - low) / (high - low))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return str(content or "")
