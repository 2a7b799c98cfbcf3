"""How families mark reasoning. Pure."""

from __future__ import annotations

from typing import NamedTuple


class ReasoningMarks(NamedTuple):
    """What opens and closes reasoning.

    Attributes:
        opener: begins with a marker; more text may follow.
        closer: a marker.
        opener_marker: the marker with which `opener` begins.
    """

    opener: str
    closer: str
    opener_marker: str


REASONING = (
    ReasoningMarks("<think>", "</think>", "<think>"),
    ReasoningMarks("[THINK]", "[/THINK]", "[THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", "<|START_THINKING|>"),
    ReasoningMarks("<|channel>thought\n", "<channel|>", "<|channel>"),
    ReasoningMarks("<seed:think>", "</seed:think>", "<seed:think>"),
)
"""The first pair that a template names is its own."""


def reasoning_of(source: str) -> ReasoningMarks | None:
    """The marks of a template; None if it has none."""
    return next((marks for marks in REASONING if marks.opener_marker in source and marks.closer in source), None)
