"""The steps of the trainer: refuse untrainable samples, learn one batch, report figures, bundle what the guard stopped.

It decides fates and publishes none: the trainer makes each fate durable before it goes to the log. Waits for: the device.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from contracts.errors import InvalidSettings
from pipelines.training import repository
from pipelines.training.checkpoints.bundles import Bundles, origin_of
from pipelines.training.checkpoints.plans import Ending, digest_of, prepare
from pipelines.training.known.experiences import is_learnable, is_old, version_lag, worth
from pipelines.training.learning.device import generator_states
from pipelines.training.learning.guard import by_lag
from pipelines.training.samples.attempts import Attempts
from pipelines.training.samples.intake import is_new_edit
from pipelines.training.samples.reading import NullMass
from pipelines.training.samples.refusals import Refusal, TrainingLimits, refuse
from pipelines.training.samples.reward_watch import REWARD_SPIKE, RewardWatch, of_tasks
from pipelines.training.samples.trial import Plan, Trial
from pipelines.training.state import Fate
from pipelines.training.surroundings import wall_for_ages
from pipelines.training.text.edits import AnswerTokenizer, text_of
from pipelines.training.text.rendering import TextRenderer, with_tokens
from pipelines.training.text.samples import TextBatch
from runtime import metrics
from runtime.template.chat_template import load_template

if TYPE_CHECKING:
    from collections.abc import Collection

    from contracts.records import Experience
    from pipelines.training.checkpoints.plans import Restored
    from pipelines.training.checkpoints.recovery import Recovery
    from pipelines.training.known.batches import Batch
    from pipelines.training.known.lineage import VersionTree
    from pipelines.training.learning.figures import StepResult
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.trial import Failure, TrialResult
    from pipelines.training.surroundings import Surroundings
    from pipelines.training.text.samples import TextSample

DIVERGENCE = "divergence"
"""Reason of `stale`: today's policy has left the answer."""
ATTEMPT = "attempt.json"
"""A file in the home, see `attempts`."""
MOST_BATCHES = 4
"""Batches that wait at most while there are not enough fresh samples to mix old ones with."""

log = structlog.get_logger()


class Steps:
    """Everything between reading samples and publishing a version. One per trainer, in its thread."""

    def __init__(self, around: Surroundings, restored: Restored, intake: Intake, recovery: Recovery) -> None:
        """`recovery` has the learner, the journal of its steps, and the tree of versions."""
        training, settings, learner = around.training, around.settings, recovery.learner
        routing, publisher = learner.trainee.routing, recovery.publisher
        self._around, self._training = around, training
        self._learner, self._state, self._intake = learner, restored.state, intake
        self._tree, self._journal, self._unfinished = recovery.branches.tree, recovery.journal, restored.unfinished
        self._age_clock = wall_for_ages(around.clock, around.monotonic)
        origin = origin_of(settings.base, training, learner.trainee.machine())
        self._bundles = Bundles(settings.home / "bundles", settings.checkpoints, origin)
        needs_experts = bool(routing.layers) and training.replay_experts == "required"
        size, horizon = (learner.max_length, learner.vocabulary_size), training.horizon_seconds or math.inf
        self._limits = TrainingLimits(*size, around.lease.policy, routing, needs_experts, horizon)
        self._generators: dict[str, str] = {}
        self._attempts = Attempts(settings.home / ATTEMPT)
        self._trial = Trial(learner, self._attempts, around.lease.policy, lambda: publisher.held)
        self._watch = RewardWatch(*training.reward_range, training.guard_hold_seconds)
        if self._state.reward_levels:
            self._watch.take(self._state.reward_levels, self._state.suspect_since)
        for batch in restored.taught:
            self._watch.learned(batch.samples)
        self._null_mass = NullMass()
        self._newest_sample = 0.0
        self.save_seconds: float | None = None
        """How long the last save kept the trainer from its next step."""
        self._unrecorded: list[tuple[int, int, float, dict[str, Any]]] = []

    def read(self, experience: Experience, answer: bytes | None) -> Experience:
        """Count one record for the figures of the next step; a provider's answer, as it is in the log, gets tokens of this policy."""
        self._null_mass.add(experience)
        self._newest_sample = max(self._newest_sample, experience.generated_at)
        if not experience.origin or experience.purpose != "user" or not is_learnable(experience):
            return experience
        return with_tokens(experience, answer, self._renderer, self._limits.max_length)

    def refuse(self) -> None:
        """Decide the fate of waiting samples that must not be trained."""
        if not (waiting := [item.experience for item in self._intake.waiting]):
            return
        tree, now = self._tree(), self._age_clock()
        for item in waiting:
            is_correction = self._intake.corrects(item) is not None
            if (refusal := refuse(item, tree, self._limits, now, is_correction=is_correction)) is not None:
                self._give_up(item, refusal)

    def are_due(self, now: float) -> bool:
        """True if a batch is ready. `now`: on the clock of the arrival times."""
        return self._intake.is_ready(
            now,
            is_full=self.num_missing == 0,
            min_batch_size=self._training.min_batch_size,
            max_wait_seconds=self._training.max_wait_seconds,
        )

    @property
    def num_missing(self) -> int:
        """Samples that a full batch still needs: old ones above its quarter wait for a later batch, and do not fill this one.

        0 also if MOST_BATCHES batches wait, so that late rewards alone cannot fill the memory.
        """
        size, waiting = self._training.batch_size, self._intake.waiting
        if len(waiting) < size:
            return size - len(waiting)
        return 0 if len(waiting) >= MOST_BATCHES * size else max(size - len(self._drawn().everything), 0)

    def _drawn(self) -> Batch:
        tree, most = self._tree(), self._training.old_versions
        return self._intake.draw(self._training.batch_size, lambda item: is_old(item, tree, most))

    def before_save(self) -> set[str]:
        """Before a save: forget samples beyond the horizon, and note the levels of rewards. Returns the suspects whose fates it holds."""
        self._state.reward_levels = self._watch.levels.to_json()
        self._bundles.expire()
        if self._training.horizon_seconds is not None:
            # A clock that is years ahead must not forget all.
            now = min(self._age_clock(), self._newest_sample)
            self._state.expired_before = max(self._state.expired_before, now - self._training.horizon_seconds)
        return {key for key in self._attempts.remembered if key in self._state.fates}

    def saved(self, suspects: Collection[str]) -> None:
        """A checkpoint with the fates of these suspects is durable."""
        self._attempts.saved(suspects)

    def _give_up(self, experience: Experience, refusal: Refusal) -> None:
        corrected = self._intake.corrects(experience)
        if corrected is None:
            self._decide(experience, Fate(experience.revision, refusal.state, refusal.reason))
        else:
            self._decide(experience, corrected.passed_over(experience.revision, f"correction_{refusal.state}"))

    def _decide(self, experience: Experience, fate: Fate) -> None:
        if fate.late is None:
            metrics.TRAINING_SAMPLES.labels(fate.state).inc()
        else:
            metrics.TRAINING_CORRECTIONS.labels(fate.late_reason).inc()
        self._intake.decide(experience.key, fate)

    def learn(self) -> None:
        """One step over samples and corrections of earlier samples."""
        drawn = self._without_turned(self._drawn())
        if not drawn.everything:
            return
        generators = generator_states(self._learner.trainee.device)
        plan = Plan(
            epoch=self._state.epoch,
            step=self._state.step,
            at=self._age_clock(),
            batch=replace(drawn, text=self._text_of(drawn)),
            weights={item.key: item.weight for item in drawn.samples},
            max_tokens=self._learner.budget.current,
            num_threads=self._training.num_threads,
            random_state={} if generators == self._generators else generators,
        )
        self._take(plan)

    @cached_property
    def _tokenizer(self) -> AnswerTokenizer | None:
        return AnswerTokenizer.of(Path(self._around.settings.base))

    @cached_property
    def _renderer(self) -> TextRenderer | None:
        if self._tokenizer is None:
            return None
        try:
            return TextRenderer(load_template(self._around.settings.base), self._tokenizer)
        except InvalidSettings as error:
            log.warning("no provider's answer is learned: the base policy has no template here", reason=error.message)
            return None

    def _text_of(self, drawn: Batch) -> TextBatch:
        """The text of samples, and the edits that came after their samples were trained: the first of each answer."""
        late = [each.experience for each in drawn.lessons]
        owners = [*drawn.samples, *(item for item in late if is_new_edit(item, self._state.fates[item.key]))]
        tokenizer = self._tokenizer if any(item.streams and item.streams.edit for item in owners) else None
        samples: list[TextSample] = []
        for found in (text_of(item, tokenizer, self._limits.max_length) for item in owners):
            samples += found.samples
            if found.refused:
                metrics.TRAINING_TEXTS.labels(found.refused).inc()
        return TextBatch.of(samples)

    def resume(self) -> bool:
        """Take the step that the last process had begun, as it was planned then; False if there is none."""
        if (plan := self._unfinished) is None:
            return False
        log.info("the step that had begun is taken", step=plan.step, num_samples=len(plan.batch.keys))
        prepare(self._learner, plan, plan.max_tokens)
        self._take(msgspec.structs.replace(plan, epoch=self._state.epoch, step=self._state.step))
        self._unfinished = None
        return True

    def abandon(self) -> None:
        """Forget the step that had begun: a rollback changed the weights, and its samples are read again."""
        self._unfinished = None

    def _take(self, plan: Plan) -> None:
        """Take a planned step. What it depends on is durable first, so that a restart can take it again."""
        self._journal.begin(plan)
        self._generators = plan.random_state or self._generators
        began, tree = time.monotonic(), self._tree()
        found = self._trial.step(plan)
        seconds = time.monotonic() - began
        batch, left, culprits = found.learned, found.left, found.culprits
        is_guarded = culprits or (found.result is not None and found.result.skipped)
        bundle = self._bundles.keep_step(plan, found, self._journal.name) if is_guarded else None
        for part, failure in culprits:
            self._quarantine(part, failure, bundle)
        for item in left.everything:
            self._give_up(item, Refusal("stale", DIVERGENCE))
        taken = found.result if batch.everything else None
        learned = batch.keys if taken is not None and not taken.skipped else []
        if taken is not None:
            self._state.step += 1
            self._around.fault("training: step taken")
            if learned:
                self._learned(batch, taken)
        decided = [*(key for part, _ in culprits for key in part.keys), *left.keys, *learned]
        self._journal.end(
            Ending(
                step=self._state.step,
                learned=learned,
                fates={key: self._state.fates[key] for key in decided},
                max_tokens=int(taken.metrics["token_budget"] or 0) if taken is not None else plan.max_tokens,
                digest=digest_of(taken) if taken is not None and learned else "",
                seconds=seconds,
                # Attempts that were not taken are in the guard's history too.
                guard=None if learned and not culprits else self._learner.guard_history,
            )
        )
        if taken is not None:
            self._report(taken, found, tree, bundle)

    def _learned(self, batch: Batch, result: StepResult) -> None:
        edited = {each.key for each in batch.everything if each.streams and each.streams.edit}
        edited &= {each.key for each in batch.text.samples}
        for item in batch.samples:
            pull, zero, has_edit = result.pulls[item.key], result.zeros.get(item.key), item.key in edited
            self._decide(item, Fate.trained(item, pull, zero, has_edit=has_edit))
        for lesson in batch.lessons:
            later = lesson.experience
            now, has_edit = worth(later), later.key in edited
            fate = self._state.fates[later.key].corrected(later.revision, now, later.weight, has_edit=has_edit)
            self._decide(later, fate)
        for kind, num in Counter(item.kind for item in batch.text.samples).items():
            metrics.TRAINING_TEXTS.labels(kind).inc(num)
        self._state.unpublished_samples += len(batch.everything)
        self._watch.learned(batch.samples)

    def _without_turned(self, drawn: Batch) -> Batch:
        """Quarantine the samples of tasks whose rewards jumped, and say why in a bundle."""
        before, now = self._watch.memory(drawn.samples), self._age_clock()
        found = self._watch.suspicions(drawn.samples, now)
        self._state.suspect_since = self._watch.suspect_since
        if not found:
            return drawn
        keys = of_tasks(drawn.samples, found)
        epoch, step = self._state.epoch, self._state.step
        path = self._bundles.keep_rewards(drawn.samples, found, before, epoch=epoch, step=step, at=now)
        tasks = [item._asdict() for item in found]
        log.error("rewards jumped: samples quarantined", tasks=tasks, num_samples=len(keys), bundle=str(path))
        metrics.TRAINING_STEP_ERRORS.labels(REWARD_SPIKE).inc(len(keys))
        for item in drawn.samples:
            if item.key in keys:
                self._give_up(item, Refusal("quarantined", REWARD_SPIKE))
        return drawn.only(set(drawn.keys) - keys)

    def _quarantine(self, part: Batch, failure: Failure, bundle: Path | None) -> None:
        (experience,) = part.everything
        facts = {"key": experience.key, "reason": failure.reason, "error": failure.error, "bundle": str(bundle)}
        log.error("sample broke its step", **facts)
        metrics.TRAINING_STEP_ERRORS.labels(failure.error.partition(":")[0] or failure.reason).inc()
        self._give_up(experience, Refusal("quarantined", failure.reason))

    def _report(self, result: StepResult, found: TrialResult, tree: VersionTree, bundle: Path | None) -> None:
        """Record and log a step's figures."""
        now, epoch, step = self._around.clock(), self._state.epoch, self._state.step
        batch, everything = found.learned.everything, [*found.learned.everything, *found.left.everything]
        compared = [item for item in everything if item.key in result.log_ratios]
        own = [item for item in batch if not item.origin]
        lags, all_lags = ([version_lag(item, tree) for item in items] for items in (own, compared))
        log_ratios = [result.log_ratios[item.key] for item in compared]
        ages = [now - item.generated_at for item in batch]
        figures: dict[str, Any] = {
            **result.metrics,
            "version": self._state.version,
            "skipped": result.skipped,
            "lag_mean": sum(lags) / max(len(lags), 1),
            "lag_max": max(lags, default=0),
            "age_seconds_mean": sum(ages) / len(ages),
            "age_seconds_max": max(ages),
            **self._null_mass.take(),
            **{f"divergence/{name}": value for name, value in by_lag(all_lags, log_ratios).items()},
            "seconds_save": self.save_seconds,
            "journal_bytes": self._journal.num_bytes,
            "journal_steps": self._journal.num_steps,
            "learning_rate": self._training.learning_rate * result.step_scale,
        }
        if result.skipped:
            log.error("step skipped", reason=result.skipped, bundle=str(bundle))
        figures = {name: _or_null(value) for name, value in figures.items()}
        metrics.TRAINING_STEPS.inc()
        for name, value in figures.items():
            if isinstance(value, int | float):
                metrics.TRAINING_FIGURE.labels(name).set(value)
        log.info("step", epoch=epoch, step=step, **figures)
        self._unrecorded.append((epoch, step, now, figures))
        self.record()

    def record(self) -> None:
        """Write the figures of steps to the database. Raises Unavailable: they stay for the next call."""
        while self._unrecorded:
            with self._around.lease.transaction() as connection:
                repository.record_step(connection, *self._unrecorded[0])
            del self._unrecorded[0]


def _or_null(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
