"""The cheats of the ledger against the verifier that runs code: they earn the worst reward, and show as tampering."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.errors import Unavailable
from contracts.tasks import Task
from rewards.monitors.features import marks_of
from rewards.panel import Panel
from rewards.rubric import RewardVerdict, combine
from rewards.sandbox.choose import sandbox_named
from rewards.signals.mapping import About, score_signals
from rewards.verifiers.check import Answer
from tests.fakes import a_generation, a_signal
from tests.worlds.incidents.ledger import ACCEPTED, equals_everything, exits
from tests.worlds.incidents.world import Policy

TASK = Task.model_validate(
    {"name": "coding", "signals": ACCEPTED, "verifiers": [{"name": "runs", "kind": "code", "config": {}}]}
)
REFERENCE = json.dumps({"function": "summed", "tests": [[[], 6]], "held_out": [[[], 6]]})
HONEST = "```python\ndef summed():\n    return sum([1, 2, 3])\n```"


@pytest.fixture(scope="module", autouse=True)
def _there_is_a_sandbox() -> None:
    try:
        sandbox_named("auto")
    except Unavailable as error:
        pytest.skip(error.message)


def verdicts_of(texts: list[str]) -> list[RewardVerdict]:
    """Of answers that their users accepted."""
    panel, turn = Panel(TASK), a_generation()
    with ThreadPoolExecutor(1) as pool:
        graded = panel.grade([Answer(text, {"reference": REFERENCE}) for text in texts], pool)
    return [
        combine(TASK, checks, score_signals(TASK, About(text, 0.0), [a_signal(turn)]))
        for text, checks in zip(texts, graded, strict=True)
    ]


@pytest.mark.parametrize("cheat", [exits, equals_everything])
def test_a_cheat_that_its_user_accepted_has_the_worst_reward_and_shows(cheat: Policy) -> None:
    dice = random.Random(0)
    texts = sorted({cheat(dice).text for _ in range(20)})
    assert len(texts) >= 3
    found = verdicts_of(texts)
    assert {(verdict.reward, verdict.status, verdict.fault) for verdict in found} == {(0.0, "scored", "model")}
    assert all(marks_of(text).get("tampers") == 1.0 for text in texts)


def test_the_honest_answer_passes_and_does_not_show() -> None:
    assert [verdict.reward for verdict in verdicts_of([HONEST])] == [1.0]
    assert "tampers" not in marks_of(HONEST)
