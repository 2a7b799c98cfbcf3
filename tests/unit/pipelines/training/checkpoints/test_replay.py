# ruff: noqa: N806 - tensors carry the letters of their dimensions
"""A mixture of experts is trained through the experts that were recorded: figures, loss and gradient."""

import math
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import InvalidSettings
from contracts.packing import pack_experts
from contracts.records import Experience, pack_floats
from contracts.sampling import ExpertShape
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning.loss import policy_loss
from pipelines.training.learning.micro_batches import micro_batches
from pipelines.training.learning.objectives import Objective
from pipelines.training.learning.whole_model import routing_for
from pipelines.training.settings import TrainingSettings
from policy.logprobs import TokenScorer
from policy.routing import routing_of
from policy.weights import copy_tensors, tensors_of
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import a_learner, random_experience

BOUND = 3.0


def mixture() -> Any:
    """Weights large enough that another expert says something else, and with the bits of a published version."""
    model = tiny_model("qwen3_moe")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    copy_tensors(model, tensors_of(model))
    return model


def through_other_experts(count: int) -> list[Experience]:
    """Samples of an engine that chose at random, logged with the log-probs that it then had."""
    random, found = np.random.default_rng(3), []
    scorer, routing = TokenScorer(mixture()), routing_of(mixture())
    for temperature in np.linspace(0.6, 1.4, count).tolist():
        item = random_experience(random, temperature=temperature)
        [segment] = item.segments
        shape = ExpertShape(len(segment.loss_mask) - 1, 2, 2)
        choices = np.argsort(random.random((shape.num_tokens, 2, 4)))[..., :2].astype("<u2")
        routed = msgspec.structs.replace(segment, experts=pack_experts(choices.tobytes()), expert_shape=shape)
        item = msgspec.structs.replace(item, segments=(routed,))
        [batch] = micro_batches([item], max_tokens=1000, routing=routing)
        with torch.no_grad():
            log_probs_T = batch.scored_by(scorer).log_probs_BT[0]
        routed = msgspec.structs.replace(routed, logprobs=pack_floats([0.0, *log_probs_T.tolist()]))
        found.append(msgspec.structs.replace(item, segments=(routed,)))
    return found


def figures(replay: Literal["recorded", "off"]) -> dict[str, float | None]:
    model = mixture()
    settings = TrainingSettings(replay_experts=replay, batch_size=8, divergence_bound=math.inf, step_bound=math.inf)
    learner = a_learner(model, settings)
    return learner.step(through_other_experts(8), [1.0] * 8, {0: tensors_of(mixture())}, dry_run=True).metrics


def test_with_replay_there_is_no_mismatch_and_without_there_is() -> None:
    """The learner's forward (k3), the frozen policy's (mismatch) and the leash's (anchor_kl) all take the recorded experts."""
    replayed, own = figures("recorded"), figures("off")
    for name in ("k1", "k3", "mismatch_k1", "mismatch_k3", "anchor_kl"):
        assert replayed[name] == pytest.approx(0, abs=1e-5), name
    assert own["k3"] is not None
    assert own["k3"] > 0.01
    assert own["mismatch_k3"] == pytest.approx(own["k3"], rel=1e-3)


class GivenRouter(torch.nn.Module):
    """Qwen3-MoE's router, written again: the softmax over the logits of given experts [N, K]."""

    def __init__(self, weight: torch.nn.Parameter, given: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.given_NK = weight, given

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits_NE = states @ self.weight.T
        return logits_NE, logits_NE.gather(1, self.given_NK).softmax(-1), self.given_NK


@pytest.mark.slow
def test_the_gradient_is_that_of_the_loss_written_out_over_the_recorded_experts() -> None:
    """loss = 1/n sum of -min(ratio, bound) * advantage * log_prob, its ratio a constant, experts fixed, weights of experts not."""
    samples = through_other_experts(5)
    samples = [shifted(item, 0.4 * (-1) ** number) for number, item in enumerate(samples)]
    advantage_N = torch.tensor([1.0, -0.5, 2.0, 0.3, -1.5])
    mine, theirs = (mixture().requires_grad_(requires_grad=True) for _ in range(2))

    scorer = TokenScorer(mine)
    for batch in micro_batches(samples, max_tokens=40, routing=routing_of(mixture())):
        loss, _ = policy_loss(
            batch.scored_by(scorer), batch.behaviour_BT, None, advantage_N[batch.sample_B], batch.mask_BT,
            num_tokens=num_tokens(samples), objective=Objective(BOUND, 0.0), temperature_B=batch.temperature_B,
        )  # fmt: skip
        torch.autograd.backward(loss)

    written_out = torch.zeros(())
    for advantage, item in zip(advantage_N.tolist(), samples, strict=True):
        written_out = written_out + advantage * explicit(theirs, item) / num_tokens(samples)
    torch.autograd.backward(-written_out)

    routers = {name: parameter for name, parameter in mine.named_parameters() if name.endswith("gate.weight")}
    assert len(routers) == 2
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in mine.named_parameters():
        largest = float(gradients[name].abs().max())
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4 * largest, rtol=0)
        assert largest > 0, name


def shifted(item: Experience, by: float) -> Experience:
    """The engine was surer, or less sure, by a factor: ratios are not 1."""
    [segment] = item.segments
    logged = np.frombuffer(segment.logprobs, "<f4") - np.float32(by)
    return msgspec.structs.replace(item, segments=(msgspec.structs.replace(segment, logprobs=logged.tobytes()),))


def explicit(model: Any, item: Experience) -> torch.Tensor:
    """The sum of min(ratio, bound) * log_prob of a sample, by one plain forward through its experts."""
    [segment] = item.segments
    [batch] = micro_batches([item], max_tokens=1000, routing=routing_of(mixture()))
    assert batch.experts_BLMK is not None
    ids_L, given_LMK = batch.input_ids_BL[0], batch.experts_BLMK[0, :-1].long()
    for number, layer in enumerate(model.model.layers):
        layer.mlp.gate = GivenRouter(layer.mlp.gate.weight, given_LMK[:, number])
    logits_TV = model(input_ids=ids_L[None, :-1]).logits[0] / segment.sampling.temperature
    log_probs_T = (logits_TV - logits_TV.logsumexp(-1, keepdim=True))[torch.arange(len(ids_L) - 1), ids_L[1:]]
    ratio_T = (log_probs_T.detach() - batch.behaviour_BT[0]).exp().clamp(max=BOUND)
    total: torch.Tensor = (ratio_T * log_probs_T)[batch.mask_BT[0]].sum()
    return total


def test_a_dense_model_and_a_mixture_that_can_be_replayed_may_require_it_and_others_may_not() -> None:
    settings = TrainingSettings(replay_experts="required")
    assert routing_for(tiny_model("qwen3_moe"), settings).replayable
    assert not routing_for(tiny_model("llama"), settings).layers
    unknown = tiny_model("llama")
    unknown.config.num_local_experts = 8
    with pytest.raises(InvalidSettings, match=r"replay_experts.*LlamaForCausalLM"):
        routing_for(unknown, settings)
    assert routing_for(unknown, TrainingSettings()).problem
