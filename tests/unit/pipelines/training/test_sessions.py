"""Calls of a session that was judged as a whole: one batch, one baseline, one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.records import Experience
from contracts.turns import SessionShare
from pipelines.training.learning.advantages import advantages, advantages_of
from pipelines.training.learning.micro_batches import packed_batches
from pipelines.training.learning.trackers import MovingAverageTracker
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.refusals import TrainingLimits, refuse
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from tests.unit.pipelines.training.builders import experience, segment
from tests.unit.pipelines.training.samples.test_intake import at

SEGMENT = segment([1, 2], [3], [-1.0])


def call(
    session: str, index: int, calls: int = 3, credit: float = 1.0, group: str | None = None, **changes: Any
) -> Experience:
    share = SessionShare(session, "chatcmpl-0:0", index, calls, credit, 0.0, group)
    values: dict[str, Any] = {"key": f"{session}{index}", "share": share, "weight": credit} | changes
    return experience(changes.pop("row", SEGMENT), **{name: value for name, value in values.items() if name != "row"})


def read(*experiences: Experience) -> Intake:
    intake = Intake(TrainerState())
    for offset, item in enumerate(experiences):
        intake.offer(at(offset), item, 0.0)
    return intake


def test_the_calls_of_a_session_are_taken_together() -> None:
    alone = [experience(SEGMENT, key=f"z{number}") for number in range(3)]
    intake = read(call("a", 0), alone[0], call("b", 0), alone[1], call("a", 1), call("b", 1), call("a", 2), alone[2])
    assert intake.draw(2).keys == ["a0", "a1", "a2"], "whole, though the batch is larger"
    assert intake.draw(5).keys == ["a0", "a1", "a2", "b0", "b1", "z0"]
    assert intake.draw(3, lambda item: item.key == "a1").keys == ["a0", "a1", "a2"]
    assert intake.draw(3, lambda item: item.key in {"a1", "a2"}).keys == ["a0", "a1", "z0"], "a quarter may be old"


def test_sessions_of_two_tenants_or_tasks_are_not_one() -> None:
    intake = read(call("a", 0), call("a", 1, tenant="other", key="o"), call("a", 2, task="another", key="t"))
    assert len(intake.draw(1).keys) == 1


def test_a_session_counts_once_in_baseline_and_whitening() -> None:
    """One session of nine calls that failed and one of a single call that was solved: the mean is in the middle."""
    calls = [call("a", index, 9, reward=0.0) for index in range(9)] + [call("b", 0, 1, reward=1.0)]
    found = advantages_of(calls, MovingAverageTracker(initial=0.3), TrainingSettings(whiten=True)).values
    assert found[:9] == pytest.approx([-1.0] * 9)
    assert found[9] == pytest.approx(1.0)
    tracker = MovingAverageTracker(initial=0.3)
    for sample in advantages_of(calls, tracker, TrainingSettings()).samples:
        tracker.update(sample.baseline_key, sample.version, sample.reward, sample.weight)
    one_each = MovingAverageTracker(initial=0.3)
    for reward in (0.0, 1.0):
        one_each.update("task", 0, reward, 1.0)
    assert tracker.expect("task", 0) == pytest.approx(one_each.expect("task", 0), abs=0.06), "not .1, the mean of calls"


def test_sessions_of_a_group_are_compared_with_each_other() -> None:
    """One session of nine calls, one of two, one of one: each counts once in the baseline of the others."""
    tries = [call("a", index, 9, group="g", reward=0.0) for index in range(9)]
    tries += [call("b", index, 2, group="g", reward=1.0) for index in range(2)] + [
        call("c", 0, 1, group="g", reward=0.5)
    ]
    others = [call("d", 0, 1, group="alone", reward=1.0), call("e", 0, 1, reward=1.0)]
    others += [
        call("f", 0, 1, group="g", reward=1.0, tenant="else"),
        call("h", 0, 1, group="g", reward=1.0, task="else"),
    ]
    tracker = MovingAverageTracker(initial=0.3)
    found = advantages_of([*tries, *others], tracker, TrainingSettings(whiten=False)).values
    assert found[:9] == pytest.approx([-0.75] * 9), "0 against the mean of 1 and .5"
    assert found[9:11] == pytest.approx([0.75] * 2)
    assert found[11] == pytest.approx(0.0)
    assert found[12:] == pytest.approx([0.7] * 4), "alone in its group, in none, of another tenant, of another task"


def test_sessions_of_a_group_follow_each_other() -> None:
    waiting = [call("a", 0, group="g"), call("b", 0), call("c", 0), call("d", 0, group="g"), call("a", 1, group="g")]
    assert read(*waiting).draw(3).keys == ["a0", "a1", "d0"]
    assert read(*waiting).draw(4).keys == ["a0", "a1", "b0", "d0"]


def test_a_lone_session_is_not_its_own_mean() -> None:
    calls = [call("a", index, reward=1.0) for index in range(3)]
    found = advantages_of(calls, MovingAverageTracker(initial=0.25), TrainingSettings(whiten=True)).values
    assert found == pytest.approx([0.75] * 3)


def test_credit_is_no_part_of_the_baseline() -> None:
    calls = [call("a", 0, 2, credit=0.25), call("a", 1, 2)]
    assert [sample.weight for sample in advantages_of(calls, MovingAverageTracker(), TrainingSettings()).samples] == [
        0.5,
        0.5,
    ]


@pytest.mark.parametrize("credit", [0.0, 1e-300])
def test_a_credit_that_its_weight_cannot_have_is_refused(credit: float) -> None:
    limits = TrainingLimits(max_length=99, vocabulary_size=99, policy="tiny")
    refusal = refuse(call("a", 0, credit=credit, weight=1.0), None, limits, 0.0)  # type: ignore[arg-type]
    assert refusal is not None
    assert refusal.reason == "impossible_weight"


def test_fifty_turns_are_one_row() -> None:
    """Each call's prompt is the call before, its answer and a tool's result: all but new tokens were computed already."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, 90, 40).tolist()
    calls, alone = [], 0
    for index in range(50):
        answer = generator.integers(1, 90, 12).tolist()
        calls.append(call("a", index, 50, row=segment(tokens, answer, [-1.0] * 12)))
        alone += len(tokens) + 12
        tokens = [*tokens, *answer, *generator.integers(1, 90, 20).tolist()]
    (batch,) = packed_batches(calls, max_tokens=4096)
    assert batch.num_tokens <= len(tokens)
    assert alone / batch.num_tokens > 10
    assert len(batch.labels_S) == 50 * 12, "each answer is trained once"


def test_no_samples_are_no_session() -> None:
    assert len(advantages([], MovingAverageTracker(), whiten=True).values) == 0
