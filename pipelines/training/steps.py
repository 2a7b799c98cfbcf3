"""The steps of the trainer: refuse untrainable samples, learn one batch, report figures.

In: samples that wait in the intake. Out: changed weights, the fate of every sample of the batch, figures in the database, and
a bundle for each skipped step. Waits for: the device.

It decides fates and publishes none: the trainer makes each fate durable before it goes to the log.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import structlog

from pipelines.training import repository
from pipelines.training.attempts import Attempts
from pipelines.training.batch import Refusal, TrainingLimits, num_tokens, refuse, refuse_weight, version_lag
from pipelines.training.guard import write_bundle
from pipelines.training.lessons import NullMass, draw, lesson_fate, sample_fate
from pipelines.training.state import Fate
from pipelines.training.telling import count
from pipelines.training.trial import Trial
from runtime.metrics import TRAINING_FIGURE, TRAINING_STEP_ERRORS, TRAINING_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from contracts.faults import FaultPoint
    from contracts.records import Experience
    from pipelines.training.culprits import Failure
    from pipelines.training.intake import Intake
    from pipelines.training.learner import Learner, StepResult
    from pipelines.training.lessons import Batch
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from pipelines.training.versions import VersionTree
    from runtime.lease import Lease
    from weights.tensors import Tensors

ATTEMPT = "attempt.json"
"""A file in the home, beside the checkpoints: see `attempts`."""

log = structlog.get_logger()


class Steps:
    """Everything between reading samples and publishing a version. One per trainer, in its thread."""

    def __init__(
        self,
        learner: Learner,
        state: TrainerState,
        intake: Intake,
        *,
        home: Path,
        training: TrainingSettings,
        lease: Lease,
        held: Callable[[], Mapping[int, Tensors]],
        clock: Callable[[], float],
        age_clock: Callable[[], float],
        fault: FaultPoint,
        tree: Callable[[], VersionTree],
    ) -> None:
        """`held` gives the published bits in memory, to measure the mismatch on.

        `tree` gives the current tree of versions. `age_clock` is the clock for ages, see `clocks.wall_for_ages`.
        """
        self._learner = learner
        self._state = state
        self._intake = intake
        self._home = home
        self._training = training
        self._lease = lease
        self._clock, self._age_clock = clock, age_clock
        self._fault = fault
        self._limits = TrainingLimits(
            max_version_lag=training.max_version_lag,
            max_age_seconds=training.max_age_seconds,
            max_length=learner.max_length,
            vocabulary_size=learner.vocabulary_size,
            policy=lease.policy,
            routing=learner.routing,
            needs_experts=bool(learner.routing.layers) and training.replay_experts == "required",
        )
        self._tree = tree
        self._attempts = Attempts(home / ATTEMPT)
        self._trial = Trial(learner, self._attempts, lease.policy, held)
        self._null_mass = NullMass()
        self._newest_sample = 0.0
        self._unrecorded: list[tuple[int, int, float, dict[str, Any]]] = []

    def was_read(self, experience: Experience) -> None:
        """Count one record for the figures of the next step."""
        self._null_mass.add(experience)
        self._newest_sample = max(self._newest_sample, experience.generated_at)

    def refuse(self) -> None:
        """Decide the fate of waiting samples that must not be trained."""
        waiting = self._intake.waiting
        tree = self._tree() if waiting else None
        for item in waiting:
            if tree is not None and (refusal := self._refusal(item.experience, tree)) is not None:
                self._give_up(item.experience, refusal)

    def are_due(self, now: float) -> bool:
        """True if a batch is ready. `now`: on the clock of the arrival times."""
        return self._intake.is_ready(
            now,
            batch_size=self._training.batch_size,
            min_batch_size=self._training.min_batch_size,
            max_wait_seconds=self._training.max_wait_seconds,
        )

    def expire(self) -> None:
        """Forget samples beyond the horizon. The newest sample limits it: a clock that is years ahead must not forget all."""
        if self._training.horizon_seconds is not None:
            now = min(self._age_clock(), self._newest_sample)
            self._state.expired_before = max(self._state.expired_before, now - self._training.horizon_seconds)

    def saved(self) -> None:
        """Call this after a checkpoint: it holds every decided fate."""
        self._attempts.saved(self._state.fates.keys())

    def _refusal(self, experience: Experience, tree: VersionTree) -> Refusal | None:
        refusal = refuse(experience, tree, self._limits, self._age_clock())
        if refusal is None and self._intake.corrects(experience) is None:
            return refuse_weight(experience)
        return refusal

    def _give_up(self, experience: Experience, refusal: Refusal) -> None:
        corrected = self._intake.corrects(experience)
        if corrected is None:
            self._decide(experience, Fate(experience.revision, refusal.state, refusal.reason))
        else:
            self._decide(experience, corrected.passed_over(experience.revision, f"correction_{refusal.state}"))

    def _decide(self, experience: Experience, fate: Fate) -> None:
        count(fate)
        self._state.fates[experience.key] = fate
        self._intake.remove(experience.key)
        self._state.note(experience.key)

    def learn(self) -> None:
        """One step over samples and corrections of earlier samples."""
        drawn, tree = draw(self._intake, self._training.batch_size), self._tree()
        freshness = {item.key: self._freshness(item, tree) for item in drawn.samples}
        weights = {item.key: item.weight * freshness[item.key] for item in drawn.samples}
        batch, result, culprits = self._trial.step(drawn, weights, epoch=self._state.epoch, step=self._state.step)
        for part, failure in culprits:
            self._quarantine(part, failure)
        if result is None:
            return
        self._state.step += 1
        self._fault("training: step taken")
        skipped = result.skipped
        for item in batch.samples:
            pull = freshness[item.key] * result.pull
            self._decide(item, sample_fate(item, skipped, pull, result.zeros.get(item.key)))
        for lesson in batch.lessons:
            before = self._state.fates[lesson.experience.key]
            self._decide(lesson.experience, lesson_fate(lesson, before, skipped))
        self._state.unpublished_samples += 0 if skipped else len(batch.everything)
        self._report(result, batch.everything, tree)

    def _quarantine(self, part: Batch, failure: Failure) -> None:
        """Quarantine one sample that broke its step, and write a bundle with its exception."""
        (experience,) = part.everything
        bundle = {
            "epoch": self._state.epoch,
            "step": self._state.step,
            "reason": failure.reason,
            "error": failure.error,
            "traceback": failure.traceback.splitlines(),
            "samples": [
                {
                    "key": experience.key,
                    "revision": experience.revision,
                    "reward": experience.reward,
                    "weight": experience.weight,
                    "num_tokens": num_tokens([experience]),
                }
            ],
        }
        name = f"sample-{experience.key}-revision-{experience.revision}".replace("/", "-")
        path = write_bundle(self._home / "bundles", name, bundle)
        log.error(
            "sample broke its step", key=experience.key, reason=failure.reason, error=failure.error, bundle=str(path)
        )
        TRAINING_STEP_ERRORS.labels(failure.error.partition(":")[0] or failure.reason).inc()
        self._give_up(experience, Refusal("quarantined", failure.reason))

    def _freshness(self, item: Experience, tree: VersionTree) -> float:
        """The weight left for a sample's age, in (0, 1]: halved per versions of lag and per time since generation."""
        lag = version_lag(item, tree)
        age = max(0.0, self._age_clock() - item.generated_at)
        return math.exp2(-lag / self._training.staleness_half_life - age / self._training.age_half_life_seconds)

    def _report(self, result: StepResult, batch: list[Experience], tree: VersionTree) -> None:
        """Record and log a step's figures; write a bundle if it was skipped."""
        now, epoch, step = self._clock(), self._state.epoch, self._state.step
        lags = [version_lag(item, tree) for item in batch]
        ages = [now - item.generated_at for item in batch]
        figures: dict[str, Any] = {
            **result.metrics,
            "version": self._state.version,
            "skipped": result.skipped,
            "lag_mean": sum(lags) / len(lags),
            "lag_max": max(lags),
            "age_seconds_mean": sum(ages) / len(ages),
            "age_seconds_max": max(ages),
            **self._null_mass.take(),
            "learning_rate": self._training.learning_rate,
        }
        if result.skipped:
            bundle = {
                "epoch": epoch,
                "step": step,
                "metrics": figures,
                "samples": result.samples,
                "random_state": self._learner.random_state(),
            }
            path = write_bundle(self._home / "bundles", f"epoch-{epoch}-step-{step}", bundle)
            log.error("step skipped", reason=result.skipped, bundle=str(path))
        figures = {name: _or_null(value) for name, value in figures.items()}
        TRAINING_STEPS.inc()
        for name, value in figures.items():
            if isinstance(value, int | float):
                TRAINING_FIGURE.labels(name).set(value)
        log.info("step", epoch=epoch, step=step, **figures)
        self._unrecorded.append((epoch, step, now, figures))
        self.record()

    def record(self) -> None:
        """Write the figures of steps to the database.

        Raises:
            Unavailable: the database is away; the figures stay for the next call.
        """
        while self._unrecorded:
            with self._lease.transaction() as connection:
                repository.record_step(connection, *self._unrecorded[0])
            del self._unrecorded[0]


def _or_null(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
