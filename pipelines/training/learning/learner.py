"""One step of a policy: its advantages, its guards, and whether it is taken.

In: experiences that may be trained. Out: changed weights and figures, or the reason why nothing changed. Waits for: the device.

A step is all or nothing: if it raises, weights, moments and trackers are unchanged; or it raises `StepsBroken`, and the process
ends. If memory runs out, it is retried in smaller pieces. The weights themselves are behind `Trainee`.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from contracts.errors import StepsBroken
from pipelines.training.known.batches import Batch
from pipelines.training.known.experiences import num_tokens, row_lengths
from pipelines.training.learning import guard
from pipelines.training.learning.advantages import Scored, advantages_of, denominators
from pipelines.training.learning.device import generator_states, is_out_of_memory, release_memory, set_generators
from pipelines.training.learning.figures import Mismatch, Speed, StepResult, batch_figures, sample_rows, text_figures
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trackers import in_range, new_tracker, tracker_from_json
from pipelines.training.learning.trainee import GradientRows, GradientSums
from pipelines.training.text.samples import NO_TEXT, rows_of
from policy.load import context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.known.batches import Lesson
    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.trackers import Tracker
    from pipelines.training.learning.trainee import Published, Trainee
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from pipelines.training.text.samples import TextBatch
    from weights.tensors import Tensor

log = structlog.get_logger()

_TORN = "the optimizer failed half-way: the weights in memory are of no step; the next start restores them"


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
        self.budget = trainee.budget
        """Tokens of one forward pass."""
        self.tracker: Tracker = new_tracker(settings)
        self.guard_history = GuardHistory([], {})
        """Never changed in place."""
        self._last: _Prepared | None = None
        self._mismatch = Mismatch(settings.mismatch_samples)
        self._speed = Speed(trainee.config, settings.peak_flops)
        self._is_torn = False
        self.saved_as = ""
        """The checkpoint that holds exactly these weights and moments; empty: none is known."""
        self.before_change: Callable[[], None] = _nothing_to_keep
        """Called before weights or moments change: whoever reads them in the background keeps what it has not read yet."""

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
        published: Published,
        corrections: Sequence[Lesson] = (),
        *,
        text: TextBatch = NO_TEXT,
        dry_run: bool = False,
        is_decided: bool = False,
    ) -> StepResult:
        """Learn from a batch once, or skip it as a whole. Samples that today's policy has left leave the batch first.

        Args:
            experiences: with rewards; none that `refusals.refuse` rejects.
            weights: one per sample.
            published: to measure the mismatch on.
            corrections: further rows of the batch that enter no baseline and no other sample's advantage.
            text: of these samples and corrections, or alone; its losses are added to that of the samples.
            dry_run: compute everything, including the guard's decision, and change nothing.
            is_decided: it was taken before, with these very rows: none leaves it, and the guard does not skip it.

        Raises StepsBroken: the optimizer failed half-way.
        """
        started, batch = time.monotonic(), Batch(experiences, corrections, text)
        by_key = {item.key: weight for item, weight in zip(experiences, weights, strict=True)}
        self._refuse_torn()
        try:
            prepared = self._prepared(batch, by_key, published, is_decided=is_decided)
            result = replace(prepared.result, skipped="") if is_decided else prepared.result
            if dry_run:
                return result
            self._remember(prepared)
            if (result.samples or text.samples) and not result.skipped:
                result = self._apply(replace(prepared, result=result))
        finally:
            self.trainee.forget_gradient()
        self.budget.fitted()
        result.metrics.update({**self._speed.figures(_rows_in(batch), started), **self.trainee.seconds()})
        return result

    def _remember(self, prepared: _Prepared, times: int = 1) -> None:
        self.guard_history = guard.remember(self.guard_history, prepared.norm, prepared.expected, prepared.signs, times)
        self._last = prepared

    def accept_sooner(self) -> None:
        """No sample was to blame for the last step's spike: let the guard get used to such steps in a few of them."""
        if self._last is not None:
            self._remember(self._last, guard.REPEATED - 1)

    def _prepared(
        self, batch: Batch, weights: Mapping[str, float], published: Published, *, is_decided: bool
    ) -> _Prepared:
        """Prepare a step. Each time memory runs out, halve the token budget and retry."""
        while True:
            self.trainee.forget_gradient()
            try:
                prepared, far = self._attempt(batch, weights, published)
                if not far or is_decided:
                    return prepared
                # Their share of the gradient and of every other advantage must go too: the step is computed again without them.
                self.trainee.forget_gradient()
                again, _ = self._attempt(batch.only(set(batch.keys) - far), weights, published)
                result = replace(again.result, left=sorted(far), log_ratios=prepared.result.log_ratios)
                result.metrics["num_divergent"] = len(far)
                return replace(again, result=result)
            except (MemoryError, RuntimeError) as error:
                lengths = row_lengths(_rows_in(batch))
                if not is_out_of_memory(error):
                    raise
                if not self.budget.shrink(len(lengths), max(lengths)) and not self.trainee.hold_less():
                    raise
                reason = str(error)
            release_memory()
            log.warning("out of memory: retrying in smaller pieces", max_tokens=self.budget.current, reason=reason)

    def _attempt(self, batch: Batch, weights: Mapping[str, float], published: Published) -> tuple[_Prepared, set[str]]:
        """A step with all of these, and the keys of those that today's policy has left."""
        rows = batch.rewarded
        experiences, corrections, everything = rows.samples, rows.lessons, rows.everything
        found = advantages_of(experiences, self.tracker, self.settings)
        values = [*found.values.tolist(), *(item.advantage for item in corrections)]
        shares = [item.streams.rl if item.streams else 1.0 for item in experiences]
        own = [weight * share for weight, share in zip(rows.weights(weights), shares, strict=True)]
        pulls = [*own, *(item.pull for item in corrections)]
        counts = [*denominators(experiences).tolist(), *[1.0] * len(corrections)]
        sums, current = self._gradient(rows, [v * w for v, w in zip(values, pulls, strict=True)], counts)
        pulled = set(rows.keys)
        silent = [item for item in batch.everything if item.key not in pulled and not item.origin]
        text = self.trainee.backward_text(batch.text, silent)
        self._mismatch.measure(self.trainee, experiences, published)
        norm = self.trainee.clip(self.settings.max_gradient_norm)
        expected = guard.Norms(
            math.sqrt(sums.expected_square + text.expected_square), sums.expected_length + text.expected_length
        )
        loss = sums.loss + sum(text.losses.values.values())
        log_ratio_N = guard.log_ratios(everything, current)
        far_N = guard.has_left(log_ratio_N, np.array(values), self.settings.divergence_bound)
        figures, lengths = sums.metrics(), [num_tokens([item]) for item in everything]
        logged = -(sum(current) - float(log_ratio_N @ lengths)) / max(sums.num_tokens, 1.0)
        signs = guard.signs_of({**figures, "num_tokens": sums.num_tokens}, logged)
        skipped = guard.why_skip(
            self.guard_history,
            loss=loss,
            gradient_norm=norm,
            expected=expected,
            signs=signs,
            spread=self.settings.guard_spread,
        )
        scale = min(guard.step_scale(figures["ess"]), sums.rate)
        metrics = {
            **figures,
            "loss": loss,
            **text_figures(batch.text.samples, text.losses),
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
            **batch_figures(batch.samples, batch.lessons),
        }
        above, keys = found.above.tolist(), rows.keys
        columns = {"advantage": values, "weight": pulls, "num_tokens": lengths}
        result = StepResult(
            skipped,
            metrics,
            sample_rows(everything, **columns, log_prob_sum=current, denominator=counts),
            pulls=dict.fromkeys((item.key for item in batch.samples), 0.0)
            | {
                item.key: share * found.scale / number
                for item, share, number in zip(experiences, shares, counts, strict=False)
            },
            zeros={item.key: (item.reward or 0.0) - more for item, more in zip(experiences, above, strict=True)},
            log_ratios=dict(zip(keys, log_ratio_N.tolist(), strict=True)),
            signs={**(expected.comparable(norm) or guard.NO_NORMS)._asdict(), **signs},
            step_scale=scale,
        )
        return _Prepared(result, found.samples, norm, expected, signs), {keys[index] for index in np.flatnonzero(far_N)}

    def _gradient(self, batch: Batch, pulls: Sequence[float], counts: Sequence[float]) -> GradientSums:
        """Of the samples, then of the corrections, whose denominators are in their pulls."""
        num = len(batch.samples)
        again = [item.experience for item in batch.lessons]
        sums, log_probs = self.trainee.backward(GradientRows(batch.samples, pulls[:num], counts[:num], are_new=True))
        corrected = self.trainee.backward(GradientRows(again, pulls[num:], counts[num:], are_new=False))
        sums.add(corrected.sums)
        return GradientSums(sums, [*log_probs, *corrected.log_probs])

    def _apply(self, prepared: _Prepared) -> StepResult:
        """Take the step; returns the result with what was left of it.

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
            raise StepsBroken(_TORN) from error
        self._is_torn, self.tracker = False, tracker
        scale = prepared.result.step_scale * taken.share
        moved: dict[str, float | None] = {"step_scale": scale, "step_moved": taken.moved}
        return replace(prepared.result, step_scale=scale, metrics=prepared.result.metrics | moved)

    def _begin_change(self) -> None:
        self.before_change()
        self.saved_as = ""

    def _refuse_torn(self) -> None:
        if self._is_torn:
            raise StepsBroken(_TORN)

    def capture(self, state: TrainerState, version: int | None) -> Checkpoint:
        """Everything a restart needs. Writes trackers, guard history and random state into `state`.

        Its tensors are the trainee's own: a step changes them.

        Raises StepsBroken: an optimizer step failed half-way.
        """
        self._refuse_torn()
        state.tracker = self.tracker.to_json()
        state.comparable_norms, state.guard_signs = self.guard_history.norms, self.guard_history.signs
        state.random_state = generator_states(self.trainee.device)
        state.model = self.trainee.identity
        weights, moments = self.trainee.masters()
        return Checkpoint(state, weights, moments, version)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to what `capture` saved. Raises WeightsRefused: see `Checkpoint.check`; nothing has changed."""
        checkpoint.check(self.trainee.masters()[0], self.trainee.identity)
        state = checkpoint.state
        tracker = in_range(tracker_from_json(state.tracker), self.settings)
        set_generators(state.random_state, self.trainee.device)
        self.tracker = tracker
        self.guard_history = GuardHistory(state.comparable_norms, state.guard_signs)
        self._begin_change()
        self.trainee.put((checkpoint.weights, checkpoint.optimizer))
        self._is_torn, self.saved_as = False, checkpoint.name

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        """How to continue from published bits; raises as `Trainee.restart_from`."""
        go = self.trainee.restart_from(bits)

        def restart() -> None:
            self._begin_change()
            go()
            self._is_torn = False

        return restart


def _rows_in(batch: Batch) -> list[Segmented]:
    """What a step computes over."""
    return [*batch.rewarded.everything, *rows_of(batch.text.samples)]


def _nothing_to_keep() -> None:
    """Nobody reads the weights in the background."""
