"""The model, the optimizer, and one step.

In: experiences that may be trained. Out: changed weights and figures, or the reason why nothing changed. Waits for: the
device.

A step is all or nothing: if it raises, weights, moments and trackers are unchanged; or it raises `StepsBroken`, and the process
ends. If memory runs out, it is retried in smaller pieces.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
import torch

from contracts.errors import StepsBroken
from pipelines.training.learning import masters
from pipelines.training.learning.advantage import Scored
from pipelines.training.learning.baselines import advantages_of, baseline_samples, in_range, new_tracker
from pipelines.training.learning.batch import num_tokens
from pipelines.training.learning.denominators import denominators
from pipelines.training.learning.divergence import has_left, log_ratios, step_scale
from pipelines.training.learning.figures import Speed, correction_figures, reward_figures, sample_rows
from pipelines.training.learning.frozen import Mismatch
from pipelines.training.learning.generators import decoded, generator_states, set_generators
from pipelines.training.learning.guard import (
    NO_NORMS,
    REPEATED,
    GuardHistory,
    Norms,
    remember,
    remember_signs,
    signs_of,
    why_odd,
    why_skip,
)
from pipelines.training.learning.loss import LossSums
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.memory import is_out_of_memory, release_memory
from pipelines.training.learning.step_result import StepResult
from pipelines.training.learning.trackers import tracker_from_json
from pipelines.training.learning.trained import TrainedPolicy
from policy.load import context_of
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.learning.trackers import Tracker
    from pipelines.training.samples.lessons import Lesson
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensors

log = structlog.get_logger()


@dataclass(frozen=True)
class _Prepared:
    """A step whose gradient is computed but not applied."""

    result: StepResult
    baseline_samples: Sequence[Scored]
    norm: float
    expected: Norms
    signs: Mapping[str, float]


class Learner:
    """One policy being trained on one device."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str = "cpu") -> None:
        """`model` is the base policy in float32; training changes it in place."""
        self._settings = settings
        self._policy = TrainedPolicy(model, settings, device)
        self.base, self.routing, self.budget = self._policy.base, self._policy.routing, self._policy.budget
        self._model, self._optimizer, self.device = self._policy.model, self._policy.optimizer, self._policy.device
        self.tracker: Tracker = new_tracker(settings)
        self._gradient_norms: list[Norms] = []
        self._signs: dict[str, list[float]] = {}
        self._last: _Prepared | None = None
        self._mismatch = Mismatch(settings.mismatch_samples)
        self._speed = Speed(model.config, settings.peak_flops)
        self._is_torn = False
        self.saved_as = ""
        """The checkpoint that holds exactly these weights and moments; empty: none is known."""
        self.before_change: Callable[[], None] = _nothing_to_keep
        """Called before weights or moments change: whoever reads them in the background keeps what it has not read yet."""
        self.identity = masters.identity_of(self.base, int(model.config.vocab_size))

    @property
    def is_on_cpu(self) -> bool:
        """True if no accelerator is in use."""
        return self.device.type == "cpu"

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
        is_decided: bool = False,
    ) -> StepResult:
        """Learn from a batch once, or skip it as a whole. Samples that today's policy has left, leave the batch first.

        Args:
            experiences: scored, with rewards; none that `batch.refuse` rejects.
            weights: one per sample.
            published: bits of versions in memory, to measure the mismatch on.
            corrections: further rows of the batch that enter no baseline and no other sample's advantage.
            dry_run: compute everything, including the guard's decision, and change nothing.
            is_decided: it was taken before, with these very rows: none leaves it, and the guard does not skip it.

        Raises:
            StepsBroken: the optimizer failed half-way.
        """
        started = time.monotonic()
        self._refuse_torn()
        try:
            prepared = self._prepared(experiences, weights, published, corrections, is_decided=is_decided)
            if is_decided:
                prepared = replace(prepared, result=replace(prepared.result, skipped=""))
            result = prepared.result
            if dry_run:
                return result
            self._remember(prepared)
            if result.samples and not result.skipped:
                result = self._apply(prepared)
        finally:
            self._optimizer.zero_grad()
        self.budget.fitted()
        everything = [*experiences, *(item.experience for item in corrections)]
        result.metrics.update(self._speed.figures(everything, started) | self._policy.stages.take())
        return result

    def _remember(self, prepared: _Prepared, times: int = 1) -> None:
        self._gradient_norms = remember(self._gradient_norms, prepared.norm, prepared.expected, times)
        self._signs = remember_signs(self._signs, prepared.signs, times)
        self._last = prepared

    def accept_sooner(self) -> None:
        """No sample was to blame for the last step's spike: let the guard get used to such steps in a few of them."""
        if self._last is not None:
            self._remember(self._last, REPEATED - 1)

    def guard_history(self) -> GuardHistory:
        """What the guard remembers."""
        norms = [(item.noise, item.direction) for item in self._gradient_norms]
        return GuardHistory(norms, {reason: list(values) for reason, values in self._signs.items()})

    def set_guard_history(self, history: GuardHistory) -> None:
        """Return to what `guard_history` gave."""
        self._gradient_norms = [Norms(*item) for item in history.norms]
        self._signs = {reason: list(values) for reason, values in history.signs.items()}

    def _prepared(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson],
        *,
        is_decided: bool,
    ) -> _Prepared:
        """Prepare a step. Each time memory runs out, halve the token budget and retry."""
        while True:
            self._optimizer.zero_grad()
            try:
                return self._prepare(experiences, weights, published, corrections, is_decided=is_decided)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._shrink(experiences, corrections):
                    raise
                reason = str(error)
            release_memory()
            log.warning("out of memory: retrying in smaller pieces", max_tokens=self.budget.current, reason=reason)

    def _shrink(self, experiences: Sequence[Experience], corrections: Sequence[Lesson]) -> bool:
        everything = [*experiences, *(item.experience for item in corrections)]
        lengths = [len(segment.token_ids) // 4 for item in everything for segment in item.segments]
        return self.budget.shrink(len(lengths), max(lengths)) or self._policy.can_hold_less()

    def _prepare(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson],
        *,
        is_decided: bool,
    ) -> _Prepared:
        prepared, far = self._attempt(experiences, weights, published, corrections)
        if not far or is_decided:
            return prepared
        # Their share of the gradient and of every other advantage must go too: the step is computed again without them.
        self._optimizer.zero_grad()
        kept = [(item, weight) for item, weight in zip(experiences, weights, strict=True) if item.key not in far]
        others = [item for item in corrections if item.experience.key not in far]
        again, _ = self._attempt([item for item, _ in kept], [weight for _, weight in kept], published, others)
        result = replace(again.result, left=sorted(far), log_ratios=prepared.result.log_ratios)
        result.metrics["num_divergent"] = len(far)
        return replace(again, result=result)

    def _attempt(
        self,
        experiences: Sequence[Experience],
        weights: Sequence[float],
        published: Mapping[int, Tensors],
        corrections: Sequence[Lesson],
    ) -> tuple[_Prepared, set[str]]:
        """A step with all of these, and the keys of those that today's policy has left."""
        again = [item.experience for item in corrections]
        everything = [*experiences, *again]
        scored = baseline_samples(experiences, self._settings)
        found = advantages_of(experiences, self.tracker, self._settings)
        values = [*found.values.tolist(), *(item.advantage for item in corrections)]
        pulls = [*weights, *(item.pull for item in corrections)]
        counts = denominators(experiences)
        sums, current_N = self._gradient(
            experiences, again, [v * w for v, w in zip(values, pulls, strict=True)], counts
        )
        self._mismatch.measure(self._policy.frozen, experiences, published, self._policy.micro_batches)
        norm = self._policy.clip(self._settings.max_gradient_norm)
        expected = Norms(math.sqrt(sums.expected_square), sums.expected_length)
        skipped = why_skip(
            self._gradient_norms,
            loss=sums.loss,
            gradient_norm=norm,
            expected=expected,
            spread=self._settings.guard_spread,
        )
        current = current_N.tolist()
        log_ratio_N = log_ratios(everything, current)
        far_N = has_left(log_ratio_N, np.array(values), self._settings.divergence_bound)
        figures = sums.metrics()
        count = max(sums.num_tokens, 1.0)
        logged = -(sum(current) - float(log_ratio_N @ [num_tokens([item]) for item in everything])) / count
        signs = signs_of({**figures, "num_tokens": sums.num_tokens}, logged)
        skipped = skipped or why_odd(self._signs, signs, self._settings.guard_spread)
        scale = min(step_scale(figures["ess"]), sums.rate)
        metrics = {
            **figures,
            "step_scale": scale,
            "step_moved": None,
            "num_divergent": 0,
            "gradient_norm": norm,
            "gradient_norm_expected": expected.noise,
            "noise_scale": norm / expected.noise if expected.noise > 0 else 0.0,
            "entropy_gap": figures["entropy"] - logged,
            "num_tokens": sums.num_tokens,
            "token_budget": self.budget.current,
            **self._mismatch.figures(),
            **reward_figures(experiences),
            **correction_figures(corrections),
        }
        rows = sample_rows(everything, values, pulls, current, [*counts.tolist(), *[1.0] * len(again)])
        of_sample = {item.key: found.scale / count for item, count in zip(experiences, counts.tolist(), strict=True)}
        above = found.above.tolist()
        zeros = {item.key: (item.reward or 0.0) - more for item, more in zip(experiences, above, strict=True)}
        keys = [item.key for item in everything]
        result = StepResult(
            skipped,
            metrics,
            rows,
            of_sample,
            zeros,
            log_ratios=dict(zip(keys, log_ratio_N.tolist(), strict=True)),
            signs={**(expected.comparable(norm) or NO_NORMS)._asdict(), **signs},
            step_scale=scale,
        )
        return _Prepared(result, scored, norm, expected, signs), {keys[index] for index in np.flatnonzero(far_N)}

    def _apply(self, prepared: _Prepared) -> StepResult:
        """Take the step completely or not at all. Returns the result with what was left of the step.

        The optimizer comes last and allocates nothing: its moments exist. If it fails nevertheless, the weights may be those of
        half a step: the process ends, and the next one restores them.
        """
        tracker = self.tracker.copy()
        for item in prepared.baseline_samples:
            tracker.update(item.baseline_key, item.version, item.reward, item.weight)
        self._begin_change()
        self._is_torn = True
        try:
            taken = self._policy.take_step(prepared.result.step_scale)
        except Exception as error:
            raise _torn() from error
        self._is_torn, self.tracker = False, tracker
        scale = prepared.result.step_scale * taken.share
        moved: dict[str, float | None] = {"step_scale": scale, "step_moved": taken.moved}
        return replace(prepared.result, step_scale=scale, metrics=prepared.result.metrics | moved)

    def _begin_change(self) -> None:
        self.before_change()
        self.saved_as = ""

    def _refuse_torn(self) -> None:
        if self._is_torn:
            raise _torn()

    def tensors(self) -> Tensors:
        """The bfloat16 bits that a version cut now would have."""
        self._refuse_torn()
        return tensors_of(self._model)

    def tensors_in(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """The bits that a version with these weights has; in any thread. `weights`: by parameter, from a checkpoint."""
        return tensors_of(self._model, weights)

    def random_state(self) -> dict[str, str]:
        """Device name to the state of its random generator in base64."""
        return generator_states(self._policy.device)

    def set_random_state(self, states: Mapping[str, str]) -> None:
        """Return to what `random_state` gave."""
        set_generators(decoded(states), self._policy.device)

    def capture(self, state: TrainerState, version: int | None) -> Checkpoint:
        """Everything a restart needs. Writes trackers, guard history and generators into `state`.

        Its tensors are the learner's own: a step changes them.

        Raises:
            StepsBroken: an optimizer step failed half-way.
        """
        self._refuse_torn()
        state.tracker = self.tracker.to_json()
        guard = self.guard_history()
        state.comparable_norms, state.guard_signs = guard.norms, guard.signs
        state.random_state = self.random_state()
        state.model = self.identity
        weights, moments = masters.look(self._model, self._optimizer)
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
        tracker = in_range(tracker_from_json(state.tracker), self._settings)
        generators = decoded(state.random_state)
        self.tracker = tracker
        self.set_guard_history(GuardHistory(state.comparable_norms, state.guard_signs))
        set_generators(generators, self._policy.device)
        self._begin_change()
        masters.put(self._model, self._optimizer, (checkpoint.weights, checkpoint.optimizer))
        self._is_torn, self.saved_as = False, checkpoint.name

    def restart(self, tensors: Tensors) -> None:
        """Continue from published bits. The optimizer's moments belong to other weights and are dropped."""
        self._begin_change()
        copy_tensors(self._model, tensors)
        masters.begin_moments(self._optimizer)
        self._is_torn = False

    def _gradient(
        self, experiences: Sequence[Experience], again: Sequence[Experience], pulls: Sequence[float], counts: np.ndarray
    ) -> tuple[LossSums, torch.Tensor]:
        """Accumulate the gradient of samples, then of corrections (`again`), whose denominators are in their pulls.

        Returns the sums of both, and the summed current log-prob of each row.
        """
        pull_N = torch.tensor(pulls, dtype=torch.float32, device=self._policy.device)
        count_N, one_N = (torch.from_numpy(each).to(pull_N.device) for each in (counts, np.ones(len(again))))
        sums, current_N = self._policy.backward(experiences, pull_N[: len(experiences)], count_N, are_new=True)
        corrected, corrected_N = self._policy.backward(again, pull_N[len(experiences) :], one_N, are_new=False)
        sums.add(corrected)
        return sums, torch.cat([current_N, corrected_N])


def _torn() -> StepsBroken:
    return StepsBroken(
        "the optimizer failed half-way: the weights in memory are of no step; the next start restores them"
    )


def _nothing_to_keep() -> None:
    """Nobody reads the weights in the background."""
