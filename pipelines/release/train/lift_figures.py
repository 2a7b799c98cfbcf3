"""The lift in figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.release.train.answers import AnswerRow, TaskRule
from runtime.train_settings import TrainSettings


def lift_of(
    rows: Sequence[AnswerRow], tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float
) -> dict[str, Any]:
    """Difference live - hold-out."""
    del tasks, settings, now
    num = {arm: len({row.unit for row in rows if row.arm == arm}) for arm in ("holdout", "live")}
    return {"difference": None, "low": None, "high": None, "num_holdout": num["holdout"], "num_live": num["live"]}
