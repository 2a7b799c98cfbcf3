"""What a train does next. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipelines.release.train.assess import Assessment, Standing
from runtime.train_settings import TrainSettings

MoveKind = Literal["stay", "advance", "arrive", "withdraw", "revoke", "stop", "go_on"]


class TrainMove(NamedTuple):
    """What to do, and why, in words for the operator."""

    kind: MoveKind
    reason: str


def decide(standing: Standing, assessment: Assessment, settings: TrainSettings, now: float) -> TrainMove:
    """The next move of a train."""
    _ = standing, settings, now
    return TrainMove("stay", str(assessment.facts["says"]))
