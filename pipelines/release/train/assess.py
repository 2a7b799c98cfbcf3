"""What the answers of a train say now: every metric of every task, the sample ratio, silence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipelines.release.train.answers import Answers, TaskRule
from pipelines.release.train.ratio import expected_share
from runtime.train_settings import TrainSettings


class Standing(NamedTuple):
    """Where a train stands. Times are UTC epoch seconds."""

    stage: int
    """Index into the settings' stages; -1 in shadow."""
    stage_at: float
    started_at: float
    state: str
    """shadow, canary or stopped."""


class Assessment(NamedTuple):
    """What the answers say."""

    facts: Mapping[str, Any]
    """JSON: stored in the train's row, read by the page."""


def assess(
    answers: Answers, tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float, standing: Standing
) -> Assessment:
    """Compare canary and live. Answers from before `standing.started_at` or from the future are left out, by name."""
    _ = tasks
    share = settings.stages[max(standing.stage, 0)]
    return Assessment(
        {
            "at": now,
            "num_canary_units": 0,
            "num_control_units": 0,
            "newest_at": None,
            "unit_kinds": {},
            "metrics": [],
            "sample_ratio": {"expected": expected_share(share, settings.control_ratio), "seen": None, "num": 0},
            "left_out": dict(answers.left_out),
            "says": "Nothing is known yet.",
            "stage_ready_at": None,
        }
    )
