"""A trainee that trains all parameters of one model on one device.

The weights are float32 masters; versions carry their bfloat16 rounding. The model stays in eval mode: behaviour log-probs were made
without dropout, and dropout would add noise to the ratios.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import structlog
import torch
from accelerate import Accelerator

from contracts.errors import InvalidSettings
from pipelines.training.learning import masters
from pipelines.training.learning.device import TokenBudget, compute_repeatably, precision_of
from pipelines.training.learning.figures import Stages
from pipelines.training.learning.loss import LossSums, Objective, policy_loss, tokens_of
from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch, micro_batches, packed_batches
from pipelines.training.learning.objectives import Tokens
from pipelines.training.learning.reference import FrozenCopy, ReferencePolicy
from pipelines.training.learning.step_bound import Taken, bounded_step, probe
from pipelines.training.learning.trainee import GradientRows, GradientSums, PublishedBits, TokenLogProbs
from policy.logprobs import TokenScorer
from policy.packing import has_windows, make_packable
from policy.routing import NO_REPLAY, Routing, routing_of
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.learning.masters import Checkpoint, Masters
    from pipelines.training.learning.objectives import BatchPlan
    from pipelines.training.settings import TrainingSettings
    from weights.tensors import Tensors

log = structlog.get_logger()


class WholeModel:
    """The model with its optimizer, and the reference that it is pulled towards. A `Trainee`."""

    def __init__(
        self, model: Any, settings: TrainingSettings, device: str = "cpu", *, base: Tensors | None = None
    ) -> None:
        """`model` is the base policy in float32; training changes it in place. `base`: its bits, if they are in memory already."""
        if (number := torch.device(device).index) is not None:
            torch.cuda.set_device(number)  # an accelerator takes the current GPU
        accelerator = Accelerator(cpu=device == "cpu")
        self.device: torch.device = accelerator.device
        compute_repeatably(self.device)
        self.config = model.config
        self.routing = routing_for(model, settings)
        base = tensors_of(model) if base is None else base
        self.identity = masters.identity_of(base, int(model.config.vocab_size))
        self.budget = TokenBudget(settings.max_tokens)
        problem, self._windowed = make_packable(model), has_windows(model)
        self._packs = not problem
        if problem:
            log.info("rows are padded", reason=problem)
        self._precision = precision_of(settings, self.device)
        needs_reference = settings.kl_coefficient > 0 or settings.mismatch_samples > 0
        self.reference: ReferencePolicy | None = FrozenCopy(model, base, self._precision) if needs_reference else None
        self.model = model.requires_grad_(requires_grad=True).eval()
        model.to(self.device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        wrapped, self.optimizer = accelerator.prepare(model, optimizer)
        masters.begin_moments(self.optimizer)
        self._accelerator = accelerator
        self.scorer = TokenScorer(self.model, module=wrapped)
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self._correcting = Objective(settings.ratio_bound, 0.0)
        self._step_bound = settings.step_bound
        self._stepping: list[Experience] = []
        """The samples of the gradient that is being accumulated."""
        self._recompute = settings.recompute
        self._stages = Stages()
        self._replays = settings.replay_experts != "off"

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
                if rows.are_new and objective.kl_coefficient > 0 and self.reference is not None:
                    anchor_BT = self.reference.of_base(batch)
                loss, sums = policy_loss(
                    scores,
                    batch.behaviour_BT,
                    anchor_BT,
                    advantage_N[batch.sample_B],
                    batch.mask_BT,
                    num_tokens=count_N[batch.sample_B],
                    objective=objective,
                    temperature_B=batch.temperature_B,
                    sequence_B=batch.sequence_B,
                    plan=plan,
                )
            with self._stages.stage("backward"):
                self._accelerator.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            total.add(sums)
        return GradientSums(total, current_N.tolist())

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        with self._stages.stage("backward"):
            return float(self._accelerator.clip_grad_norm_(self.model.parameters(), max_norm))

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        batches = self._micro_batches(probe(self._stepping)) if self._step_bound < math.inf else []
        rates = [group["lr"] for group in self.optimizer.param_groups]
        try:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            with self._stages.stage("optimizer"):
                return bounded_step(self.optimizer, lambda: self._now(batches), self._step_bound * len(self._stepping))
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        self.optimizer.zero_grad()
        self._stepping = []

    def hold_less(self) -> bool:
        """After memory ran out on single rows: compute the layers again from now on. False if that is so already, or forbidden."""
        if self._recompute != "auto":
            return False
        self._recompute = "always"
        return True

    def log_probs(self, experiences: Sequence[Experience], of: PublishedBits | None = None) -> TokenLogProbs:
        """As in `Trainee`; of a version only if there is a reference."""
        batches = self._micro_batches(experiences)
        logged_S = torch.cat([batch.behaviour_BT[batch.mask_BT] for batch in batches])
        if of is None:
            return TokenLogProbs(self._now(batches), logged_S)
        if self.reference is None:
            raise InvalidSettings("[training] mismatch_samples: is 0, so no version can be measured")
        found = [self.reference.of_version(of, batch)[batch.mask_BT] for batch in batches]
        return TokenLogProbs(torch.cat(found), logged_S)

    def bits(self) -> Tensors:
        """As in `Trainee`."""
        return tensors_of(self.model)

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """As in `Trainee`."""
        return tensors_of(self.model, weights)

    def masters(self) -> Masters:
        """As in `Trainee`."""
        return masters.look(self.model, self.optimizer)

    def check(self, checkpoint: Checkpoint) -> None:
        """As in `Trainee`."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()}
        masters.check(checkpoint, shapes, self.identity)

    def put(self, held: Masters) -> None:
        """As in `Trainee`."""
        masters.put(self.model, self.optimizer, held)

    def restart(self, bits: Tensors) -> None:
        """As in `Trainee`."""
        copy_tensors(self.model, bits)
        masters.begin_moments(self.optimizer)

    def seconds(self) -> Mapping[str, float]:
        """As in `Trainee`."""
        return self._stages.take()

    def _micro_batches(self, experiences: Sequence[Experience]) -> Sequence[MicroBatch | PackedBatch]:
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
                current_BT = batch.scored_by(self.scorer).log_probs_BT
            advantage_B = advantage_N[batch.sample_B]
            parts.append(tokens_of(current_BT, batch.behaviour_BT, advantage_B, batch.mask_BT, batch.sequence_B))
        return objective.surrogate.plan(Tokens.joined(parts))

    @torch.no_grad()
    def _now(self, batches: Sequence[MicroBatch | PackedBatch]) -> torch.Tensor:
        """Today's log-probs of the sampled tokens, in float32: a small step is lost in bfloat16's rounding."""
        return torch.cat([batch.scored_by(self.scorer).log_probs_BT[batch.mask_BT].float() for batch in batches])


def routing_for(model: Any, settings: TrainingSettings) -> Routing:
    """The model's experts, found by a trial.

    Raises:
        InvalidSettings: the settings require replay, and this model cannot.
    """
    routing = routing_of(model)
    if routing.problem and settings.replay_experts == "required":
        raise InvalidSettings(f'[training] replay_experts: "required" is not possible: {routing.problem}')
    if routing.problem and settings.replay_experts == "recorded":
        log.warning("recorded experts are not replayed", reason=routing.problem)
    return routing
