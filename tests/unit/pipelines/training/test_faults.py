"""A sample with an infrastructure fault or without a reward has no effect on any other sample."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.event_log import LogRecord
from contracts.records import Experience, Score
from pipelines.training.known.experiences import prompt_of
from pipelines.training.learning.advantages import (
    SIGNALS,
    TOTAL,
    Scored,
    advantages,
    component_advantages,
    component_of,
    parts_of,
)
from pipelines.training.learning.trackers import BetaTracker, MovingAverageTracker, Tracker
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.reading import NullMass
from pipelines.training.state import Fate, TrainerState
from tests.unit.pipelines.training.builders import experience, segment

Step = tuple[list[str], list[float], float, dict[str, Any]]

INFRA: dict[str, Any] = {"reward": None, "status": "unscored", "fault": "infra"}
NULLS: list[dict[str, Any]] = [
    INFRA,
    {"reward": None, "status": "unlabelled"},
    # A grader's placeholder beside its fault: no number is believed.
    {"reward": 0.0, "status": "scored", "fault": "infra"},
    {"reward": 0.5, "status": "unscored", "fault": "infra"},
    {"reward": None, "status": "unscored", "fault": "user"},
]


def item(key: str, prompt: int, **changes: Any) -> Experience:
    return experience(segment([prompt, 2], [3], [-1.0]), key=key, **changes)


def steps(history: list[Experience], tracker: Tracker, batch_size: int, *, by_component: bool) -> list[Step]:
    """Every batch of a history as it would be trained: keys, advantages, scale, and the baselines after it."""
    intake, found = Intake(TrainerState()), []
    for offset, one in enumerate([*history, None]):
        if one is not None:
            record = LogRecord("experiences", 0, offset, one.key, b"", 0.0)
            intake.passed(record)
            intake.offer(record, one, 0.0)
        if len(intake) == batch_size or (one is None and len(intake)):
            batch = intake.draw(batch_size).samples
            rows = [Scored(each.reward or 0.0, each.baseline_key, prompt_of(each), 0, each.weight) for each in batch]
            parts = [parts_of(each, 0.0, 1.0) for each in batch]
            learned = (
                component_advantages(rows, parts, tracker) if by_component else advantages(rows, tracker, whiten=True)
            )
            for row, part in zip(rows, parts, strict=True):
                for told in [component_of(row, name, part[name]) for name in part] if by_component else [row]:
                    tracker.update(told.baseline_key, told.version, told.reward, told.weight)
            for each in batch:
                intake.decide(each.key, Fate.trained(each, 1.0))
            found.append(([each.key for each in batch], learned.values.tolist(), learned.scale, tracker.to_json()))
    return found


samples = st.tuples(
    st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([1, 5, 6]), st.sampled_from("ab"), st.sampled_from([1.0, 0.5])
)
nulls = st.tuples(st.integers(0, 20), st.sampled_from(NULLS), st.sampled_from([1, 5, 6]), st.sampled_from("ab"))


@given(
    st.lists(samples, max_size=12),
    st.lists(nulls, min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from([BetaTracker, MovingAverageTracker]),
    st.booleans(),
)
def test_what_has_no_reward_changes_nothing_wherever_it_comes(
    content: list[tuple[float, int, str, float]],
    missing: list[tuple[int, dict[str, Any], int, str]],
    batch_size: int,
    make: type[BetaTracker | MovingAverageTracker],
    by_component: bool,
) -> None:
    """Even with the same prompts and baseline keys: batches, advantages, groups, trackers and scales do not change."""
    scored = [
        item(f"s{number}", prompt, reward=reward, baseline_key=key, weight=weight)
        for number, (reward, prompt, key, weight) in enumerate(content)
    ]
    mixed = list(scored)
    for number, (place, null, prompt, key) in enumerate(missing):
        mixed.insert(place, item(f"n{number}", prompt, baseline_key=key, **null))
    expected = steps(scored, make(), batch_size, by_component=by_component)
    assert steps(mixed, make(), batch_size, by_component=by_component) == expected


def test_a_fault_of_the_model_is_in_the_batch_and_in_the_baselines() -> None:
    right = [item(f"r{number}", number + 5) for number in range(3)]
    wrong = item("w", 9, reward=0.0, fault="model")
    ((keys, values, _, tracker),) = steps([*right, wrong], BetaTracker(), 9, by_component=False)
    ((_, _, _, without),) = steps(right, BetaTracker(), 9, by_component=False)
    assert values[keys.index("w")] == min(values) < 0
    assert tracker["entries"]["task"][0][1] < without["entries"]["task"][0][1]


def test_the_mass_without_reward_is_counted_by_version_and_from_then_on() -> None:
    mass = NullMass()
    for number in range(4):
        mass.add(item(str(number), 5))
        mass.add(item(f"n{number}", 5, **(INFRA if number else {})))
    mass.add(item("sentinel", 5, purpose="sentinel", **INFRA))
    assert mass.take() == {"null_mass": 3 / 8, "null_mass_of_version": {"0": 3 / 8}}
    assert mass.take() == {"null_mass": 0.0, "null_mass_of_version": {}}


# Components.

WATCHED = Score(name="watched", grader="exact/1#h", value=0.0, weight=0.0)


def scores(tone: float | None, truth: float | None, *said: float) -> tuple[Score, ...]:
    graded = [("tone", tone, 0.25), ("truth", truth, 0.25)]
    return (
        WATCHED,
        *(
            Score(name=name, grader="judge/1#h", value=value, weight=weight, status="scored" if value is not None else "unscored")
            for name, value, weight in graded
        ),
        *(Score(name=f"signal{n}", grader="signal/2#h", value=value, weight=float(n == 0)) for n, value in enumerate(said)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scores": scores(0.5, 1.0, 0.75, 0.0)}, {"tone": (0.0, 0.25), "truth": (1.0, 0.25), SIGNALS: (0.75, 0.5)}),
        ({"scores": scores(None, 1.0)}, {"truth": (1.0, 0.25)}),
        ({"scores": scores(None, 1.0, 0.5), "fault": "model", "reward": -1.0},
         {"tone": (-1.0, 0.25), "truth": (-1.0, 0.25), SIGNALS: (-1.0, 0.5)}),
        ({"scores": (WATCHED,), "reward": 0.25}, {TOTAL: (0.25, 1.0)}),
        ({"scores": (Score(name="signal", grader="signal/2#h", value=1.0),)}, {SIGNALS: (1.0, 1.0)}),
    ],
)  # fmt: skip
def test_components_are_rewards_and_a_refused_gate_puts_all_of_them_at_the_worst(
    changes: dict[str, Any], expected: dict[str, tuple[float, float]]
) -> None:
    found = parts_of(item("a", 5, **changes), -1.0, 1.0)
    assert {name: (part.value, part.weight) for name, part in found.items()} == expected
