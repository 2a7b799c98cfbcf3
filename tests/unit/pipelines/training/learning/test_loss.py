import math

import pytest
import torch

from contracts.errors import InvalidSettings
from pipelines.training.learning.loss import MAX_LOG_RATIO, LossSums, policy_loss, tokens_of
from pipelines.training.learning.objectives import OBJECTIVES, Objective
from policy.logprobs import TokenScores
from tests.each_case import each_case
from tests.tolerances import tolerance

OBJECTIVE = Objective(ratio_bound=3.0, kl_coefficient=0.02)
ROUNDING = tolerance(torch.float32, num_terms=24, depth=2)
"""For sums of exponentials over the tokens of a test."""
ONE = torch.ones(1, 1, dtype=torch.bool)


def loss_of(
    current: float, behaviour: float, advantage: float, anchor: float | None = None
) -> tuple[float, float, LossSums]:
    """Loss and d loss / d log-prob of one token."""
    log_probs = torch.tensor([[current]], requires_grad=True)
    loss, sums = policy_loss(
        TokenScores(log_probs, torch.tensor([[1.5]])),
        torch.tensor([[behaviour]]),
        None if anchor is None else torch.tensor([[anchor]]),
        torch.tensor([advantage]),
        ONE,
        num_tokens=1,
        objective=OBJECTIVE,
    )
    torch.autograd.backward(loss)
    assert log_probs.grad is not None
    return loss.item(), log_probs.grad.item(), LossSums.of([sums], OBJECTIVE)


def test_on_policy_it_is_plain_policy_gradient() -> None:
    _, gradient, sums = loss_of(-1.0, -1.0, 0.7)
    assert gradient == pytest.approx(-0.7, rel=ROUNDING)
    assert sums.metrics() == pytest.approx(
        {
            "loss": 0.7, "ess": 1.0, "ratio_mean": 1.0, "ratio_max": 1.0, "k1": 0.0, "k3": 0.0, "chi2": 0.0,
            "clip_fraction": 0.0, "entropy": 1.5, "anchor_kl": 0.0,
        },
        rel=ROUNDING,
    )  # fmt: skip


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_gradient_is_bounded_for_both_signs_of_the_advantage(advantage: float) -> None:
    _, gradient, sums = loss_of(-0.1, -0.1 - math.log(500), advantage)
    assert gradient == pytest.approx(-3.0 * advantage, rel=ROUNDING)
    assert sums.metrics()["clip_fraction"] == 1.0
    assert sums.ratio_max == pytest.approx(500, rel=ROUNDING * math.log(500))


def test_the_leash_pulls_towards_the_anchor() -> None:
    _, gradient, sums = loss_of(-1.0, -1.0, 0.0, anchor=-0.5)
    assert gradient == pytest.approx(0.02 * (1 - math.exp(0.5)), rel=ROUNDING)
    assert sums.metrics()["anchor_kl"] == pytest.approx(math.exp(0.5) - 0.5 - 1, abs=ROUNDING)


def test_figures_do_not_depend_on_how_a_batch_is_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs, behaviour = -torch.rand(4, 6, generator=generator), -torch.rand(4, 6, generator=generator)
    mask = torch.rand(4, 6, generator=generator) > 0.4
    advantage = torch.randn(4, generator=generator)

    def sums_of(rows: slice) -> LossSums:
        scores = TokenScores(log_probs[rows] * mask[rows], log_probs[rows].square())
        _, sums = policy_loss(
            scores, behaviour[rows] * mask[rows], None, advantage[rows], mask[rows],
            num_tokens=int(mask.sum()), objective=OBJECTIVE,
        )  # fmt: skip
        return LossSums.of([sums], OBJECTIVE)

    whole, parts = sums_of(slice(0, 4)), LossSums()
    for rows in (slice(0, 1), slice(1, 4)):
        parts.add(sums_of(rows))
    assert parts.metrics() == pytest.approx(whole.metrics(), rel=ROUNDING, abs=ROUNDING)
    ratio = torch.exp(log_probs - behaviour)[mask].double()
    assert whole.metrics()["ess"] == pytest.approx(
        (ratio.sum() ** 2 / ratio.square().sum() / ratio.numel()).item(), rel=ROUNDING
    )
    assert whole.metrics()["k3"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), abs=ROUNDING)
    assert whole.metrics()["chi2"] == pytest.approx((ratio.square().mean() - 1).item(), abs=ROUNDING)


def test_masked_tokens_have_no_say_whatever_they_hold() -> None:
    log_probs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    loss, sums = policy_loss(
        TokenScores(log_probs, torch.zeros(1, 2)), torch.tensor([[-1.0, -300.0]]), None, torch.tensor([1.0]),
        torch.tensor([[True, False]]), num_tokens=1, objective=OBJECTIVE,
    )  # fmt: skip
    torch.autograd.backward(loss)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[-1.0, 0.0]]
    assert LossSums.of([sums], OBJECTIVE).ratio_max == 1.0


@pytest.mark.parametrize("ratio", [1e-4, 1e-6, 1e-30])
def test_the_leash_is_bounded_where_the_policy_has_left_the_token(ratio: float) -> None:
    """Without the ratio its gradient is beta * (1 - 1 / ratio): -2e4 at 1e-6."""
    _, gradient, sums = loss_of(-0.5 + math.log(ratio), -0.5, 0.0, anchor=-0.5)
    kept = max(ratio, math.exp(-MAX_LOG_RATIO))
    assert gradient == pytest.approx(OBJECTIVE.kl_coefficient * (kept - 1), rel=1e-5)
    assert all(math.isfinite(value) for value in sums.metrics().values())


@each_case("current", [-1e-9, -1.0, -50.0, -3e38])
@each_case("behaviour", [0.0, -1.0, -100.0, -3e38])
@each_case("anchor", [0.0, -100.0, -3e38])
def test_no_token_pulls_harder_than_the_bound_twice_and_no_figure_overflows(
    current: float, behaviour: float, anchor: float
) -> None:
    loss, gradient, sums = loss_of(current, behaviour, 1.0, anchor)
    assert abs(gradient) <= 2 * OBJECTIVE.ratio_bound
    assert not math.isnan(loss)
    assert all(math.isfinite(value) for name, value in sums.metrics().items() if name != "loss")


def test_the_leash_weighs_as_the_policy_does() -> None:
    """Its expectation under the behaviour policy is KL(current || anchor)'s k3, whoever sampled."""
    current, behaviour, anchor = (
        torch.log_softmax(torch.tensor(row), 0) for row in ([2.0, 0, -1], [0.0, 1, 0], [1.0, 1, 0])
    )
    found = 0.0
    for token in range(3):
        log_probs = current[token].reshape(1, 1).requires_grad_()
        loss, _ = policy_loss(
            TokenScores(log_probs, torch.zeros(1, 1)), behaviour[token].reshape(1, 1), anchor[token].reshape(1, 1),
            torch.zeros(1), ONE, num_tokens=1, objective=Objective(ratio_bound=100.0, kl_coefficient=1.0),
        )  # fmt: skip
        found += behaviour[token].exp().item() * loss.item()
    assert found == pytest.approx((current.exp() * (current - anchor)).sum().item(), rel=1e-5)


def test_an_unknown_loss_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(
        InvalidSettings, match="'best' is unknown; it is one of cispo, dppo, gspo, m2po, ppo, truncated, vcpo"
    ):
        Objective(3.0, 0.0, "best")


@each_case("name", [name for name in OBJECTIVES if name != "m2po"])
def test_the_loss_of_packed_rows_never_waits_for_the_device(name: str) -> None:
    """Tensors without values raise wherever the host would have to know one."""
    objective, meta = Objective(3.0, 0.02, name), torch.device("meta")
    scores = TokenScores(torch.zeros(6, 1, device=meta, requires_grad=True), torch.zeros(6, 1, device=meta))
    behaviour, each = torch.zeros(6, 1, device=meta), torch.ones(6, device=meta)
    sequences = torch.zeros(6, dtype=torch.int64, device=meta), 3
    plan = objective.plan(tokens_of(behaviour, behaviour, each, None, sequences))
    loss, _ = policy_loss(
        scores, behaviour, behaviour, each, None,
        num_tokens=each, objective=objective, temperature_B=each, sequences=sequences, plan=plan,
    )  # fmt: skip
    torch.autograd.backward(loss)
