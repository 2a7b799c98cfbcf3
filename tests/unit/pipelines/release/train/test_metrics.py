"""The level of a version is shared, and never more than spent."""

from __future__ import annotations

import pytest

from pipelines.release.train.metrics import GUARDRAILS, PRIMARY, RESPONSE, levels, margin_of
from runtime.train_settings import TrainSettings


@pytest.mark.parametrize(("num_tasks", "num_primaries"), [(1, 1), (1, 0), (4, 2), (21, 21)])
def test_all_comparisons_together_spend_the_level(num_tasks: int, num_primaries: int) -> None:
    allowed = levels(0.002, num_tasks=num_tasks, num_primaries=num_primaries)
    num_guardrails = (
        num_tasks * len(GUARDRAILS) + num_primaries + 1
    )  # responses of each task, and the answers of each unit
    spent = num_primaries * allowed.primary + num_guardrails * allowed.guardrail
    assert spent == pytest.approx(0.002)
    assert num_primaries == 0 or allowed.primary > allowed.guardrail


def test_margins_are_those_of_the_settings() -> None:
    settings = TrainSettings(margin=0.01, guardrail_margin=0.02, length_margin=0.3)
    metrics = (PRIMARY, RESPONSE, GUARDRAILS["refuses"], GUARDRAILS["tokens"], GUARDRAILS["seconds"])
    assert [margin_of(metric, settings) for metric in metrics] == [0.01, 0.02, 0.02, 0.3, 0.3]
