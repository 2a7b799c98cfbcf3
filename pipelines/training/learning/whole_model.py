"""A trainee that trains all parameters of one model on one device.

The weights are float32 masters; versions carry their bfloat16 rounding, which is also what computes in that precision. The model stays in eval mode: behaviour log-probs were made
without dropout, and dropout would add noise to the ratios.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import torch

from contracts.errors import InvalidSettings
from contracts.memory.training import TrainingWay, passes_of
from pipelines.training.learning.device import TokenBudget, compute_repeatably, precision_of
from pipelines.training.learning.figures import Stages
from pipelines.training.learning.loss import LossSums, MicroSums, per_token, policy_loss, sampled, tokens_of
from pipelines.training.learning.masters import TrainedParameters, identity_of
from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch, micro_batches, packed_batches
from pipelines.training.learning.objectives import Objective, Tokens
from pipelines.training.learning.reference import FrozenCopy, ReferencePolicy
from pipelines.training.learning.step_bound import Taken, bounded_step, stride, windows
from pipelines.training.learning.trainee import GradientRows, GradientSums, TokenLogProbs
from pipelines.training.learning.working import Pair, make_pairs
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
    from weights.probe import ProbeAnswers
    from weights.tensors import Tensors

log = structlog.get_logger()


class WholeModel(TrainedParameters):
    """The model with its optimizer, and the reference that it is pulled towards. A `Trainee`."""

    def __init__(
        self, model: Any, settings: TrainingSettings, device: str = "cpu", way: TrainingWay | None = None
    ) -> None:
        """`model` is the base policy in float32, with its published bits; it is moved and changed in place. `way`: by default the settings'."""
        on = torch.device(device)
        if on.index is not None:
            torch.cuda.set_device(on)
        compute_repeatably(on, deterministic=settings.deterministic)
        self.config, self.can_fork, self.budget = model.config, on.type == "cpu", TokenBudget(settings.max_tokens)
        self._precision = precision_of(settings, on)
        self._way = way or TrainingWay(is_host=settings.masters == "host")
        trained, identity, reference = self._trained_of(model, settings)
        self.routing = routing_for(model, settings)
        if problem := make_packable(model):
            log.info("rows are padded", reason=problem)
        self._packs, self._windowed = not problem, has_windows(model)
        self.reference = reference() if passes_of(settings.model_dump()).has_reference else None
        self.model = model
        super().__init__(trained, settings, on, identity)
        self.scorer = TokenScorer(model)
        if settings.compile_layers and on.type == "cuda":
            self.scorer.compile_layers()
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self._correcting = Objective(settings.ratio_bound, 0.0)
        self._step_bound, self._recompute = settings.step_bound, settings.recompute
        self._stepping: list[Experience] = []
        """The samples of the gradient that is being accumulated."""
        self._passed: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Of their tokens: the place of the sample among them, and the log-prob in the forward pass of the gradient."""
        self._stages = Stages()
        self._replays = settings.replay_experts != "off"

    def _trained_of(
        self, model: Any, _settings: TrainingSettings
    ) -> tuple[Mapping[str, Pair], str, Callable[[], ReferencePolicy]]:
        """Bring the model to its device; what of it is trained, its identity, and what makes the reference."""
        identity = identity_of(ModelBits(model), int(model.config.vocab_size))
        return make_pairs(model, self._precision, self._way), identity, lambda: FrozenCopy(model, self._precision)

    def backward(self, rows: GradientRows) -> GradientSums:
        """As in `Trainee`."""
        advantage_N = torch.tensor(rows.pulls, dtype=torch.float32, device=self.device)
        count_N = torch.tensor(rows.denominators, dtype=torch.float64, device=self.device)
        parts, current_N = list[MicroSums](), torch.zeros_like(advantage_N)
        objective = self._objective if rows.are_new else self._correcting
        num_before = len(self._stepping)
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
                anchor_BT = None
                if objective.kl_coefficient > 0 and self.reference is not None:
                    # First: the reference may be this very model, and forgets the experts that a backward pass computes through again.
                    (anchor_BT,) = self.reference.log_probs([batch])
                with self._precision.computing():
                    scores = batch.scored_by(self.scorer)
                mask_BT, sequences = _layout(batch)
                tokens = scores, batch.behaviour_BT, anchor_BT, advantage_N[batch.sample_B], mask_BT
                loss, sums = policy_loss(
                    *tokens,
                    num_tokens=count_N[batch.sample_B],
                    objective=objective,
                    temperature_B=batch.temperature_B,
                    sequences=sequences,
                    plan=plan,
                )
            with self._stages.stage("backward"):
                torch.autograd.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            parts.append(sums)
            self._passed.append((per_token(batch.sample_B + num_before, mask_BT), sums.tokens.current_S))
        with self._stages.stage("backward"):  # the host has not waited until here
            return GradientSums(LossSums.of(parts, objective), current_N.tolist())

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        with self._stages.stage("backward"):
            return super().clip(max_norm)

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        (group,) = self.optimizer.param_groups
        rate, group["lr"] = group["lr"], group["lr"] * scale
        try:
            with self._stages.stage("optimizer"):
                return bounded_step(self.optimizer, *self._probe(), self._step_bound * len(self._stepping))
        finally:
            group["lr"] = rate

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        self.optimizer.zero_grad()
        self._stepping, self._passed = [], []

    def hold_less(self) -> bool:
        """As in `Trainee`: the backward pass computes the layers again."""
        can_change = self._recompute == "auto"
        self._recompute = "always" if can_change else self._recompute
        return can_change

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`."""
        batches = self._micro_batches(experiences)
        dtype = torch.bfloat16 if self._precision.is_reduced else None
        found_S = self._now(batches, dtype)
        return TokenLogProbs(found_S, torch.cat([batch.behaviour_BT[batch.mask_BT] for batch in batches]))

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

    def probe_answers(self, bits: Tensors) -> ProbeAnswers | None:  # noqa: ARG002 an adapter's are needed
        """As in `Trainee`."""
        return None

    def restart_from(self, bits: Tensors) -> Callable[[], None]:
        """As in `Trainee`; raises as `stage_changes`."""
        patches = stage_copy(self.model, bits)

        def restart() -> None:
            apply_patches(patches)
            self.optimizer.read()
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
        """What the objective decides for the whole batch; None if the loss can do without.

        Where the logged log-probs do not suffice, it takes a forward pass of its own; one micro-batch is the whole batch.
        """
        needs_pass = objective.plans_from_today and len(batches) > 1
        if not batches or not (needs_pass or objective.plans_from_log):
            return None
        parts = []
        for batch in batches:
            found_BT = batch.behaviour_BT
            if needs_pass:
                with self._precision.computing():
                    found_BT = batch.scored_by(self.scorer).log_probs_BT
            mask_BT, sequences = _layout(batch)
            parts.append(tokens_of(found_BT, batch.behaviour_BT, advantage_N[batch.sample_B], mask_BT, sequences))
        return objective.plan(Tokens.joined(parts))

    @torch.no_grad()
    def _probe(self) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
        """Log-probs of some tokens before the step, and what computes today's in the same order.

        In float32 those before the step are the gradient's own. bfloat16 is too coarse for either: it hides a small step and its noise is
        as large as the limit. float16 has an eighth of its rounding at the same speed; where it overflows, bfloat16 has to serve.
        """
        if math.isinf(self._step_bound):
            return torch.empty(0), lambda: torch.empty(0)
        every = stride(len(self._stepping))
        if self._precision.is_reduced:
            batches = self._micro_batches(windows(self._stepping, every))
            dtype, before = torch.float16, self._now(batches, torch.float16)
            if not before.isfinite().all():
                dtype, before = torch.bfloat16, self._now(batches, torch.bfloat16)
            return before, lambda: self._now(batches, dtype)
        batches = self._micro_batches(self._stepping[::every])
        sample_S, passed_S = map(torch.cat, zip(*self._passed, strict=True))
        is_probed_S = sample_S % every == 0
        # Sample after sample: whatever else is in its micro-batches, the tokens of one come in the same order.
        before = passed_S[is_probed_S][sample_S[is_probed_S].argsort(stable=True)]
        order_S = _samples(batches).argsort(stable=True)
        return before, lambda: self._now(batches)[order_S]

    @torch.no_grad()
    def _now(self, batches: Sequence[MicroBatch | PackedBatch], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Today's log-probs of the sampled tokens. `dtype`: to compute in; None: the weights' own."""
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            return torch.cat([sampled(each.scored_by(self.scorer).log_probs_BT, _layout(each)[0]) for each in batches])


def _layout(batch: MicroBatch | PackedBatch) -> tuple[torch.Tensor | None, tuple[torch.Tensor, int] | None]:
    """Mask and sequences of its rows, as `policy_loss` takes them. Packed rows are sampled tokens: no mask, so no waiting for the device."""
    if isinstance(batch, PackedBatch):
        return None, (batch.sequence_B, len(batch.packing.places))
    return batch.mask_BT, None


def _samples(batches: Sequence[MicroBatch | PackedBatch]) -> torch.Tensor:
    """The sample [S] of each sampled token."""
    return torch.cat([per_token(batch.sample_B, _layout(batch)[0]) for batch in batches])


def routing_for(model: Any, settings: TrainingSettings) -> Routing:
    """The model's experts, found by a trial. Raises InvalidSettings: the settings require replay, and this model cannot."""
    routing = routing_of(model)
    if routing.problem and settings.replay_experts == "required":
        raise InvalidSettings(f'[training] replay_experts: "required" is not possible: {routing.problem}')
    if routing.problem and settings.replay_experts == "recorded":
        log.warning("recorded experts are not replayed", reason=routing.problem)
    return routing
