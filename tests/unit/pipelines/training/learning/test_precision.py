"""What a step computes with and what it holds: precision, recomputed layers, the frozen copy, the mismatch of a version."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

from contracts.records import Experience
from pipelines.training.learning.reference import frozen_copy
from pipelines.training.settings import TrainingSettings
from policy.logprobs import TokenScorer, recomputed
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import a_learner, experience, model_of, segment
from tests.unit.pipelines.training.checkpoints.test_replay import mixture, through_other_experts


def batch(count: int = 6) -> list[Experience]:
    """Answers at about the log-prob that a random model of 704 tokens gives them."""
    random, found = np.random.default_rng(2), []
    for number in range(count):
        prompt, answer = (random.integers(2, 704, length).tolist() for length in (5 + number, 4 + 3 * number))
        found.append(experience(segment(prompt, answer, [-math.log(704)] * len(answer)), reward=number % 2))
    return found


def gradients(model: Any, items: list[Experience], **changes: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """As the optimizer sees them, with the figures of the step."""
    settings = TrainingSettings(
        divergence_bound=math.inf, step_bound=math.inf, max_gradient_norm=1e9, kl_coefficient=0.02, mismatch_samples=0
    )
    learner, found = a_learner(model, settings, **changes), {}

    def note(*_: object) -> None:
        named = model_of(learner).model.named_parameters()
        found.update({name: each.grad.clone() for name, each in named if each.grad is not None})

    model_of(learner).optimizer.register_step_pre_hook(note)
    metrics = learner.step(items, [1.0] * len(items), {}).metrics
    return found, metrics


def test_bfloat16_has_float32_masters_moments_and_gradients_near_those_of_float32() -> None:
    expected, plain = gradients(tiny_model("qwen3"), batch())
    found, reduced = gradients(tiny_model("qwen3"), batch(), precision="bfloat16")
    assert {each.dtype for each in found.values()} == {torch.float32}
    assert plain["gradient_norm"] > 0.01
    together, wanted = (torch.cat([each[name].flatten() for name in expected]) for each in (found, expected))
    assert torch.nn.functional.cosine_similarity(together, wanted, dim=0) > 0.99
    assert not torch.equal(together, wanted)  # else it was not reduced
    assert reduced["k1"] == pytest.approx(plain["k1"], abs=0.02)
    assert reduced["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=0.05)


@pytest.mark.parametrize(
    "kind", ["qwen3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gemma3", "lfm2"))]
)
def test_layers_that_run_again_give_the_same_gradient(kind: str) -> None:
    expected, _ = gradients(tiny_model(kind), batch(), recompute="never")
    for changes in ({"recompute": "always"}, {"recompute": "auto", "max_tokens": 8}):
        found, _ = gradients(tiny_model(kind), batch(), **changes)
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, atol=1e-4 * float(each.abs().max()), rtol=0, msg=name)


@pytest.mark.slow
def test_layers_that_run_again_take_the_recorded_experts_again() -> None:
    items = through_other_experts(6)
    expected, plain = gradients(mixture(), items, recompute="never")
    found, again = gradients(mixture(), items, recompute="always")
    assert again["k3"] == pytest.approx(plain["k3"], abs=1e-5)
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, atol=1e-4 * float(each.abs().max()), rtol=0, msg=name)


def test_recomputed_layers_hold_less() -> None:
    model, held = tiny_model("qwen3").requires_grad_(requires_grad=True), []
    ids = torch.arange(2, 202)[None]
    for context in (torch.no_grad, lambda: recomputed(model)):
        sizes: dict[int, int] = {}

        def note(each: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
            return each

        with torch.autograd.graph.saved_tensors_hooks(note, lambda each: each):
            if context is torch.no_grad:
                model(input_ids=ids, use_cache=False)
            else:
                with context():
                    model(input_ids=ids, use_cache=False)
        held.append(sum(sizes.values()))
    assert held[1] < 0.6 * held[0]  # the head's logits are in both
    assert "forward" not in vars(model.base_model.layers[0])


@pytest.mark.parametrize(("recompute", "changes"), [("auto", 2), ("always", 1), ("never", 0)])
def test_where_memory_ran_out_compiled_layers_run_again_in_part_and_then_as_a_whole(
    recompute: str, changes: int
) -> None:
    trainee = model_of(a_learner(tiny_model("llama"), TrainingSettings(kl_coefficient=0.0), recompute=recompute))
    trainee.scorer.compile_layers(lambda graph, _inputs: graph)
    assert [trainee.hold_less() for _ in range(3)] == [True] * changes + [False] * (3 - changes)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "qwen3_moe", "lfm2", "gpt2"])
def test_a_frozen_copy_takes_two_bytes_and_computes_as_a_float32_one(kind: str) -> None:
    model = tiny_model(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    found = frozen_copy(model)
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        assert torch.equal(found(input_ids=ids, use_cache=False).logits, model(input_ids=ids, use_cache=False).logits)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_log_probs_are_float32_under_autocast() -> None:
    model = tiny_model("qwen3")
    scorer, ids = TokenScorer(model), torch.arange(2, 40)[None]
    mask = torch.ones(1, 37, dtype=torch.bool)
    with torch.no_grad():
        expected = scorer(ids, torch.ones_like(ids), mask, 1.0).log_probs_BT
        with torch.autocast("cpu", torch.bfloat16):
            found = scorer(ids, torch.ones_like(ids), mask, 1.0).log_probs_BT
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().max() < 0.05


def test_a_version_is_measured_once_and_its_figure_stays() -> None:
    settings = TrainingSettings(divergence_bound=math.inf, step_bound=math.inf, mismatch_samples=4)
    learner, items = a_learner(tiny_model("qwen3"), settings), batch()
    asked: list[int] = []
    published = _Counting(asked, {0: None})
    first = learner.step(items, [1.0] * 6, published).metrics
    again = learner.step(items, [1.0] * 6, published).metrics
    assert asked == [0] * len(asked)
    assert len(asked) == 1
    for name in ("mismatch_k1", "mismatch_k3", "mismatch_tokens", "mismatch_version"):
        assert again[name] == first[name] is not None


class _Counting(dict[int, Any]):
    """Notes which version's bits were taken."""

    def __init__(self, asked: list[int], bits: dict[int, Any]) -> None:
        super().__init__(bits)
        self._asked = asked

    def __getitem__(self, version: int) -> Any:
        self._asked.append(version)
        return super().__getitem__(version)


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_float32_is_the_cpu_s_own(precision: Literal["auto", "float32"]) -> None:
    found, _ = gradients(tiny_model("llama"), batch(), precision=precision)
    expected, _ = gradients(tiny_model("llama"), batch())
    for name, each in expected.items():
        assert torch.equal(found[name], each), name
