"""One step of a policy: its advantages, its guards, and whether it is taken.

In: experiences that may be trained. Out: changed weights and figures, or the reason why nothing changed. Waits for: the
device.

A step is all or nothing: if it raises, weights, moments and trackers are unchanged; or it raises `StepsBroken`, and the process
ends. If memory runs out, it is retried in smaller pieces. The weights themselves are behind `Trainee`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from contracts.errors import StepsBroken
from contracts.records import Experience
from pipelines.training.known.batches import Lesson
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning import guard
from pipelines.training.learning.advantages import Scored, advantages_of, baseline_samples, denominators
from pipelines.training.learning.device import (
    decoded,
    generator_states,
    is_out_of_memory,
    release_memory,
    set_generators,
)
from pipelines.training.learning.figures import (
    Mismatch,
    Speed,
    StepResult,
    correction_figures,
    reward_figures,
    sample_rows,
)
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trackers import in_range, new_tracker, tracker_from_json
from pipelines.training.learning.trainee import GradientRows, GradientSums
from policy.load import context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    import torch

    from pipelines.training.learning.device import TokenBudget
    from pipelines.training.learning.trackers import Tracker
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensors

log = structlog.get_logger()


class _Rows(NamedTuple):
    """The rows of a step: samples with their weights, and corrections, which enter no baseline and no other sample's advantage."""

    samples: Sequence[Experience]
    weights: Sequence[float]
    corrections: Sequence[Lesson]

    @property
    def everything(self) -> list[Experience]:
        return [*self.samples, *(item.experience for item in self.corrections)]

    def without(self, keys: Container[str]) -> _Rows:
        kept = [pair for pair in zip(self.samples, self.weights, strict=True) if pair[0].key not in keys]
        others = [item for item in self.corrections if item.experience.key not in keys]
        return _Rows([item for item, _ in kept], [weight for _, weight in kept], others)


@dataclass(frozen=True)
class _Prepared:
    """A step whose gradient is computed but not applied."""

    result: StepResult
    baseline_samples: Sequence[Scored]
    norm: float
    expected: guard.Norms
    signs: Mapping[str, float]


class Learner:
    """Decides about the steps of one policy, and remembers what was expected and what was ordinary."""

    def __init__(self, trainee: Trainee, settings: TrainingSettings) -> None:
        self.trainee, self.settings = trainee, settings
        self.tracker: Tracker = new_tracker(settings)
        self._gradient_norms: list[guard.Norms] = []
        self._signs: dict[str, list[float]] = {}
        self._last: _Prepared | None = None
        self._mismatch = Mismatch(settings.mismatch_samples)
        self._speed = Speed(trainee.config, settings.peak_flops)
        self._is_torn = False
        self.saved_as = ""
        """The checkpoint that holds exactly these weights and moments; empty: none is known."""
        self.before_change: Callable[[], None] = _nothing_to_keep
        """Called before weights or moments change: whoever reads them in the background keeps what it has not read yet."""

    @property
    def budget(self) -> TokenBudget:
        """Tokens of one forward pass."""
        return self.trainee.budget

    @property
    def device(self) -> torch.device:
        """Where steps are computed."""
        return self.trainee.device

    @property
    def is_on_cpu(self) -> bool:
        """True if no accelerator is in use."""
        return self.device.type == "cpu"

    @property
    def max_length(self) -> int:
        """The model's context in tokens; without a limit if its configuration names none."""
        return context_of(self.trainee.config) or sys.maxsize

    @property
    def vocabulary_size(self) -> int:
        """Every token id is below this number."""
        return int(self.trainee.config.vocab_size)

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
            experiences: scored, with rewards; none that `refusals.refuse` rejects.
            weights: one per sample.
            published: bits of versions in memory, to measure the mismatch on.
            corrections: further rows of the batch that enter no baseline and no other sample's advantage.
            dry_run: compute everything, including the guard's decision, and change nothing.
            is_decided: it was taken before, with these very rows: none leaves it, and the guard does not skip it.

        Raises:
            StepsBroken: the optimizer failed half-way.
        """
        started, rows = time.monotonic(), _Rows(experiences, weights, corrections)
        self._refuse_torn()
        try:
            prepared = self._prepared(rows, published, is_decided=is_decided)
            if is_decided:
                prepared = replace(prepared, result=replace(prepared.result, skipped=""))
            result = prepared.result
            if dry_run:
                return result
            self._remember(prepared)
            if result.samples and not result.skipped:
                result = self._apply(prepared)
        finally:
            self.trainee.forget_gradient()
        self.budget.fitted()
        result.metrics.update({**self._speed.figures(rows.everything, started), **self.trainee.seconds()})
        return result

    def _remember(self, prepared: _Prepared, times: int = 1) -> None:
        self._gradient_norms = guard.remember(self._gradient_norms, prepared.norm, prepared.expected, times)
        self._signs = guard.remember_signs(self._signs, prepared.signs, times)
        self._last = prepared

    def accept_sooner(self) -> None:
        """No sample was to blame for the last step's spike: let the guard get used to such steps in a few of them."""
        if self._last is not None:
            self._remember(self._last, guard.REPEATED - 1)

    def guard_history(self) -> GuardHistory:
        """What the guard remembers."""
        norms = [(item.noise, item.direction) for item in self._gradient_norms]
        return GuardHistory(norms, {reason: list(values) for reason, values in self._signs.items()})

    def set_guard_history(self, history: GuardHistory) -> None:
        """Return to what `guard_history` gave."""
        self._gradient_norms = [guard.Norms(*item) for item in history.norms]
        self._signs = {reason: list(values) for reason, values in history.signs.items()}

    def _prepared(self, rows: _Rows, published: Mapping[int, Tensors], *, is_decided: bool) -> _Prepared:
        """Prepare a step. Each time memory runs out, halve the token budget and retry."""
        while True:
            self.trainee.forget_gradient()
            try:
                return self._prepare(rows, published, is_decided=is_decided)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._shrink(rows):
                    raise
                reason = str(error)
            release_memory()
            log.warning("out of memory: retrying in smaller pieces", max_tokens=self.budget.current, reason=reason)

    def _shrink(self, rows: _Rows) -> bool:
        lengths = [len(segment.token_ids) // 4 for item in rows.everything for segment in item.segments]
        return self.budget.shrink(len(lengths), max(lengths)) or self.trainee.hold_less()

    def _prepare(self, rows: _Rows, published: Mapping[int, Tensors], *, is_decided: bool) -> _Prepared:
        prepared, far = self._attempt(rows, published)
        if not far or is_decided:
            return prepared
        # Their share of the gradient and of every other advantage must go too: the step is computed again without them.
        self.trainee.forget_gradient()
        again, _ = self._attempt(rows.without(far), published)
        result = replace(again.result, left=sorted(far), log_ratios=prepared.result.log_ratios)
        result.metrics["num_divergent"] = len(far)
        return replace(again, result=result)

    def _attempt(self, rows: _Rows, published: Mapping[int, Tensors]) -> tuple[_Prepared, set[str]]:
        """A step with all of these, and the keys of those that today's policy has left."""
        experiences, corrections, everything = rows.samples, rows.corrections, rows.everything
        scored = baseline_samples(experiences, self.settings)
        found = advantages_of(experiences, self.tracker, self.settings)
        values = [*found.values.tolist(), *(item.advantage for item in corrections)]
        pulls = [*rows.weights, *(item.pull for item in corrections)]
        counts = [*denominators(experiences).tolist(), *[1.0] * len(corrections)]
        sums, current = self._gradient(rows, [v * w for v, w in zip(values, pulls, strict=True)], counts)
        self._mismatch.measure(self.trainee, experiences, published)
        norm = self.trainee.clip(self.settings.max_gradient_norm)
        expected = guard.Norms(math.sqrt(sums.expected_square), sums.expected_length)
        skipped = guard.why_skip(
            self._gradient_norms,
            loss=sums.loss,
            gradient_norm=norm,
            expected=expected,
            spread=self.settings.guard_spread,
        )
        log_ratio_N = guard.log_ratios(everything, current)
        far_N = guard.has_left(log_ratio_N, np.array(values), self.settings.divergence_bound)
        figures = sums.metrics()
        count = max(sums.num_tokens, 1.0)
        logged = -(sum(current) - float(log_ratio_N @ [num_tokens([item]) for item in everything])) / count
        signs = guard.signs_of({**figures, "num_tokens": sums.num_tokens}, logged)
        skipped = skipped or guard.why_odd(self._signs, signs, self.settings.guard_spread)
        scale = min(guard.step_scale(figures["ess"]), sums.rate)
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
        above = found.above.tolist()
        keys = [item.key for item in everything]
        result = StepResult(
            skipped,
            metrics,
            sample_rows(everything, values, pulls, current, counts),
            {item.key: found.scale / number for item, number in zip(experiences, counts, strict=False)},
            {item.key: (item.reward or 0.0) - more for item, more in zip(experiences, above, strict=True)},
            log_ratios=dict(zip(keys, log_ratio_N.tolist(), strict=True)),
            signs={**(expected.comparable(norm) or guard.NO_NORMS)._asdict(), **signs},
            step_scale=scale,
        )
        return _Prepared(result, scored, norm, expected, signs), {keys[index] for index in np.flatnonzero(far_N)}

    def _gradient(self, rows: _Rows, pulls: Sequence[float], counts: Sequence[float]) -> GradientSums:
        """Of the samples, then of the corrections, whose denominators are in their pulls."""
        num = len(rows.samples)
        again = [item.experience for item in rows.corrections]
        sums, log_probs = self.trainee.backward(GradientRows(rows.samples, pulls[:num], counts[:num], are_new=True))
        corrected = self.trainee.backward(GradientRows(again, pulls[num:], counts[num:], are_new=False))
        sums.add(corrected.sums)
        return GradientSums(sums, [*log_probs, *corrected.log_probs])

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
            taken = self.trainee.take_step(prepared.result.step_scale)
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
        """The bits that a version cut now would have."""
        self._refuse_torn()
        return self.trainee.bits()

    def tensors_in(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """The bits that a version with these weights has; in any thread. `weights`: by parameter, from a checkpoint."""
        return self.trainee.bits_of(weights)

    def random_state(self) -> dict[str, str]:
        """Device name to the state of its random generator in base64."""
        return generator_states(self.device)

    def set_random_state(self, states: Mapping[str, str]) -> None:
        """Return to what `random_state` gave."""
        set_generators(decoded(states), self.device)

    def capture(self, state: TrainerState, version: int | None) -> Checkpoint:
        """Everything a restart needs. Writes trackers, guard history and generators into `state`.

        Its tensors are the trainee's own: a step changes them.

        Raises:
            StepsBroken: an optimizer step failed half-way.
        """
        self._refuse_torn()
        state.tracker = self.tracker.to_json()
        history = self.guard_history()
        state.comparable_norms, state.guard_signs = history.norms, history.signs
        state.random_state = self.random_state()
        state.model = self.trainee.identity
        weights, moments = self.trainee.masters()
        return Checkpoint(state, weights, moments, version)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint belongs to this model. Changes nothing.

        Raises:
            WeightsRefused: see `masters.check`.
        """
        self.trainee.check(checkpoint)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to what `capture` saved.

        Raises:
            WeightsRefused: see `check`; nothing has changed.
        """
        self.check(checkpoint)
        state = checkpoint.state
        tracker = in_range(tracker_from_json(state.tracker), self.settings)
        generators = decoded(state.random_state)
        self.tracker = tracker
        self.set_guard_history(GuardHistory(state.comparable_norms, state.guard_signs))
        set_generators(generators, self.device)
        self._begin_change()
        self.trainee.put((checkpoint.weights, checkpoint.optimizer))
        self._is_torn, self.saved_as = False, checkpoint.name

    def restart(self, tensors: Tensors) -> None:
        """Continue from published bits. The optimizer's moments belong to other weights and are dropped."""
        self._begin_change()
        self.trainee.restart(tensors)
        self._is_torn = False


def _torn() -> StepsBroken:
    return StepsBroken(
        "the optimizer failed half-way: the weights in memory are of no step; the next start restores them"
    )


def _nothing_to_keep() -> None:
    """Nobody reads the weights in the background."""
