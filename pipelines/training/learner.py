"""The model, the optimizer, and one step.

In: experiences that may be trained. Out: changed weights and figures, or the reason why nothing changed. Waits for: the
device.

A step is all or nothing: if it raises, weights, moments and trackers are unchanged. If memory runs out, it is retried in
smaller pieces.

The weights are float32 masters; published versions are their bfloat16 rounding. The model stays in eval mode: behaviour
log-probs were made without dropout, and dropout would add noise to the ratios.
"""

from __future__ import annotations

import base64
import copy
import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
import torch
from accelerate import Accelerator

from pipelines.training import masters
from pipelines.training.advantage import (
    Advantages,
    BetaTracker,
    MovingAverageTracker,
    Scored,
    advantages,
    component_advantages,
    component_of,
    tracker_from_json,
)
from pipelines.training.batch import MicroBatch, micro_batches, num_tokens, prompt_of
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.components import parts_of
from pipelines.training.figures import Speed, correction_figures, reward_figures, sample_rows
from pipelines.training.frozen import FrozenPolicy, mismatch
from pipelines.training.guard import Norms, remember, why_skip
from pipelines.training.loss import LossSums, Objective, policy_loss
from pipelines.training.memory import TokenBudget, is_out_of_memory, release_memory
from pipelines.training.packed import PackedBatch, packed_batches
from pipelines.training.replay import routing_for, score
from policy.load import context_of
from policy.logprobs import TokenScorer
from policy.packing import has_windows, make_packable
from policy.routing import NO_REPLAY
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.advantage import Part, Tracker
    from pipelines.training.lessons import Lesson
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensors

log = structlog.get_logger()


@dataclass(frozen=True)
class StepResult:
    """What a step did. `skipped` is the guard's reason, or empty if the step was taken.

    `samples` has one row of figures per experience, for a bundle.
    """

    skipped: str
    metrics: dict[str, float | None]
    samples: list[dict[str, Any]]
    pull: float = 1.0
    """Factor from one unit of a sample's reward, at full weight, to the pull on each of its tokens."""
    zeros: Mapping[str, float] = field(default_factory=dict)
    """Sample key to the reward with advantage 0: the baseline plus the mean that whitening subtracted."""


@dataclass(frozen=True)
class _Prepared:
    """A step whose gradient is computed but not applied."""

    result: StepResult
    baseline_samples: Sequence[Scored]
    drift: float
    norm: float
    expected: Norms


class Learner:
    """One policy being trained on one device."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str = "cpu") -> None:
        """`model` is the base policy in float32; training changes it in place."""
        self._settings = settings
        self._accelerator = Accelerator(cpu=device == "cpu")
        self.routing = routing_for(model, settings)
        self.base = tensors_of(model)
        self._packs, self._windowed = make_packable(model), has_windows(model)
        self._frozen = FrozenPolicy(copy.deepcopy(model).to(self._accelerator.device))
        self._model = model.requires_grad_(requires_grad=True).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
        wrapped, self._optimizer = self._accelerator.prepare(model, optimizer)
        self._scorer = TokenScorer(self._model, module=wrapped)
        self._objective = Objective(settings.ratio_bound, settings.kl_coefficient, settings.loss)
        self.tracker: Tracker = (
            BetaTracker(*settings.reward_range)
            if settings.baseline == "beta"
            else MovingAverageTracker(initial=sum(settings.reward_range) / 2)
        )
        self._gradient_norms: list[Norms] = []
        self._speed = Speed(model.config, settings.peak_flops)
        self.budget = TokenBudget(settings.max_tokens)
        self.identity = masters.identity_of(self.base, int(model.config.vocab_size))

    @property
    def is_on_cpu(self) -> bool:
        """True if no accelerator is in use."""
        return bool(self._accelerator.device.type == "cpu")

    @property
    def max_length(self) -> int:
        """The model's context in tokens; without a limit if its configuration names none."""
        return context_of(self._model.config) or sys.maxsize

    @property
    def vocabulary_size(self) -> int:
        """Every token id is below this number."""
        return int(self._model.config.vocab_size)

    def step(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson] = (),
        *,
        dry_run: bool = False,
    ) -> StepResult:
        """Learn from a batch once, or skip it as a whole.

        Args:
            experiences: scored, with rewards; none that `batch.refuse` rejects.
            weights: one per sample, staleness included.
            published: bits of versions in memory, to measure the mismatch on.
            corrections: further rows of the batch that enter no baseline and no other sample's advantage.
            dry_run: compute everything, including the guard's decision, and change nothing.
        """
        started = time.monotonic()
        try:
            prepared = self._prepared(experiences, weights, published, corrections)
            result = prepared.result
            if dry_run:
                return result
            self._gradient_norms = remember(self._gradient_norms, prepared.norm, prepared.expected)
            if not result.skipped:
                self._apply(prepared)
        finally:
            self._optimizer.zero_grad()
        self.budget.fitted()
        everything = [*experiences, *(item.experience for item in corrections)]
        result.metrics.update(self._speed.figures(everything, started))
        return result

    def _prepared(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson],
    ) -> _Prepared:
        """Prepare a step. Each time memory runs out, halve the token budget and retry."""
        while True:
            self._optimizer.zero_grad()
            try:
                return self._prepare(experiences, weights, published, corrections)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._shrink(experiences, corrections):
                    raise
                reason = str(error)
            release_memory()
            log.warning("out of memory: retrying in smaller pieces", max_tokens=self.budget.current, reason=reason)

    def _shrink(self, experiences: Sequence[Experience], corrections: Sequence[Lesson]) -> bool:
        everything = [*experiences, *(item.experience for item in corrections)]
        lengths = [len(segment.token_ids) // 4 for item in everything for segment in item.segments]
        return self.budget.shrink(len(lengths), max(lengths))

    def _prepare(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson],
    ) -> _Prepared:
        again = [item.experience for item in corrections]
        everything = [*experiences, *again]
        baseline_samples, found = self._baseline_samples(experiences), self._advantages(experiences)
        values = [*found.values.tolist(), *(item.advantage for item in corrections)]
        pulls = [*weights, *(item.pull for item in corrections)]
        sums, drift, current_N = self._gradient(experiences, again, [v * w for v, w in zip(values, pulls, strict=True)])
        norm = float(self._accelerator.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm))
        expected = Norms(math.sqrt(sums.expected_square), sums.expected_length)
        skipped = why_skip(
            self._gradient_norms,
            loss=sums.loss,
            gradient_norm=norm,
            expected=expected,
            spread=self._settings.guard_spread,
        )
        metrics = {
            **sums.metrics(),
            "gradient_norm": norm,
            "gradient_norm_expected": expected.noise,
            "num_tokens": sums.num_tokens,
            "token_budget": self.budget.current,
            **mismatch(
                self._frozen,
                experiences,
                published,
                num_samples=self._settings.mismatch_samples,
                cut=self._micro_batches,
            ),
            **reward_figures(experiences),
            **correction_figures(corrections),
        }
        rows = sample_rows(everything, values, pulls, current_N.tolist())
        pull = found.scale / max(num_tokens(experiences), 1)
        above = found.above.tolist()
        zeros = {item.key: (item.reward or 0.0) - more for item, more in zip(experiences, above, strict=True)}
        result = StepResult(skipped, metrics, rows, pull, zeros)
        return _Prepared(result, baseline_samples, drift, norm, expected)

    def _apply(self, prepared: _Prepared) -> None:
        """Take the step completely or not at all: everything it changes is copied first, tensors to the host."""
        before, tracker = masters.hold(self._model, self._optimizer), self.tracker.copy()
        try:
            self._optimizer.step()
            for item in prepared.baseline_samples:
                tracker.update(item.baseline_key, item.reward, prepared.drift, item.weight)
        except BaseException:
            # Even an interrupt must not leave half a step.
            masters.put(self._model, self._optimizer, before)
            raise
        self.tracker = tracker

    def tensors(self) -> Tensors:
        """The bfloat16 bits that a version cut now would have."""
        return tensors_of(self._model)

    def random_state(self) -> dict[str, str]:
        """Device name to the state of its random generator in base64."""
        states = {"cpu": _to_base64(torch.get_rng_state())}
        if self._accelerator.device.type == "cuda":
            states["cuda"] = _to_base64(torch.cuda.get_rng_state())
        return states

    def capture(self, state: TrainerState, version: int | None) -> Checkpoint:
        """Everything a restart needs. Writes trackers, guard history and generators into `state`; tensors are copies."""
        state.tracker = self.tracker.to_json()
        state.comparable_norms = [(item.noise, item.direction) for item in self._gradient_norms]
        state.random_state = self.random_state()
        state.model = self.identity
        weights, moments = masters.hold(self._model, self._optimizer)
        return Checkpoint(state, weights, moments, version)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint belongs to this model. Changes nothing.

        Raises:
            WeightsRefused: see `masters.check`.
        """
        shapes = {name: tuple(parameter.shape) for name, parameter in self._model.named_parameters()}
        masters.check(checkpoint, shapes, self.identity)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to what `capture` saved.

        Raises:
            WeightsRefused: see `check`; nothing has changed.
        """
        self.check(checkpoint)
        state = checkpoint.state
        tracker = self._in_range(tracker_from_json(state.tracker))
        random_state = _from_base64(state.random_state["cpu"])
        self.tracker = tracker
        self._gradient_norms = [Norms(*item) for item in state.comparable_norms]
        torch.set_rng_state(random_state)
        if self._accelerator.device.type == "cuda" and "cuda" in state.random_state:
            torch.cuda.set_rng_state(_from_base64(state.random_state["cuda"]))
        masters.put(self._model, self._optimizer, (checkpoint.weights, checkpoint.optimizer))

    def _in_range(self, tracker: Tracker) -> Tracker:
        """The tracker on today's scale of rewards: task files may have changed since it was saved."""
        if not isinstance(tracker, BetaTracker) or (tracker.low, tracker.high) == self._settings.reward_range:
            return tracker
        return tracker.rescaled(*self._settings.reward_range)

    def restart(self, tensors: Tensors) -> None:
        """Continue from published bits. The optimizer's moments belong to other weights and are dropped."""
        copy_tensors(self._model, tensors)
        self._optimizer.state.clear()

    def _micro_batches(self, experiences: Sequence[Experience]) -> Sequence[MicroBatch | PackedBatch]:
        routing = NO_REPLAY if self._settings.replay_experts == "off" else self.routing
        device, max_tokens = self._accelerator.device, self.budget.current
        if self._packs:
            return packed_batches(
                experiences, max_tokens=max_tokens, device=device, routing=routing, windowed=self._windowed
            )
        return micro_batches(experiences, max_tokens=max_tokens, device=device, routing=routing)

    def _scored(self, experiences: Sequence[Experience]) -> list[Scored]:
        return [Scored(_reward(item), item.baseline_key, prompt_of(item), item.weight) for item in experiences]

    def _parts(self, experiences: Sequence[Experience]) -> list[dict[str, Part]]:
        return [parts_of(item, *self._settings.reward_range) for item in experiences]

    def _advantages(self, experiences: Sequence[Experience]) -> Advantages:
        scored = self._scored(experiences)
        if self._settings.normalise == "components":
            return component_advantages(scored, self._parts(experiences), self.tracker)
        return advantages(scored, self.tracker, whiten=self._settings.whiten)

    def _baseline_samples(self, experiences: Sequence[Experience]) -> list[Scored]:
        """The samples, or their components, that update the trackers."""
        scored = self._scored(experiences)
        if self._settings.normalise == "total":
            return scored
        return [
            component_of(sample, name, part)
            for sample, parts in zip(scored, self._parts(experiences), strict=True)
            for name, part in parts.items()
        ]

    def _gradient(
        self, experiences: Sequence[Experience], again: Sequence[Experience], advantages: Sequence[float]
    ) -> tuple[LossSums, float, torch.Tensor]:
        """Accumulate the gradient of samples, then of corrections (`again`).

        Returns the sums of both, the drift measured on samples alone, and the summed current log-prob of each row. Corrections
        are old, so their distance from the current policy says nothing about the drift of the samples.
        """
        # The token count of the samples divides only their advantages. A correction brings its own denominator in `pull`.
        advantage_N = torch.tensor(advantages, dtype=torch.float32, device=self._accelerator.device)
        sums, current_N = self._backward(
            experiences, advantage_N[: len(experiences)], num_tokens(experiences), leash=True
        )
        drift = sums.metrics()["k3"]
        corrected, corrected_N = self._backward(again, advantage_N[len(experiences) :], 1, leash=False)
        sums.add(corrected)
        return sums, drift, torch.cat([current_N, corrected_N])

    def _backward(
        self, experiences: Sequence[Experience], advantage_N: torch.Tensor, count: int, *, leash: bool
    ) -> tuple[LossSums, torch.Tensor]:
        """Accumulate gradients; returns the sums and the summed current log-prob of each sample."""
        total, current_N = LossSums(), torch.zeros_like(advantage_N)
        for batch in self._micro_batches(experiences):
            scores = score(self._scorer, batch)
            anchor_BT = None
            if leash and self._settings.kl_coefficient > 0:
                anchor_BT = self._frozen.log_probs(0, self.base, batch)
            loss, sums = policy_loss(
                scores,
                batch.behaviour_BT,
                anchor_BT,
                advantage_N[batch.sample_B],
                batch.mask_BT,
                num_tokens=count,
                objective=self._objective,
                temperature_B=batch.temperature_B,
            )
            self._accelerator.backward(loss)
            current_N.index_add_(0, batch.sample_B, scores.log_probs_BT.detach().sum(-1))
            total.add(sums)
        return total, current_N


def _reward(experience: Experience) -> float:
    if experience.reward is None:
        raise ValueError(f"{experience.key} has no reward")
    return experience.reward


def _to_base64(generator_state: torch.Tensor) -> str:
    return base64.b64encode(generator_state.numpy().tobytes()).decode()


def _from_base64(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
