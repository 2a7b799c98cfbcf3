import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.learning.advantages import Part, Scored, advantages, component_advantages, component_of
from pipelines.training.learning.trackers import BetaTracker, Entry, MovingAverageTracker, Tracker


def sample(reward: float, prompt: bytes = b"", key: str = "task", weight: float = 1.0, version: int = 0) -> Scored:
    return Scored(reward, key, prompt or str(reward).encode(), version, weight)


def test_advantage_is_reward_less_what_the_tracker_expects() -> None:
    tracker = BetaTracker(entries={"a": (Entry(0, 0.75, 4.0),), "b": (Entry(0, 0.25, 4.0),)})
    found = advantages([sample(1.0, b"p", "a"), sample(1.0, b"q", "b")], tracker, whiten=False).values
    assert found.tolist() == [0.25, 0.75]


def test_samples_of_one_prompt_are_measured_against_each_other() -> None:
    batch = [sample(1.0, b"p"), sample(0.0, b"p"), sample(0.5, b"p"), sample(1.0, b"q")]
    assert advantages(batch, BetaTracker(), whiten=False).values.tolist() == [0.75, -0.75, 0.0, 0.5]


def test_an_answer_is_measured_against_what_its_own_version_was_expected_to_earn() -> None:
    tracker = BetaTracker(entries={"task": (Entry(1, 0.25, 9.0), Entry(8, 0.75, 9.0))})
    batch = [sample(1.0, b"p", version=1), sample(1.0, b"q", version=7), sample(1.0, b"r", version=8)]
    assert advantages(batch, tracker, whiten=False).values.tolist() == [0.75, 0.75, 0.25]
    same_prompt = [sample(1.0, b"p", version=1), sample(0.0, b"p", version=8)]
    assert advantages(same_prompt, tracker, whiten=False).values.tolist() == [0.75, -0.75], "versions are no group"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_whitened_advantages_are_finite_centred_and_of_unit_size(rewards: list[float]) -> None:
    samples = [sample(reward, str(i).encode()) for i, reward in enumerate(rewards)]
    found = advantages(samples, BetaTracker(), whiten=True).values
    assert np.isfinite(found).all()
    if len(rewards) > 1:
        assert abs(found.mean()) < 1e-9
        assert found.std() < 1 + 1e-9


def test_a_lone_sample_still_teaches() -> None:
    assert advantages([sample(1.0)], BetaTracker(), whiten=True).values.tolist() == [0.5]


def test_reading_changes_no_tracker() -> None:
    tracker = BetaTracker()
    advantages([sample(1.0), sample(0.0)], tracker, whiten=True)
    assert tracker.entries == {}


def test_others_of_a_prompt_are_a_baseline_by_their_weight() -> None:
    batch = [sample(1.0, b"p", weight=0.5), sample(0.0, b"p", weight=0.25), sample(1.0, b"p", weight=0.75)]
    found = advantages(batch, BetaTracker(), whiten=False).values
    assert found.tolist() == pytest.approx([1 - 0.75, 0 - 1, 1 - 0.5 / 0.75])


def test_whitening_weighs() -> None:
    batch = [sample(1.0, b"p", weight=0.2), sample(0.0, b"q"), sample(0.5, b"r")]
    weights = np.array([0.2, 1.0, 1.0])
    found = advantages(batch, BetaTracker(), whiten=True).values
    assert np.average(found, weights=weights) == pytest.approx(0)
    assert np.average(found**2, weights=weights) == pytest.approx(1)


def test_the_scale_is_what_a_unit_of_reward_was_multiplied_by() -> None:
    batch = [sample(reward, str(n).encode()) for n, reward in enumerate([1.0, 0.0, 1.0, 0.5, 0.0, 0.0, 1.0, 0.25])]
    found, raw = advantages(batch, BetaTracker(), whiten=True), advantages(batch, BetaTracker(), whiten=False)
    assert np.diff(found.values) == pytest.approx(np.diff(raw.values) * found.scale)
    assert raw.scale == advantages(batch[:1], BetaTracker(), whiten=True).scale == 1.0


def test_a_calm_batch_does_not_make_corrections_loud() -> None:
    batch = [sample(1.0, str(number).encode()) for number in range(16)]
    assert advantages(batch, BetaTracker(), whiten=True).scale == 4.0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from("pqrs"), st.sampled_from("ab")), min_size=1, max_size=12),
    st.sampled_from(["beta", "moving_average"]),
)
def test_one_component_is_the_total(content: list[tuple[float, str, str]], kind: str) -> None:
    samples = [sample(reward, prompt.encode(), key) for reward, prompt, key in content]
    trackers: list[Tracker] = [BetaTracker() if kind == "beta" else MovingAverageTracker() for _ in range(2)]
    parts = [{"only": Part(item.reward, 1.0)} for item in samples]
    for _ in range(2):
        total = advantages(samples, trackers[0], whiten=True)
        by_component = component_advantages(samples, parts, trackers[1])
        assert by_component.values == pytest.approx(total.values)
        assert by_component.scale == pytest.approx(total.scale)
        for item, part in zip(samples, parts, strict=True):
            trackers[0].update(item.baseline_key, 0, item.reward)
            row = component_of(item, "only", part["only"])
            trackers[1].update(row.baseline_key, 0, row.reward)


def test_a_component_of_small_spread_is_not_drowned_by_one_of_large_spread() -> None:
    tone = [0.4, 0.6, 0.4, 0.6]
    truth = [1.0, 1.0, 0.0, 0.0]
    samples = [sample((a + b) / 2, str(n).encode()) for n, (a, b) in enumerate(zip(tone, truth, strict=True))]
    parts = [{"tone": Part(a, 0.5), "truth": Part(b, 0.5)} for a, b in zip(tone, truth, strict=True)]
    total = advantages(samples, BetaTracker(), whiten=True).values
    found = component_advantages(samples, parts, BetaTracker()).values
    assert total[1] - total[0] == pytest.approx(0.2 * (total[0] - total[2]))
    assert found[1] - found[0] == pytest.approx(found[0] - found[2])
    assert found.tolist() == pytest.approx([0.0, 1.0, -1.0, 0.0])


def test_a_missing_component_counts_as_its_mean() -> None:
    samples = [sample(1.0, b"p"), sample(0.0, b"q"), sample(1.0, b"r")]
    parts = [{"a": Part(1.0, 0.5)}, {"a": Part(0.0, 0.5)}, {"b": Part(1.0, 0.5)}]
    assert component_advantages(samples, parts, BetaTracker()).values.tolist() == pytest.approx([0.5, -0.5, 0.25])
    assert component_advantages([], [], BetaTracker()).values.tolist() == []
