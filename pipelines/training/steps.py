"""The steps of the trainer: refuse what must not be learned, learn one batch, say what happened.

In: what waits in the intake. Out: changed weights, the fate of every sample of the batch, figures in the database and a
bundle where a step was skipped. Waits: for the device.

It decides and never tells: `decide` hands each fate to the trainer, which makes it durable before the log hears of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import structlog

from contracts.metrics import TRAINING_FIGURE, TRAINING_STEPS
from pipelines.training import repository
from pipelines.training.batch import Limits, oldest_version, refuse, refuse_weight, version_lag
from pipelines.training.guard import write_bundle
from pipelines.training.lessons import NullMass, draw, lesson_fate, sample_fate
from pipelines.training.state import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from contracts.database import Database
    from contracts.faults import FaultPoint
    from contracts.records import Experience
    from contracts.settings import Settings
    from contracts.weights.format import Tensors
    from pipelines.training.intake import Intake
    from pipelines.training.learner import Learner, StepResult
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState

log = structlog.get_logger()


class Steps:
    """What the trainer does with samples between reading them and publishing. One per trainer, in its thread."""

    def __init__(
        self,
        learner: Learner,
        state: TrainerState,
        intake: Intake,
        *,
        settings: Settings,
        training: TrainingSettings,
        database: Database,
        held: Callable[[], Mapping[int, Tensors]],
        decide: Callable[[Experience, Fate], None],
        clock: Callable[[], float],
        age_clock: Callable[[], float],
        fault: FaultPoint,
    ) -> None:
        """`held`: published bits at hand, to measure the mismatch on. `decide` gives a waiting sample its fate.

        `age_clock`: from which ages are taken, see `clocks.wall_for_ages`.
        """
        self._learner = learner
        self._state = state
        self._intake = intake
        self._settings = settings
        self._training = training
        self._database = database
        self._held = held
        self._decide = decide
        self._clock, self._age_clock = clock, age_clock
        self._fault = fault
        self._limits = Limits(
            max_version_lag=training.max_version_lag,
            max_age_seconds=training.max_age_seconds,
            max_length=learner.max_length,
            vocabulary_size=learner.vocabulary_size,
        )
        self._null_mass = NullMass()

    def was_read(self, experience: Experience) -> None:
        """Count one record for the figures of the next step."""
        self._null_mass.add(experience)

    def refuse(self) -> None:
        """Name the fate of what waits and must not be trained."""
        for item in self._intake.waiting:
            experience = item.experience
            refusal = refuse(experience, self._state.lineage, self._limits, self._age_clock())
            corrected = self._intake.corrects(experience)
            if corrected is None and (refusal := refusal or refuse_weight(experience)) is not None:
                self._decide(experience, Fate(experience.revision, refusal.state, refusal.reason))
            elif corrected is not None and refusal is not None:
                self._decide(experience, corrected.passed_over(experience.revision, f"correction_{refusal.state}"))

    def learn(self) -> None:
        """One step over samples, and corrections of earlier ones."""
        batch = draw(self._intake, self._training.batch_size)
        freshness = [self._freshness(item) for item in batch.samples]
        weights = [item.weight * fresh for item, fresh in zip(batch.samples, freshness, strict=True)]
        result = self._learner.step(batch.samples, weights, self._held(), batch.lessons)
        self._state.step += 1
        self._fault("training: step taken")
        skipped = result.verdict.reason
        for item, fresh in zip(batch.samples, freshness, strict=True):
            self._decide(item, sample_fate(item, skipped, fresh * result.scale))
        for lesson in batch.lessons:
            before = self._state.fates[lesson.experience.key]
            self._decide(lesson.experience, lesson_fate(lesson, before, skipped))
        self._state.unpublished_samples += 0 if skipped else len(batch.everything)
        self._report(result, batch.everything)

    def _freshness(self, item: Experience) -> float:
        """How much a sample still counts, in (0, 1]: it halves with versions and with time since its first token."""
        lag = version_lag(self._state.lineage, oldest_version(item))
        age = max(0.0, self._age_clock() - item.generated_at)
        return math.exp2(-lag / self._training.staleness_half_life - age / self._training.age_half_life_seconds)

    def _report(self, result: StepResult, batch: list[Experience]) -> None:
        """Keep and print a step's figures; a skipped one leaves a bundle."""
        now, epoch, step = self._clock(), self._state.epoch, self._state.step
        lags = [version_lag(self._state.lineage, oldest_version(item)) for item in batch]
        ages = [now - item.generated_at for item in batch]
        figures: dict[str, Any] = {
            **result.metrics,
            "version": self._state.version,
            "skipped": result.verdict.reason,
            "lag_mean": sum(lags) / len(lags),
            "lag_max": max(lags),
            "age_seconds_mean": sum(ages) / len(ages),
            "age_seconds_max": max(ages),
            **self._null_mass.take(),
            "learning_rate": self._training.learning_rate,
        }
        if result.verdict.reason:
            bundle = {
                "epoch": epoch,
                "step": step,
                "metrics": figures,
                "samples": result.samples,
                "random_state": self._learner.random_state(),
            }
            path = write_bundle(self._settings.home / "bundles", f"epoch-{epoch}-step-{step}", bundle)
            log.error("step skipped", reason=result.verdict.reason, bundle=str(path))
        figures = {name: _or_null(value) for name, value in figures.items()}
        with self._database.transaction() as connection:
            repository.record_step(connection, epoch, step, now, figures)
        TRAINING_STEPS.inc()
        for name, value in figures.items():
            if isinstance(value, int | float):
                TRAINING_FIGURE.labels(name).set(value)
        log.info("step", epoch=epoch, step=step, **figures)


def _or_null(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
