import math
from functools import partial

import pytest
import torch

from pipelines.training.learning.learner import Learner
from pipelines.training.learning.step_bound import PROBED, SLACK, bounded_step, probe
from pipelines.training.learning.working import MasterAdamW
from pipelines.training.settings import TrainingSettings
from tests.unit.pipelines.training.builders import a_learner, model_of, tiny_model, weights_now
from tests.unit.pipelines.training.learning.test_divergence import answers


def policy(steps: int = 0) -> tuple[torch.nn.Parameter, MasterAdamW]:
    """Logits of 4 contexts over 5 tokens, after some steps, with a gradient for the next."""
    torch.manual_seed(0)
    logits = torch.nn.Parameter(torch.randn(4, 5))
    optimizer = MasterAdamW([(logits, logits)], lr=1.0, weight_decay=0.0)
    optimizer.state[logits] = {"step": torch.zeros(()), "exp_avg": torch.zeros(4, 5), "exp_avg_sq": torch.zeros(4, 5)}
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
    taken = bounded_step(optimizer, lambda: logits.log_softmax(-1).flatten(), limit)
    assert 0 < taken.share < 1
    assert taken.moved <= SLACK * limit
    assert moved(before, logits) == pytest.approx(taken.moved, rel=0.05)
    torch.testing.assert_close(logits.detach(), before + taken.share * (free.detach() - before), rtol=0, atol=1e-6)


def test_a_short_step_and_an_unmeasured_one_are_adamws() -> None:
    for limit in (10.0, math.inf):
        (logits, optimizer), (free, free_optimizer) = policy(), policy()
        assert bounded_step(optimizer, partial(logits.log_softmax, -1), limit).share == 1.0
        free_optimizer.step()
        assert logits.equal(free)


def test_a_step_into_nowhere_is_taken_back() -> None:
    logits, optimizer = policy()
    before = logits.detach().clone()
    seen = [logits.detach().log_softmax(-1)]
    taken = bounded_step(optimizer, lambda: seen.pop() if seen else torch.full((4, 5), math.nan), 1e-3)
    assert taken.share == 0.0
    torch.testing.assert_close(logits.detach(), before, rtol=0, atol=1e-6)


def test_the_probe_is_spread_over_the_batch() -> None:
    assert probe(list(range(3))) == [0, 1, 2]
    found = probe(list(range(64)))
    assert (len(found), found[0], found[-1]) == (PROBED, 0, 60)
    assert len(probe(list(range(33)))) <= PROBED


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
