"""A trainee that trains all parameters of one model on one device.

The weights are float32 masters; versions carry their bfloat16 rounding. The model stays in eval mode: behaviour log-probs were made
without dropout, and dropout would add noise to the ratios.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import torch

from contracts.errors import InvalidSettings
from pipelines.training.learning.device import TokenBudget, compute_repeatably, precision_of
from pipelines.training.learning.figures import Stages
from pipelines.training.learning.loss import LossSums, policy_loss, tokens_of
from pipelines.training.learning.masters import TrainedParameters, identity_of
from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch, micro_batches, packed_batches
from pipelines.training.learning.objectives import Objective, Tokens
from pipelines.training.learning.reference import FrozenCopy, Reference
from pipelines.training.learning.step_bound import Taken, bounded_step, probe
from pipelines.training.learning.trainee import GradientRows, GradientSums, TokenLogProbs
from policy.logprobs import TokenScorer
from policy.packing import has_windows, make_packable
from policy.routing import NO_REPLAY, Routing, routing_of
from policy.weights import ModelBits, apply_patches, stage_copy, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from contracts.records import Experience
    from pipelines.training.learning.objectives import BatchPlan
    from pipelines.training.settings import TrainingSettings
    from weights.tensors import Tensors

log = structlog.get_logger()


class WholeModel(TrainedParameters):
    """The model with its optimizer, and the reference that it is pulled towards. A `Trainee`."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str = "cpu") -> None:
        """`model` is the base policy in float32, with its published bits; training changes it in place."""
        place = torch.device(device)
        if place.index is not None:
            torch.cuda.set_device(place)
        compute_repeatably(place)
        self.config, self.can_fork = model.config, place.type == "cpu"
        self.routing, self.budget = routing_for(model, settings), TokenBudget(settings.max_tokens)
        if problem := make_packable(model):
            log.info("rows are padded", reason=problem)
        self._packs, self._windowed = not problem, has_windows(model)
        self._precision = precision_of(settings, place)
        parameters, identity, reference = self._trained_of(model, settings, place)
        needs_reference = settings.kl_coefficient > 0 or settings.mismatch_samples > 0
        self.reference = reference() if needs_reference else None
        self.model = model.eval().to(place)
        super().__init__(parameters, settings, place, identity)
        self.scorer = TokenScorer(model)
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self._correcting = Objective(settings.ratio_bound, 0.0)
        self._step_bound, self._recompute = settings.step_bound, settings.recompute
        self._stepping: list[Experience] = []
        """The samples of the gradient that is being accumulated."""
        self._stages = Stages()
        self._replays = settings.replay_experts != "off"

    def _trained_of(
        self, model: Any, _settings: TrainingSettings, _place: torch.device
    ) -> tuple[Mapping[str, torch.nn.Parameter], str, Callable[[], Reference]]:
        """What is trained, its identity, and what makes the reference."""
        identity = identity_of(ModelBits(model), int(model.config.vocab_size))
        trained = dict(model.requires_grad_(requires_grad=True).named_parameters())
        return trained, identity, lambda: FrozenCopy(model, self._precision)

    def backward(self, rows: GradientRows) -> GradientSums:
        """As in `Trainee`."""
        advantage_N = torch.tensor(rows.pulls, dtype=torch.float32, device=self.device)
        count_N = torch.tensor(rows.denominators, dtype=torch.float64, device=self.device)
        total, current_N = LossSums(), torch.zeros_like(advantage_N)
        objective = self._objective if rows.are_new else self._correcting
        self._stepping += rows.experiences
        with self._stages.stage("data"):
            batches = self._micro_batches(rows.experiences)
        with self._stages.stage("forward"):
            plan = self._plan(batches, advantage_N, objective)
        for batch in batches:
            self.scorer.recomputes = self._recompute == "always" or (
                self._recompute == "auto" and batch.num_tokens > self.budget.current
            )
            with self._stages.stage("forward"):
                with self._precision.computing():
                    scores = batch.scored_by(self.scorer)
                anchor_BT = None
                if objective.kl_coefficient > 0 and self.reference is not None:
                    (anchor_BT,) = self.reference.log_probs([batch])
                tokens = scores, batch.behaviour_BT, anchor_BT, advantage_N[batch.sample_B], batch.mask_BT
                loss, sums = policy_loss(
                    *tokens,
                    num_tokens=count_N[batch.sample_B],
                    objective=objective,
                    temperature_B=batch.temperature_B,
                    sequence_B=batch.sequence_B,
                    plan=plan,
                )
            with self._stages.stage("backward"):
                torch.autograd.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            total.add(sums)
        return GradientSums(total, current_N.tolist())

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        with self._stages.stage("backward"):
            return super().clip(max_norm)

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        batches = self._micro_batches(probe(self._stepping)) if self._step_bound < math.inf else []
        (group,) = self.optimizer.param_groups
        rate, group["lr"] = group["lr"], group["lr"] * scale
        try:
            with self._stages.stage("optimizer"):
                return bounded_step(self.optimizer, lambda: self._now(batches), self._step_bound * len(self._stepping))
        finally:
            group["lr"] = rate

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        self.optimizer.zero_grad()
        self._stepping = []

    def hold_less(self) -> bool:
        """As in `Trainee`: the backward pass computes the layers again."""
        can_change = self._recompute == "auto"
        self._recompute = "always" if can_change else self._recompute
        return can_change

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`."""
        batches = self._micro_batches(experiences)
        return TokenLogProbs(self._now(batches), torch.cat([batch.behaviour_BT[batch.mask_BT] for batch in batches]))

    def log_probs_under(self, bits: Tensors | None, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`; only if there is a reference."""
        if self.reference is None:
            raise InvalidSettings("[training] mismatch_samples: is 0, so no version can be measured")
        batches = self._micro_batches(experiences)
        both = [
            (found_BT[batch.mask_BT], batch.behaviour_BT[batch.mask_BT])
            for batch, found_BT in zip(batches, self.reference.log_probs(batches, bits), strict=True)
        ]
        return TokenLogProbs(*map(torch.cat, zip(*both, strict=True)))

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """As in `Trainee`."""
        return tensors_of(self.model, weights)

    def restart_from(self, bits: Tensors) -> Callable[[], None]:
        """As in `Trainee`; raises as `stage_changes`."""
        patches = stage_copy(self.model, bits)

        def restart() -> None:
            apply_patches(patches)
            self.begin_moments()

        return restart

    def computing(self) -> AbstractContextManager[object]:
        """The block of a forward pass, at its precision."""
        return self._precision.computing()

    def seconds(self) -> Mapping[str, float]:
        """As in `Trainee`."""
        return self._stages.take()

    def _micro_batches(self, experiences: Sequence[Experience]) -> Sequence[MicroBatch | PackedBatch]:
        """The rows, within the token budget."""
        batches = partial(packed_batches, windowed=self._windowed) if self._packs else micro_batches
        routing = self.routing if self._replays else NO_REPLAY
        return batches(experiences, max_tokens=self.budget.current, device=self.device, routing=routing)

    @torch.no_grad()
    def _plan(
        self, batches: Sequence[MicroBatch | PackedBatch], advantage_N: torch.Tensor, objective: Objective
    ) -> BatchPlan | None:
        """What the objective decides for the whole batch, from a forward pass of its own; None if the loss can do without."""
        if len(batches) < 2 or not objective.needs_batch:  # noqa: PLR2004 one micro-batch is the whole batch
            return None
        parts = []
        for batch in batches:
            with self._precision.computing():
                current_BT = batch.scored_by(self.scorer).log_probs_BT
            advantage_B = advantage_N[batch.sample_B]
            parts.append(tokens_of(current_BT, batch.behaviour_BT, advantage_B, batch.mask_BT, batch.sequence_B))
        return objective.plan(Tokens.joined(parts))

    @torch.no_grad()
    def _now(self, batches: Sequence[MicroBatch | PackedBatch]) -> torch.Tensor:
        """Today's log-probs of the sampled tokens, in float32: a small step is lost in bfloat16's rounding."""
        return torch.cat([batch.scored_by(self.scorer).log_probs_BT[batch.mask_BT].float() for batch in batches])


def routing_for(model: Any, settings: TrainingSettings) -> Routing:
    """The model's experts, found by a trial. Raises InvalidSettings: the settings require replay, and this model cannot."""
    routing = routing_of(model)
    if routing.problem and settings.replay_experts == "required":
        raise InvalidSettings(f'[training] replay_experts: "required" is not possible: {routing.problem}')
    if routing.problem and settings.replay_experts == "recorded":
        log.warning("recorded experts are not replayed", reason=routing.problem)
    return routing
