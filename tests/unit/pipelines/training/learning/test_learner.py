# ruff: noqa: N806 - tensors carry the letters of their dimensions

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import WeightsRefused
from contracts.records import Experience
from contracts.sampling import Span
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.micro_batches import micro_batches
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from policy.logprobs import TokenScorer
from tests.tolerances import network_tolerance, tolerance
from tests.unit.pipelines.training.builders import (
    a_learner,
    captured,
    experience,
    random_experience,
    remembering,
    segment,
    tiny_model,
    weights_now,
)  # fmt: skip

SETTINGS = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)
CONFIG = tiny_model().config
# k3 is exp(d) - d - 1: what is left of numbers near 1 that cancel, and the square of an error d.
K3_ROUNDING = tolerance(torch.float32, num_terms=3, depth=2)


def batch(count: int = 8, seed: int = 0, *, temperature: float = 1.0) -> list[Experience]:
    random = np.random.default_rng(seed)
    return [random_experience(random, temperature=temperature) for _ in range(count)]


def on_policy(count: int, temperature: float, *, spans: tuple[Span, ...] = (Span(0, 0),)) -> list[Experience]:
    """Experiences whose logged log-probs are exactly those of the tiny base."""
    scorer, found = TokenScorer(tiny_model()), []
    for item in batch(count, 3, temperature=temperature):
        (micro,) = micro_batches([item], max_tokens=1000)
        log_probs_BT = scorer(micro.input_ids_BL, micro.attention_mask_BL, micro.mask_BT, temperature).log_probs_BT
        tokens = micro.input_ids_BL[0].tolist()
        start = item.segments[0].loss_mask.index(1)
        logged = log_probs_BT[0][micro.mask_BT[0]].tolist()
        made = segment(tokens[:start], tokens[start:], logged, temperature=temperature, spans=spans)
        found.append(experience(made, reward=item.reward))
    return found


def step(learner: Learner, items: list[Experience]) -> dict[str, float | None]:
    return learner.step(items, [1.0] * len(items), {0: None}).metrics


def test_a_step_makes_rewarded_answers_likelier() -> None:
    learner = a_learner(tiny_model(), SETTINGS)
    items = on_policy(6, 1.0)
    first = learner.step(items, [1.0] * 6, {})
    for _ in range(4):
        last = learner.step(items, [1.0] * 6, {})
    gained: dict[float, list[float]] = {0.0: [], 1.0: []}
    for now, before in zip(last.samples, first.samples, strict=True):
        gained[now["reward"]].append(now["log_prob_sum"] - before["log_prob_sum"])
    assert gained[0.0]
    assert min(gained[1.0]) > max(0.0, *gained[0.0])


def test_a_sample_pulls_by_its_weight() -> None:
    items = on_policy(6, 1.0)
    settings = SETTINGS.model_copy(update={"kl_coefficient": 0.0})

    def norm(weight: float) -> float:
        found = a_learner(tiny_model(), settings).step(items, [weight] * 6, {}).metrics["gradient_norm"]
        assert found is not None
        return found

    assert norm(1.0) > 0.0
    assert norm(0.25) == pytest.approx(norm(1.0) / 4, rel=network_tolerance(CONFIG, backward=True))
    assert norm(0.0) == 0.0


def test_the_leash_is_held_by_the_base_policy_however_far_the_policy_went() -> None:
    learner, items = a_learner(tiny_model(), SETTINGS), on_policy(6, 1.0)
    leash = [step(learner, items)["anchor_kl"] for _ in range(3)]
    assert leash[0] == pytest.approx(0.0, abs=K3_ROUNDING)
    assert leash[1] is not None
    assert leash[2] is not None
    assert 1e-4 < leash[1] < leash[2]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_on_policy_samples_show_no_mismatch_and_full_ess(temperature: float) -> None:
    metrics = step(a_learner(tiny_model(), SETTINGS), on_policy(6, temperature))
    rounding = network_tolerance(CONFIG, temperature)
    assert metrics["mismatch_tokens"] == metrics["num_tokens"]
    assert metrics["mismatch_k1"] == pytest.approx(0, abs=rounding)
    assert metrics["mismatch_k3"] == pytest.approx(0, abs=K3_ROUNDING)
    assert metrics["ess"] == pytest.approx(1, abs=rounding)
    assert metrics["ratio_max"] == pytest.approx(1, abs=rounding)


def test_mismatch_stays_zero_while_the_policy_moves_on() -> None:
    learner, items = a_learner(tiny_model(), SETTINGS), on_policy(6, 1.0)
    step(learner, items)
    metrics = step(learner, items)
    assert metrics["k3"] is not None
    assert metrics["k3"] > 1e-4
    assert metrics["mismatch_k3"] == pytest.approx(0, abs=K3_ROUNDING)


def test_samples_of_mixed_or_unknown_versions_stay_out_of_the_mismatch() -> None:
    learner = a_learner(tiny_model(), SETTINGS)
    mixed = on_policy(2, 1.0, spans=(Span(0, 0), Span(1, 1)))
    unknown = on_policy(2, 1.0, spans=(Span(0, 7),))
    metrics = step(learner, mixed + unknown)
    assert metrics["mismatch_k3"] is None
    assert metrics["mismatch_tokens"] == 0


def test_the_step_does_not_depend_on_micro_batches() -> None:
    items = batch(10) + batch(6, 1, temperature=0.5)
    small = a_learner(tiny_model(), SETTINGS, max_tokens=16)
    large = a_learner(tiny_model(), SETTINGS)
    small_metrics, large_metrics = step(small, items), step(large, items)
    for name in ("loss", "gradient_norm", "ess", "k3", "entropy", "anchor_kl"):
        assert small_metrics[name] == pytest.approx(
            large_metrics[name], rel=network_tolerance(CONFIG, 0.5, backward=True)
        ), name
    # Adam divides a gradient by its own size: one that is a hundredth of the others has a hundred times their error.
    rounding = SETTINGS.learning_rate * network_tolerance(CONFIG, 0.5, backward=True) * 100
    for name, value in weights_now(small).items():
        torch.testing.assert_close(value, weights_now(large)[name], atol=rounding, rtol=0)


def test_what_was_captured_is_restored_to_the_bit() -> None:
    learner, state = a_learner(tiny_model(), SETTINGS), TrainerState()
    step(learner, batch(seed=1))
    saved = captured(learner, state, 1)
    step(learner, batch(seed=2))
    expected, tracker = weights_now(learner), learner.tracker.to_json()

    other = a_learner(tiny_model(), SETTINGS)
    other.restore(saved)
    step(other, batch(seed=2))

    assert other.tracker.to_json() == tracker
    assert all(torch.equal(value, expected[name]) for name, value in weights_now(other).items())


def test_a_spike_changes_neither_weights_nor_moments_nor_baselines() -> None:
    learner = a_learner(tiny_model(), SETTINGS, max_gradient_norm=1e-3)
    step(learner, batch(seed=1))
    remembering(learner, [(1e-9, 1e-9)] * 20)
    before = captured(learner)
    result = learner.step(batch(seed=2), [1.0] * 8, {})
    after = captured(learner)

    assert result.skipped == "gradient_spike"
    assert after.state.tracker == before.state.tracker
    for one, other in ((before.weights, after.weights), (before.optimizer, after.optimizer)):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert len(after.state.comparable_norms) == 21


def test_utilisation_needs_a_peak() -> None:
    assert step(a_learner(tiny_model(), SETTINGS), batch())["mfu_wall_clock"] is None
    learner = a_learner(tiny_model(), SETTINGS, peak_flops=1e12)
    step(learner, batch())
    metrics = step(learner, batch())
    busy, wall = metrics["mfu_forward_backward"], metrics["mfu_wall_clock"]
    assert busy is not None
    assert wall is not None
    assert 0 < wall <= busy < 1


def test_a_checkpoint_of_another_model_is_refused_before_a_tensor_is_touched() -> None:
    learner = a_learner(tiny_model(), SETTINGS)
    step(learner, batch())
    before = captured(learner)

    def changed(**changes: Any) -> Checkpoint:
        return replace(captured(learner), **changes)

    name = next(iter(before.weights))
    fewer = {key: value for key, value in before.weights.items() if key != name}
    cut = {key: value for key, value in before.optimizer.items() if key != f"exp_avg/{name}"}
    for checkpoint, code in [
        (captured(a_learner(tiny_model(1), SETTINGS)), "other_model"),
        (changed(weights=fewer), "missing_tensor"),
        (changed(weights={**before.weights, "further": torch.zeros(1)}), "unknown_tensor"),
        (changed(weights={**before.weights, name: torch.zeros(3, 2)}), "wrong_shape"),
        (changed(optimizer=cut), "missing_tensor"),
        (changed(optimizer={**before.optimizer, f"exp_avg/{name}": torch.zeros(3, 2)}), "wrong_shape"),
    ]:
        with pytest.raises(WeightsRefused) as refused:
            learner.restore(checkpoint)
        assert refused.value.code == code
        after = captured(learner)
        assert after.state.tracker == before.state.tracker
        assert after.state.comparable_norms == before.state.comparable_norms
        assert all(torch.equal(value, before.weights[key]) for key, value in after.weights.items())
        assert all(torch.equal(value, before.optimizer[key]) for key, value in after.optimizer.items())


def test_a_checkpoint_from_before_models_had_names_is_judged_by_its_tensors() -> None:
    learner, state = a_learner(tiny_model(), SETTINGS), TrainerState()
    saved = captured(learner, state, None)
    state.model = ""
    learner.restore(saved)
