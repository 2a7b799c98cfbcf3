"""The components of a reward, for normalising each on its own scale instead of their sum. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.training.learning.advantage import Part

if TYPE_CHECKING:
    from contracts.records import Experience, Score

SIGNALS = "signals"
"""All signals of users together are one component."""
TOTAL = "total"
_ROUNDING = 1e-6


def parts_of(experience: Experience, low: float, high: float) -> dict[str, Part]:
    """Known components by name; if there are none, the whole reward as one component.

    Graders give a share in [0, 1], which is scaled to between `low` and `high`; signals give rewards. The signals get the weight
    that the graders leave of 1. If a gate refused the answer, every component gets the worst value, including graders that did
    not run: otherwise the refusal would teach nothing about them.
    """
    graders = [score for score in experience.scores if score.weight > 0 and not _is_signal(score)]
    left = 1.0 - sum(score.weight for score in graders)
    refused = experience.fault == "model"
    found = {
        score.name: Part(low if refused or score.value is None else low + (high - low) * score.value, score.weight)
        for score in graders
        if refused or (score.status == "scored" and score.value is not None)
    }
    said = (experience.reward or 0.0) if refused else _said(experience)
    if said is not None and left > _ROUNDING:
        found[SIGNALS] = Part(said, left)
    return found or {TOTAL: Part(experience.reward or 0.0, 1.0)}


def _is_signal(score: Score) -> bool:
    return score.grader.startswith("signal/")


def _said(experience: Experience) -> float | None:
    said = [
        (score.weight, score.value)
        for score in experience.scores
        if _is_signal(score) and score.weight > 0 and score.status == "scored" and score.value is not None
    ]
    if not said:
        return None
    return sum(weight * value for weight, value in said) / sum(weight for weight, _ in said)
