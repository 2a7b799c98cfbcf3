"""A step that costs a broken sample, and nobody else.

In: a batch. Out: the step's result without those who break it, and who they are. Waits: for the device, and for the disk
before each step.

    an exception, or a loss that is no number    the batch is halved until the culprits are alone; the others are learned
    a spike of the gradient                      if halving finds it in one half only: the same; else the step is skipped
    the process dies                             see `attempts`
    even the canary fails                        the device or the installation is broken: `StepsBroken`, nobody is blamed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts.errors import MillraceError, StepsBroken
from pipelines.training.batch import num_tokens
from pipelines.training.children import survives
from pipelines.training.culprits import STEP_ERROR, Failure, canary, find_culprits
from pipelines.training.guard import SPIKE
from pipelines.training.lessons import Batch, Lesson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipelines.training.attempts import Attempts
    from pipelines.training.learner import Learner, StepResult
    from weights.tensors import Tensors

MOST_CULPRITS = 20
"""So many culprits and not one innocent, batch after batch: rather the trainer than the samples."""

CAREFUL_BATCHES = 50
"""After a hard death so many batches are tried in a copy of the process first: the next of its kind ends only that."""

log = structlog.get_logger()


class Tried(NamedTuple):
    """What became of a batch. `learned` is the part that `result` is about; what is in neither is tried another time."""

    learned: Batch
    result: StepResult | None
    culprits: Sequence[tuple[Batch, Failure]]


class Trial:
    """One per trainer, in its thread."""

    def __init__(
        self, learner: Learner, attempts: Attempts, policy: str, held: Callable[[], Mapping[int, Tensors]]
    ) -> None:
        """`held`: published bits at hand, to measure the mismatch on."""
        self._learner = learner
        self._attempts = attempts
        self._held = held
        self._canary = Batch([canary(policy)], [])
        self._num_in_a_row = 0
        self._num_careful = CAREFUL_BATCHES if attempts.has_died else 0
        learner.budget.reduce(attempts.num_deaths)

    def step(self, batch: Batch, weights: Mapping[str, float], *, epoch: int, step: int) -> Tried:
        """Learn from what can be learned from.

        Args:
            batch: not empty.
            weights: by key of each sample, staleness included.
            epoch: names the attempt.
            step: names it too.

        Raises:
            StepsBroken: steps fail whoever is in them. The attempt stays on the disk, as if the process had died.
            MillraceError: what no sample is to blame for; nothing was changed.
        """
        culprits: list[tuple[Batch, Failure]] = []
        keys = batch.keys
        batch = self._without_deadly(batch, weights, culprits, epoch, step)
        result: StepResult | None = None
        try:
            while batch.everything:
                self._attempts.begin(epoch, step, batch.keys)
                tried = self._take(batch, weights)
                if not isinstance(tried, Failure) and tried.verdict.accepted:
                    result = tried
                    break
                found = self._blame(batch, weights, tried)
                culprits += found
                if isinstance(tried, Failure):
                    batch = batch.without(found) if found else batch.half()
                elif found:
                    batch = batch.without(found)
                else:
                    result = tried
                    break
        except StepsBroken:
            raise
        except BaseException:
            self._attempts.end()
            raise
        self._attempts.end()
        self._count(len(culprits), is_innocent=bool(batch.everything), num_tried=len(keys))
        return Tried(batch, result, culprits)

    def _without_deadly(
        self, batch: Batch, weights: Mapping[str, float], culprits: list[tuple[Batch, Failure]], epoch: int, step: int
    ) -> Batch:
        """Without those that end the process: known ones, and those who turn out to be when they are tried."""
        parts = batch.parts()
        suspects = set(self._attempts.suspects_among(batch.keys))
        if suspects:
            self._see_canary()
        elif self._num_careful > 0 and self._learner.is_on_cpu:
            self._num_careful -= 1
            if survives(lambda: self._fails(batch, weights)) is False:
                suspects = set(batch.keys)
        for part in parts:
            (key,) = part.keys
            if self._attempts.is_condemned(key) or (key in suspects and self._is_deadly(part, weights, epoch, step)):
                culprits.append((part, Failure(STEP_ERROR, "the process died of it")))
        return batch.without(culprits)

    def _is_deadly(self, part: Batch, weights: Mapping[str, float], epoch: int, step: int) -> bool:
        """Try a suspect alone: in a copy of the process where that can be, else named before it is tried."""
        (key,) = part.keys
        lives = survives(lambda: self._fails(part, weights)) if self._learner.is_on_cpu else None
        if lives is None:
            self._attempts.begin(epoch, step, [key])
            self._attempts.try_alone(key)
            try:
                self._fails(part, weights)
            finally:
                self._attempts.end()
        if lives is False:
            self._attempts.condemn(key)
            return True
        self._attempts.survived(key)
        return False

    def _take(self, batch: Batch, weights: Mapping[str, float]) -> StepResult | Failure:
        try:
            return self._learner.step(batch.samples, batch.weights(weights), self._held(), batch.lessons)
        except MillraceError:
            raise
        except Exception as error:  # noqa: BLE001 whatever a sample can provoke: it is to cost that sample only
            log.error("step failed", error=str(error), num_samples=len(batch.keys))  # noqa: TRY400 bundles hold the traceback
            return Failure.of(error)

    def _fails(self, batch: Batch, weights: Mapping[str, float]) -> Failure | None:
        """Try without any effect."""
        try:
            verdict = self._learner.rehearse(batch.samples, batch.weights(weights), self._held(), batch.lessons)
        except MillraceError:
            raise
        except Exception as error:  # noqa: BLE001 as above
            return Failure.of(error)
        return None if verdict.accepted else Failure(verdict.reason)

    def _blame(
        self, batch: Batch, weights: Mapping[str, float], tried: StepResult | Failure
    ) -> Sequence[tuple[Batch, Failure]]:
        """Who made the step fail; nobody if it is the batch as a whole.

        Raises:
            StepsBroken: even the canary fails.
        """
        failure = tried if isinstance(tried, Failure) else Failure(tried.verdict.reason)
        budget = self._learner.budget.current

        def fails(parts: Sequence[Batch]) -> Failure | None:
            return self._fails(Batch.joined(parts), weights)

        if not isinstance(tried, Failure) and failure.reason == SPIKE:
            return self._blame_for_spike(_as_pulled(batch, tried), fails)
        self._see_canary()
        found = find_culprits(batch.parts(), failure, fails)
        if found:
            # What was too large by itself said nothing about what the others may have.
            self._learner.budget.allow(budget)
        return found

    def _blame_for_spike(
        self, parts: Sequence[Batch], fails: Callable[[Sequence[Batch]], Failure | None]
    ) -> Sequence[tuple[Batch, Failure]]:
        """The one that has it; nobody if none or more than one has: it is the policy then, or the task."""
        middle = len(parts) // 2
        halves = [half for half in (parts[:middle], parts[middle:]) if half]
        failing = [(half, failure) for half in halves if (failure := fails(half)) is not None]
        if len(parts) == 1 or len(failing) != 1:
            return []
        found = find_culprits(*failing[0], fails)
        return found if len(found) == 1 else []

    def _see_canary(self) -> None:
        failure = self._fails(self._canary, dict.fromkeys(self._canary.keys, 1.0))
        if failure is not None and failure.reason != SPIKE:
            raise StepsBroken(
                f"a training step fails whoever is in it: {failure.error or failure.reason}; look at the device, at its "
                "memory and at the newest checkpoint",
                traceback=failure.traceback,
            )

    def _count(self, num_culprits: int, *, is_innocent: bool, num_tried: int) -> None:
        """Stop rather than quarantine everything that comes.

        Raises:
            StepsBroken: two batches in a row, of MOST_CULPRITS together at least, had not one innocent.
        """
        if is_innocent:
            self._num_in_a_row = 0
        elif num_culprits:
            before, self._num_in_a_row = self._num_in_a_row, self._num_in_a_row + num_culprits
            if before and self._num_in_a_row > MOST_CULPRITS:
                raise StepsBroken(
                    f"{self._num_in_a_row} samples in a row break their step, and not one of the last {num_tried} does "
                    "not: look at the bundles; the earlier ones are quarantined"
                )


def _as_pulled(batch: Batch, result: StepResult) -> list[Batch]:
    """Each sample with what it pulled in the whole batch: of a part of it, mean and deviation would be others."""
    count = max(num_tokens(batch.samples), 1)
    samples = [
        Batch([], [Lesson(item, row["advantage"], row["weight"] / count)])
        for item, row in zip(batch.samples, result.samples, strict=False)
    ]
    return [*samples, *(Batch([], [lesson]) for lesson in batch.lessons)]
