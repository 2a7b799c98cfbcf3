"""A trainee that trains all parameters of one model on one device.

The weights are float32 masters; versions carry their bfloat16 rounding, which is also what computes in that precision. The model stays in eval mode: behaviour log-probs were made
without dropout, and dropout would add noise to the ratios.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import torch

from contracts.errors import InvalidSettings
from contracts.memory.training import TrainingWay, passes_of
from pipelines.training.learning.device import TokenBudget, compute_repeatably, machine_of, precision_of
from pipelines.training.learning.loss import ROUNDING, LossSums, MicroSums, per_token, policy_loss, sampled, tokens_of
from pipelines.training.learning.masters import MasterAdamW, identity_of, make_pairs
from pipelines.training.learning.micro_batches import (
    BatchScores,
    MicroBatch,
    PackedBatch,
    micro_batches,
    packed_batches,
    samples_of,
    text_tokens,
)
from pipelines.training.learning.objectives import Objective, Tokens
from pipelines.training.learning.reference import FrozenCopy, ReferencePolicy
from pipelines.training.learning.stages import Stages
from pipelines.training.learning.step_bound import Taken, bounded_step, stride, windows
from pipelines.training.learning.trainee import GradientRows, GradientSums, TextSums, TokenLogProbs
from pipelines.training.learning.users_first import UsersFirst, in_turn
from pipelines.training.text.losses import baseline_of, needs_anchor, text_losses
from pipelines.training.text.samples import mismatched_rows, rows_of
from policy.load import context_of
from policy.logprobs import TokenScorer
from policy.off_device import onto
from policy.packing import has_windows, make_packable
from policy.routing import NO_REPLAY, Routing, routing_of
from policy.weights import ModelBits, apply_patches, stage_copy, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from contracts.records import Experience
    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.masters import Masters, Pair
    from pipelines.training.learning.micro_batches import Compute
    from pipelines.training.learning.objectives import BatchPlan
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.text.samples import TextBatch
    from policy.weights import Patches
    from weights.probe import ProbeAnswers
    from weights.tensors import Tensor

log = structlog.get_logger()


class WholeModel:
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
        self.device, self.model, self.precision = on, model, precision_of(settings, on)
        self._way = way or TrainingWay(is_host=settings.masters == "host")
        pairs, self.identity, reference = self._trained_of(model, settings)
        self.routing = routing_for(model, settings)
        if problem := make_packable(model):
            log.info("rows are padded", reason=problem)
        self._packs, self._windowed = not problem, has_windows(model)
        self.reference = reference() if passes_of(settings.model_dump()).has_reference else None
        self.optimizer = MasterAdamW(pairs, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self.scorer = TokenScorer(model)
        if settings.compile_layers and on.type == "cuda":
            self.scorer.compile_layers()
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self._correcting = Objective(settings.ratio_bound, 0.0)
        self._step_bound, self._recompute = settings.step_bound, settings.recompute
        self._stepping: list[Segmented] = []
        """What the step bound is measured on: the samples of the gradient that is being accumulated; without any, its text."""
        self._passed: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Of their tokens: the place of the sample among them, and the log-prob in the forward pass of the gradient."""
        self._num_passed = 0
        self._stages = Stages()
        self._replays = settings.replay_experts != "off"
        self.users: UsersFirst | None = None
        """Who is asked before each micro-batch."""

    def _trained_of(
        self, model: Any, _settings: TrainingSettings
    ) -> tuple[Mapping[str, Pair], str, Callable[[], ReferencePolicy]]:
        """Bring the model to its device; what of it is trained, its identity, and what makes the reference."""
        identity = identity_of(ModelBits(model), int(model.config.vocab_size))
        return make_pairs(model, self.precision, self._way), identity, lambda: FrozenCopy(model, self.precision)

    def backward(self, rows: GradientRows) -> GradientSums:
        """As in `Trainee`."""
        advantage_N = onto(torch.tensor(rows.pulls, dtype=torch.float32), self.device)
        count_N = onto(torch.tensor(rows.denominators, dtype=torch.float64), self.device)
        parts, current_N = list[MicroSums](), torch.zeros_like(advantage_N)
        objective = self._objective if rows.are_new else self._correcting
        is_anchored = objective.kl_coefficient > 0 and self.reference is not None
        num_before = len(self._stepping)
        self._stepping += rows.experiences
        self._num_passed += len(rows.experiences)
        with self._stages.stage("data"):
            batches = self._micro_batches(rows.experiences)
        with self._stages.stage("forward"):
            plan = self._plan(batches, advantage_N, objective)

        def compute(batch: MicroBatch | PackedBatch, share: float) -> BatchScores:
            with self._stages.stage("forward"):
                # First: the reference may be this very model, and forgets the experts that a backward pass computes through again.
                anchor_BT = self.reference.log_probs([batch])[0] if is_anchored and self.reference is not None else None
                self.scorer.recomputes = self._recomputes(batch)
                with self.precision.computing():
                    scores = batch.scored_by(self.scorer)
                mask_BT, sequences = batch.layout
                tokens = scores, batch.behaviour_BT, anchor_BT, advantage_N[batch.sample_B], mask_BT
                loss, sums = policy_loss(
                    *tokens,
                    num_tokens=count_N[batch.sample_B],
                    objective=objective,
                    temperature_B=batch.temperature_B,
                    sequences=sequences,
                    plan=plan,
                )
            self._differentiate(loss, share)
            return BatchScores(scores.log_probs_BT.detach(), sums.sums_K)

        for batch, (log_probs_BT, sums_K) in zip(batches, self._each(batches, compute), strict=True):
            mask_BT, sequences = batch.layout
            tokens = tokens_of(log_probs_BT, batch.behaviour_BT, advantage_N[batch.sample_B], mask_BT, sequences)
            current_N.index_add_(0, batch.sample_B, log_probs_BT.sum(-1))
            parts.append(MicroSums(sums_K, tokens, is_anchored))
            self._passed.append((per_token(batch.sample_B + num_before, mask_BT), tokens.current_S))
        with self._stages.stage("backward"):  # the host has not waited until here
            return GradientSums(LossSums.of(parts, objective), current_N.tolist())

    def backward_text(self, batch: TextBatch, answers: Sequence[Experience]) -> TextSums:
        """As in `Trainee`. Pairs and thumbs take a forward pass before: how hard a row pulls depends on all of it, and on its other half.

        The step bound is not measured on text where there are answers: nobody samples it, so moving it far moves the policy little.
        """
        rows, most = rows_of(batch.samples), context_of(self.config) or sys.maxsize
        mixed = [row for row in mismatched_rows(batch.samples) if row.num_tokens <= most]
        with self._stages.stage("data"):
            batches, others = self._micro_batches(rows), self._micro_batches(mixed)
        anchor, baseline = [0.0] * len(rows), 0.0
        current = anchor
        if needs_anchor(batch.samples):
            with self._stages.stage("forward"):
                current, anchor = (self._row_sums(batches, len(rows), anchor=which) for which in (False, True))
                baseline = baseline_of(*(self._row_sums(others, len(mixed), anchor=which) for which in (False, True)))
        factor_N = torch.tensor(
            text_losses(batch, current, anchor, baseline).factors, dtype=torch.float64, device=self.device
        )
        self._stepping += answers
        self._stepping += [] if self._stepping else rows
        current_N, sums_K = torch.zeros_like(factor_N), factor_N.new_zeros(2)

        def compute(micro: MicroBatch | PackedBatch, share: float) -> BatchScores:
            self.scorer.recomputes = self._recomputes(micro)
            with self._stages.stage("forward"), self.precision.computing():
                log_probs_BT = micro.scored_by(self.scorer).log_probs_BT
            log_probs_S, weight_S, row_S = text_tokens(micro, log_probs_BT)
            self._differentiate(((factor_N[row_S] * weight_S).to(log_probs_S.dtype) * log_probs_S).sum(), share)
            return BatchScores(log_probs_BT.detach())

        for micro, found in zip(batches, self._each(batches, compute), strict=True):
            log_probs_S, weight_S, row_S = text_tokens(micro, found.log_probs_BT)
            pull_S, current_S = factor_N[row_S] * weight_S, log_probs_S.double()
            length_S = (pull_S * (ROUNDING - torch.expm1(current_S))).abs()
            sums_K += torch.stack([length_S.square().sum(), length_S.sum()])
            current_N.index_add_(0, row_S, weight_S * current_S)
        losses = text_losses(batch, current_N.tolist(), anchor, baseline)
        return TextSums(losses, *sums_K.tolist())

    @torch.no_grad()
    def _row_sums(self, batches: Sequence[MicroBatch | PackedBatch], num: int, *, anchor: bool) -> list[float]:
        """The log-prob of each of `num` rows of text, tokens by weight: today's, or the anchor's."""
        reference = self.reference if anchor else None
        if anchor and reference is None:
            raise InvalidSettings(
                "[training] kl_coefficient: is 0, as is mismatch_samples: pairs and thumbs need the base policy"
            )
        found_N = torch.zeros(num, dtype=torch.float64, device=self.device)
        found = self._today(batches) if reference is None else self._under(reference, None, batches)
        for batch, log_probs_BT in zip(batches, found, strict=True):
            log_probs_S, weight_S, row_S = text_tokens(batch, log_probs_BT)
            found_N.index_add_(0, row_S, weight_S * log_probs_S.double())
        return [float(value) for value in found_N]

    def _recomputes(self, batch: MicroBatch | PackedBatch) -> bool:
        """True if the backward pass computes the layers of a batch again."""
        is_large = batch.num_tokens > self.budget.current
        return self._recompute == "always" or (self._recompute == "auto" and is_large)

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        with self._stages.stage("backward"):
            return self.optimizer.clip(max_norm)

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
        self._stepping, self._passed, self._num_passed = [], [], 0

    def hold_less(self) -> bool:
        """As in `Trainee`: the backward pass computes the layers again, at first a part of them if they are compiled."""
        if self._recompute == "auto":
            self._recompute = "always"
            return True
        return self._recompute == "always" and self.scorer.recompute_more()

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`."""
        batches = self._micro_batches(experiences)
        dtype = torch.bfloat16 if self.precision.is_reduced else None
        found_S = self._now(batches, dtype)
        return TokenLogProbs(found_S, torch.cat([batch.behaviour_BT[batch.mask_BT] for batch in batches]))

    def log_probs_under(self, bits: Mapping[str, Tensor] | None, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`; only if there is a reference."""
        if self.reference is None:
            raise InvalidSettings("[training] mismatch_samples: is 0, so no version can be measured")
        batches = self._micro_batches(experiences)
        both = [
            (found_BT[batch.mask_BT], batch.behaviour_BT[batch.mask_BT])
            for batch, found_BT in zip(batches, self._under(self.reference, bits, batches), strict=True)
        ]
        return TokenLogProbs(*map(torch.cat, zip(*both, strict=True)))

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """As in `Trainee`."""
        return tensors_of(self.model, weights)

    def probe_answers(self, bits: Mapping[str, Tensor]) -> ProbeAnswers | None:  # noqa: ARG002 an adapter's are needed
        """As in `Trainee`."""
        return None

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        """As in `Trainee`; raises as `stage_changes`."""
        patches = self._staged(bits)

        def restart() -> None:
            apply_patches(patches)
            self.optimizer.restart()

        return restart

    def _staged(self, bits: Mapping[str, Tensor]) -> Patches:
        """What makes these weights those of a version. Raises as `restart_from`."""
        return stage_copy(self.model, bits)

    def masters(self) -> Masters:
        """As in `Trainee`: the moments are named `moment/name`."""
        return self.optimizer.weights, self.optimizer.moments

    def begin_pieces(self, folder: Path, budget: float) -> None:
        """As in `Trainee`."""

    def put(self, held: Masters) -> None:
        """As in `Trainee`."""
        self.optimizer.put(held)

    def machine(self) -> dict[str, str]:
        """As in `Trainee`."""
        return machine_of(self.device) | self.optimizer.places()

    def seconds(self) -> Mapping[str, float]:
        """As in `Trainee`."""
        return self._stages.take()

    def _micro_batches(self, experiences: Sequence[Segmented]) -> Sequence[MicroBatch | PackedBatch]:
        """The rows, within the token budget."""
        batches = partial(packed_batches, windowed=self._windowed) if self._packs else micro_batches
        routing = self.routing if self._replays else NO_REPLAY
        return batches(experiences, max_tokens=self._most_tokens(experiences), device=self.device, routing=routing)

    def _most_tokens(self, experiences: Sequence[Segmented]) -> int:  # noqa: ARG002 several processes share them
        """Of a micro-batch over some of these rows."""
        return self.budget.current

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
        today = self._today(batches) if needs_pass else [batch.behaviour_BT for batch in batches]
        for batch, found_BT in zip(batches, today, strict=True):
            mask_BT, sequences = batch.layout
            parts.append(tokens_of(found_BT, batch.behaviour_BT, advantage_N[batch.sample_B], mask_BT, sequences))
        return objective.plan(Tokens.joined(parts))

    @torch.no_grad()
    def _probe(self) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
        """Log-probs of some tokens before the step, and what computes today's in the same order.

        In float32 those before the step are the gradient's own, if all samples have one. bfloat16 is too coarse for either: it hides a small step and its noise is
        as large as the limit. float16 has an eighth of its rounding at the same speed; where it overflows, bfloat16 has to serve.
        """
        if math.isinf(self._step_bound):
            return torch.empty(0), lambda: torch.empty(0)
        every = stride(len(self._stepping))
        if self.precision.is_reduced:
            batches = self._micro_batches(windows(self._stepping, every))
            dtype, before = torch.float16, self._now(batches, torch.float16)
            if not before.isfinite().all():
                dtype, before = torch.bfloat16, self._now(batches, torch.bfloat16)
            return before, lambda: self._now(batches, dtype)
        batches = self._micro_batches(self._stepping[::every])
        if len(self._stepping) > self._num_passed:
            return self._now(batches), lambda: self._now(batches)
        sample_S, passed_S = map(torch.cat, zip(*self._passed, strict=True))
        is_probed_S = sample_S % every == 0
        # Sample after sample: whatever else is in its micro-batches, the tokens of one come in the same order.
        before = passed_S[is_probed_S][sample_S[is_probed_S].argsort(stable=True)]
        order_S = samples_of(batches).argsort(stable=True)
        return before, lambda: self._now(batches)[order_S]

    @torch.no_grad()
    def _now(self, batches: Sequence[MicroBatch | PackedBatch], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Today's log-probs of the sampled tokens. `dtype`: to compute in; None: the weights' own."""
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            found = self._each(batches, self._score)
        return torch.cat(
            [sampled(log_probs_BT, each.layout[0]) for each, (log_probs_BT, _) in zip(batches, found, strict=True)]
        )

    def _today(self, batches: Sequence[MicroBatch | PackedBatch]) -> list[torch.Tensor]:
        """Today's log-probs [B, T] of each batch."""
        with self.precision.computing():
            return [found.log_probs_BT for found in self._each(batches, self._score)]

    def _score(self, batch: MicroBatch | PackedBatch, _share: float) -> BatchScores:
        return BatchScores(batch.scored_by(self.scorer).log_probs_BT)

    def _under(
        self, reference: ReferencePolicy, bits: Mapping[str, Tensor] | None, batches: Sequence[MicroBatch | PackedBatch]
    ) -> list[torch.Tensor]:
        """Log-probs [B, T] of each batch under the bits of a version, or of the base policy."""

        def compute(batch: MicroBatch | PackedBatch, _share: float) -> BatchScores:
            return BatchScores(reference.log_probs([batch], bits)[0])

        return [found.log_probs_BT for found in self._each(batches, compute)]

    def _each(self, batches: Sequence[MicroBatch | PackedBatch], compute: Compute) -> list[BatchScores]:
        """What `compute` finds for each batch. Its gradient counts with a share of 1."""
        return [compute(batch, 1.0) for batch in in_turn(batches, self.users, self._stages)]

    def _differentiate(self, loss: torch.Tensor, share: float) -> None:
        """Add a share of the gradient, 1 or 0."""
        with self._stages.stage("backward"):
            torch.autograd.backward(loss if share else loss * share)


def routing_for(model: Any, settings: TrainingSettings) -> Routing:
    """The model's experts, found by a trial. Raises InvalidSettings: the settings require replay, and this model cannot."""
    routing = routing_of(model)
    if routing.problem and settings.replay_experts == "required":
        raise InvalidSettings(f'[training] replay_experts: "required" is not possible: {routing.problem}')
    if routing.problem and settings.replay_experts == "recorded":
        log.warning("recorded experts are not replayed", reason=routing.problem)
    return routing
