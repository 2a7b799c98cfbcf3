"""The policy being trained, on its device: weights, optimizer, forward and backward passes.

The weights are float32 masters; published versions are their bfloat16 rounding. The model stays in eval mode: behaviour
log-probs were made without dropout, and dropout would add noise to the ratios.

Two things are left open, and nothing is built for them. What is published may be an adapter: then `base` and `tensors_of` name the adapter's
tensors, and the frozen policy is this model with its adapter switched off. State may be sharded: then `accelerator.prepare` shards the model,
and `clip`, `masters.look` and `tensors_of` gather, since they alone need whole tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import structlog
import torch
from accelerate import Accelerator

from pipelines.training.learning.batch import MicroBatch, micro_batches
from pipelines.training.learning.figures import Stages
from pipelines.training.learning.frozen import FrozenPolicy
from pipelines.training.learning.loss import LossSums, Objective, policy_loss, tokens_of
from pipelines.training.learning.masters import begin_moments
from pipelines.training.learning.memory import TokenBudget
from pipelines.training.learning.objectives.base import Tokens
from pipelines.training.learning.packed import PackedBatch, packed_batches, sequences_of
from pipelines.training.learning.precision import precision_of
from pipelines.training.learning.repeatable import compute_repeatably
from pipelines.training.learning.replay import routing_for, score
from pipelines.training.learning.step_bound import Taken, bounded_step, probe
from policy.logprobs import TokenScorer
from policy.packing import has_windows, make_packable
from policy.routing import NO_REPLAY
from policy.weights import tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience
    from pipelines.training.learning.objectives.base import BatchPlan
    from pipelines.training.settings import TrainingSettings

log = structlog.get_logger()


class TrainedPolicy:
    """One model with its optimizer; and the base policy, frozen."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str) -> None:
        """`model` is the base policy in float32; training changes it in place."""
        if (number := torch.device(device).index) is not None:
            torch.cuda.set_device(number)  # an accelerator takes the current GPU
        accelerator = Accelerator(cpu=device == "cpu")
        self.device: torch.device = accelerator.device
        compute_repeatably(self.device)
        self.routing = routing_for(model, settings)
        self.base = tensors_of(model)
        self.budget = TokenBudget(settings.max_tokens)
        problem, self._windowed = make_packable(model), has_windows(model)
        self._packs = not problem
        if problem:
            log.info("rows are padded", reason=problem)
        self._precision = precision_of(settings, self.device)
        needs_frozen = settings.kl_coefficient > 0 or settings.mismatch_samples > 0
        self.frozen = FrozenPolicy(model, self._precision) if needs_frozen else None
        self.model = model.requires_grad_(requires_grad=True).eval()
        model.to(self.device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        wrapped, self.optimizer = accelerator.prepare(model, optimizer)
        begin_moments(self.optimizer)
        self._accelerator = accelerator
        self._scorer = TokenScorer(self.model, module=wrapped)
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self._step_bound = settings.step_bound
        self._stepping: Sequence[Experience] = ()
        """The samples of the gradient that is being accumulated."""
        self._recompute = settings.recompute
        self.stages = Stages()
        self._correcting = Objective(settings.ratio_bound, 0.0)
        self._replays = settings.replay_experts != "off"

    def micro_batches(self, experiences: Sequence[Experience]) -> Sequence[MicroBatch | PackedBatch]:
        """The rows, within the token budget."""
        routing = self.routing if self._replays else NO_REPLAY
        if self._packs:
            return packed_batches(
                experiences,
                max_tokens=self.budget.current,
                device=self.device,
                routing=routing,
                windowed=self._windowed,
            )
        return micro_batches(experiences, max_tokens=self.budget.current, device=self.device, routing=routing)

    def backward(
        self, experiences: Sequence[Experience], advantage_N: torch.Tensor, count_N: torch.Tensor, *, are_new: bool
    ) -> tuple[LossSums, torch.Tensor]:
        """Accumulate gradients.

        Args:
            experiences: the samples.
            advantage_N: one per sample, weights included.
            count_N: what the loss of each sample's tokens is divided by.
            are_new: samples follow the objective and are pulled towards the base policy too. Corrections do neither: they weigh
                min(ratio, bound), because a masked correction would be told as learned.

        Returns:
            The sums, and the summed current log-prob of each sample.
        """
        total, current_N = LossSums(), torch.zeros_like(advantage_N)
        objective = self._objective if are_new else self._correcting
        self._stepping = experiences if are_new else [*self._stepping, *experiences]
        with self.stages.stage("data"):
            batches = self.micro_batches(experiences)
        with self.stages.stage("forward"):
            plan = self._plan(batches, advantage_N, objective)
        for batch in batches:
            self._scorer.recomputes = self._recompute == "always" or (
                self._recompute == "auto" and batch.num_tokens > self.budget.current
            )
            with self.stages.stage("forward"):
                with self._precision.computing():
                    scores = score(self._scorer, batch)
                anchor_BT = None
                if are_new and objective.kl_coefficient > 0 and self.frozen is not None:
                    anchor_BT = self.frozen.log_probs(0, self.base, batch)
                loss, sums = policy_loss(
                    scores,
                    batch.behaviour_BT,
                    anchor_BT,
                    advantage_N[batch.sample_B],
                    batch.mask_BT,
                    num_tokens=count_N[batch.sample_B],
                    objective=objective,
                    temperature_B=batch.temperature_B,
                    sequence_B=sequences_of(batch),
                    plan=plan,
                )
            with self.stages.stage("backward"):
                self._accelerator.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            total.add(sums)
        return total, current_N

    def can_hold_less(self) -> bool:
        """After memory ran out on single rows: compute the layers again from now on. False if that is so already, or forbidden."""
        if self._recompute != "auto":
            return False
        self._recompute = "always"
        return True

    @torch.no_grad()
    def _plan(
        self, batches: Sequence[MicroBatch | PackedBatch], advantage_N: torch.Tensor, objective: Objective
    ) -> BatchPlan | None:
        """What the objective decides for the whole batch, from a forward pass of its own; None if the loss can do without."""
        if len(batches) < 2 or not objective.surrogate.needs_batch:  # noqa: PLR2004 one micro-batch is the whole batch
            return None
        parts = []
        for batch in batches:
            with self._precision.computing():
                current_BT = score(self._scorer, batch).log_probs_BT
            advantage_B = advantage_N[batch.sample_B]
            parts.append(tokens_of(current_BT, batch.behaviour_BT, advantage_B, batch.mask_BT, sequences_of(batch)))
        return objective.surrogate.plan(Tokens.joined(parts))

    def take_step(self, scale: float) -> Taken:
        """One step of the optimizer with the learning rate times `scale`, shortened if it moves the policy too far."""
        batches = self.micro_batches(probe(self._stepping)) if self._step_bound < math.inf else []
        rates = [group["lr"] for group in self.optimizer.param_groups]
        try:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            with self.stages.stage("optimizer"):
                return bounded_step(
                    self.optimizer, lambda: self._log_probs(batches), self._step_bound * len(self._stepping)
                )
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    @torch.no_grad()
    def _log_probs(self, batches: Sequence[MicroBatch | PackedBatch]) -> torch.Tensor:
        """Of the sampled tokens, in float32: a small step is lost in bfloat16's rounding."""
        return torch.cat([score(self._scorer, batch).log_probs_BT[batch.mask_BT].float() for batch in batches])

    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm`; returns its norm before."""
        with self.stages.stage("backward"):
            return float(self._accelerator.clip_grad_norm_(self.model.parameters(), max_norm))
