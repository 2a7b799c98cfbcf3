import math
from functools import partial

import pytest
import torch

from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import MasterAdamW
from pipelines.training.learning.step_bound import LEAST, PROBED, SHARE, SLACK, bounded_step, stride, windows
from pipelines.training.settings import TrainingSettings
from tests.unit.pipelines.training.builders import a_learner, experience, model_of, segment, tiny_model, weights_now
from tests.unit.pipelines.training.learning.test_divergence import answers


def policy(steps: int = 0) -> tuple[torch.nn.Parameter, MasterAdamW]:
    """Logits of 4 contexts over 5 tokens, after some steps, with a gradient for the next."""
    torch.manual_seed(0)
    logits = torch.nn.Parameter(torch.randn(4, 5))
    optimizer = MasterAdamW({"logits": (logits, logits)}, lr=1.0, weight_decay=0.0)
    for number in range(steps + 1):
        logits.grad = torch.randn(4, 5)
        if number < steps:
            optimizer.step()
    return logits, optimizer


def moved(before: torch.Tensor, logits: torch.Tensor) -> float:
    change = logits.detach().log_softmax(-1) - before.log_softmax(-1)
    return float(change.square().mean() / 2)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("limit", [1e-6, 1e-3, 3e-2])
def test_a_step_that_goes_too_far_is_shortened_along_its_own_line(steps: int, limit: float) -> None:
    (logits, optimizer), (free, free_optimizer) = policy(steps), policy(steps)
    before = logits.detach().clone()
    free_optimizer.step()
    assert moved(before, free) > 5e-2
    taken = bounded_step(optimizer, before.log_softmax(-1).flatten(), lambda: logits.log_softmax(-1).flatten(), limit)
    assert 0 < taken.share < 1
    assert taken.moved <= SLACK * limit
    assert moved(before, logits) == pytest.approx(taken.moved, rel=0.05)
    torch.testing.assert_close(logits.detach(), before + taken.share * (free.detach() - before), rtol=0, atol=1e-6)


def test_a_short_step_and_an_unmeasured_one_are_adamws() -> None:
    for limit in (10.0, math.inf):
        (logits, optimizer), (free, free_optimizer) = policy(), policy()
        before = logits.detach().log_softmax(-1)
        assert bounded_step(optimizer, before, partial(logits.log_softmax, -1), limit).share == 1.0
        free_optimizer.step()
        assert logits.equal(free)


def test_a_step_into_nowhere_is_taken_back() -> None:
    logits, optimizer = policy()
    before = logits.detach().clone()
    taken = bounded_step(optimizer, before.log_softmax(-1), lambda: torch.full((4, 5), math.nan), 1e-3)
    assert taken.share == 0.0
    torch.testing.assert_close(logits.detach(), before, rtol=0, atol=1e-6)


def test_the_probe_is_spread_over_the_batch() -> None:
    assert [stride(count) for count in (0, 3, 16, 33, 64)] == [1, 1, 1, 3, 4]
    assert all(-(-count // stride(count)) <= PROBED for count in range(1, 200))


def test_the_trainers_step_is_bounded_and_says_so() -> None:
    def step(**settings: float) -> tuple[Learner, float]:
        learner = a_learner(tiny_model(), TrainingSettings(learning_rate=0.03, mismatch_samples=0, **settings))
        before = weights_now(learner)
        result = learner.step(batch := answers(learner, 8), [1.0] * 8, {})
        lengths = [float((now - before[name]).abs().max()) for name, now in weights_now(learner).items()]
        assert {group["lr"] for group in model_of(learner).optimizer.param_groups} == {0.03}
        assert max(lengths) == pytest.approx(0.03 * result.step_scale, rel=0.01)
        if (found := result.metrics["step_moved"]) is not None and math.isfinite(found):
            assert found <= SLACK * settings["step_bound"] * len(batch)
        return learner, result.step_scale

    assert step(step_bound=math.inf)[1] == 1.0
    assert step(step_bound=10.0)[1] == 1.0
    assert 0 < step(step_bound=1e-5)[1] < 0.5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_the_movement_is_the_policy_s_whatever_a_step_computes_in(precision: str, factor: float) -> None:
    """In several micro-batches; in float32 with two rows in each sample. With the factor float16 overflows."""
    model = tiny_model()
    model.base_model.layers[0].mlp.down_proj.weight.data.mul_(factor)
    settings = TrainingSettings(
        learning_rate=3e-2,
        mismatch_samples=0,
        kl_coefficient=0.0,
        step_bound=1e3,
        max_tokens=40,
        divergence_bound=math.inf,
    )
    learner = a_learner(model, settings, precision=precision)
    exact = a_learner(model, settings)
    rows = (1, 2) if precision == "float32" else (1,)
    batch = [
        experience(*(segment([number, 3, row], [number, 5, 7 + row], [-3.0] * 3) for row in rows), reward=number % 2)
        for number in range(2, 14)
    ]
    before = exact.trainee.log_probs(batch).found_S.double()
    found = learner.step(batch, [1.0] * len(batch), {}).metrics["step_moved"]
    exact.trainee.put(learner.trainee.masters())
    expected = float((exact.trainee.log_probs(batch).found_S.double() - before).square().mean() / 2)
    assert expected > 1e-5
    assert found == pytest.approx(expected, rel=1e-3 if precision == "float32" else 0.1)


def test_in_reduced_precision_a_part_of_each_sample_is_probed() -> None:
    prompt, answer = list(range(300)), list(range(1000, 1500))
    batch = [experience(segment(prompt, answer, [-1.0] * 500), reward=1.0) for _ in range(64)]
    parts = windows(batch, stride(len(batch)))
    (first,), (last,) = parts[0].segments, parts[-1].segments
    assert len(parts) == PROBED
    assert sum(len(part.segments[0].loss_mask) for part in parts) <= 64 * 800 / SHARE
    length = len(first.loss_mask)
    assert 0 < first.loss_mask.count(1) <= length // 2 == last.loss_mask.count(1)
    assert first.loss_mask.index(1) == length // 2
    assert first.token_ids < last.token_ids
    assert batch[0].segments[0].token_ids.endswith(last.token_ids)


def test_a_short_sample_is_probed_whole() -> None:
    item = experience(segment([1, 2], [3] * (LEAST - 2), [-1.0] * (LEAST - 2)), reward=1.0)
    assert [each.segments for each in windows([item], 1)] == [item.segments]
