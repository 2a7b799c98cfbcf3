"""One step in which a broken sample costs only itself.

In: a batch. Out: the step's result without the samples that break it, and those samples. Waits for: the device, and the disk
before each step.

    an exception, or a loss of NaN    the batch is halved until the culprits are alone; the other samples are trained
    a spike (see `guard`)             the same; if no sample is to blame, the step is skipped and all of them wait for the next
    the process dies                  see `attempts`
    even the canary sample fails      the device or the installation is broken: `StepsBroken`, no sample is blamed
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import MillraceError, StepsBroken
from pipelines.training.known.batches import Batch, Lesson
from pipelines.training.learning.guard import SPIKES
from pipelines.training.learning.short_batches import a_row
from pipelines.training.samples.attempts import survives

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.records import Experience
    from pipelines.training.learning.figures import StepResult
    from pipelines.training.learning.learner import Learner
    from pipelines.training.learning.trainee import Published
    from pipelines.training.samples.attempts import Attempts

MOST_CULPRITS = 20
"""With more culprits than this in successive batches, and not one good sample, the trainer is to blame."""
MOST_TRIED = 1_000
"""Remembered of one step: with many culprits among thousands of samples there is no end of halves."""
CAREFUL_BATCHES = 50
"""After a hard death this many batches run in a forked copy first: the next deadly sample ends only the copy."""
STEP_ERROR = "step_error"
DEADLY = "the process died in a step with this sample"
Item = TypeVar("Item")

log = structlog.get_logger()


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """Everything that a step depends on besides weights, moments and trackers."""

    epoch: int
    step: int
    at: float
    """The clock of the step, UTC epoch seconds."""
    batch: Batch
    weights: dict[str, float]
    """Sample key to its weight in the step."""
    max_tokens: int
    """Which rows share a forward pass: sums in another order have other last bits."""
    num_threads: int
    random_state: dict[str, str] = msgspec.field(default_factory=dict)
    """Device to its generator's state in base64; empty: as at the step before."""

    @property
    def digest(self) -> str:
        """A digest of the whole plan."""
        return blake3(msgspec.msgpack.encode(self)).hexdigest(16)


class Failure(NamedTuple):
    """Why a step failed: the reason for the outcome, and the exception for a bundle."""

    reason: str
    error: str = ""
    traceback: str = ""
    """As text: the exception would keep every tensor of its frames alive."""


class Tried(NamedTuple):
    """What a step with these rows would do. `is_whole`: it was to be taken, and not only a part of the batch that was tried."""

    batch: Batch
    result: StepResult | Failure
    is_whole: bool


class TrialResult(NamedTuple):
    """`result` is about `learned`. Samples in neither `learned` nor `culprits` stay in the intake for a later batch."""

    learned: Batch
    result: StepResult | None
    culprits: Sequence[tuple[Batch, Failure]]
    left: Batch
    """What today's policy has left: not learned, and no fault."""
    tried: Sequence[Tried] = ()
    """Everything that the guard looked at on the way, in order. Copies of the process are not in it."""


class Trial:
    """One per trainer, in its thread."""

    def __init__(self, learner: Learner, attempts: Attempts, policy: str, held: Callable[[], Published]) -> None:
        """`held`: published bits in memory, to measure the mismatch on."""
        self._learner, self._attempts, self._held = learner, attempts, held
        self._canary = Batch([canary(policy)], [])
        self._tried: list[Tried] = []
        self._weights: Mapping[str, float] = {}
        """Of the step that is tried now: sample key to weight."""
        self._num_in_a_row = 0
        self._num_careful = CAREFUL_BATCHES if attempts.has_died else 0
        # One death may have any cause, and a smaller budget gives other last bits.
        learner.budget.reduce(max(attempts.known.num_deaths - 1, 0))

    def step(self, plan: Plan) -> TrialResult:
        """Learn from the batch of a plan, which is not empty, without its culprits.

        Raises StepsBroken: steps fail with any sample. The attempt stays on disk, as if the process had died.
        MillraceError: an error that no sample causes; nothing has changed.
        """
        culprits: list[tuple[Batch, Failure]] = []
        keys, left, far = plan.batch.keys, Batch([], []), dict[str, float]()
        self._tried, self._weights = [], {**dict.fromkeys(self._canary.keys, 1.0), **plan.weights}
        batch = self._without_deadly(plan, culprits)
        result: StepResult | None = None
        try:
            while batch.everything:
                self._attempts.begin(plan.epoch, plan.step, batch.keys)
                tried = self._take(batch)
                if not isinstance(tried, Failure):
                    left = Batch.joined([left, batch.only(tried.left)])
                    far |= {key: tried.log_ratios[key] for key in tried.left}
                    batch = batch.only(set(batch.keys).difference(tried.left))
                    if not tried.skipped:
                        result = tried
                        break
                found = self._blame(batch, tried)
                culprits += found
                if found:
                    batch = batch.without(found)
                elif isinstance(tried, Failure) or tried.skipped not in SPIKES:
                    batch = batch.half()
                else:
                    self._learner.accept_sooner()
                    result = tried
                    break
        except StepsBroken:
            raise
        except BaseException:
            self._attempts.end()
            raise
        if result is not None:
            # Those that left in an earlier try are in the figures too.
            result = replace(result, log_ratios={**far, **result.log_ratios})
            if self._attempts.known.num_deaths == 1:
                # The step in which the last process died was taken: it was not the size of the batch either.
                self._attempts.known.num_deaths = 0
        self._attempts.end()
        self._count(len(culprits), is_innocent=bool(batch.everything or left.everything), num_tried=len(keys))
        return TrialResult(batch, result, culprits, left, self._tried)

    def _without_deadly(self, plan: Plan, culprits: list[tuple[Batch, Failure]]) -> Batch:
        """The batch without samples that end the process: those already known, and those found by trying suspects."""
        batch, known = plan.batch, self._attempts.known
        suspects = known.suspects.intersection(batch.keys)
        if suspects and self._learner.trainee.can_fork and survives(lambda: self._fails(batch)):
            # Something else ended the process in this step: an operator, or the system.
            self._attempts.survived(*suspects)
            suspects = set()
            self._num_careful = self._num_careful if known.suspects else 0
        elif suspects:
            self._see_canary()
        elif self._num_careful > 0 and self._learner.trainee.can_fork:
            self._num_careful -= 1
            if survives(lambda: self._fails(batch)) is False:
                suspects = set(batch.keys)
        for part in batch.parts():
            (key,) = part.keys
            if key in known.condemned or (key in suspects and self._is_deadly(part, plan)):
                culprits.append((part, Failure(STEP_ERROR, DEADLY)))
        return batch.without(culprits)

    def _is_deadly(self, part: Batch, plan: Plan) -> bool:
        """Try a suspect alone: in a copy of the process if possible, otherwise recorded on disk before it is tried."""
        (key,) = part.keys
        lives = survives(lambda: self._fails(part)) if self._learner.trainee.can_fork else None
        if lives is None:
            self._attempts.begin(plan.epoch, plan.step, [key], alone=key)
            try:
                self._fails(part)
            finally:
                self._attempts.end()
        if lives is False:
            self._attempts.condemn(key)
            return True
        self._attempts.survived(key)
        return False

    def _take(self, batch: Batch, *, dry_run: bool = False) -> StepResult | Failure:
        held = self._held()
        tried: StepResult | Failure
        try:
            weights = batch.weights(self._weights)
            tried = self._learner.step(batch.samples, weights, held, batch.lessons, text=batch.text, dry_run=dry_run)
        except MillraceError:
            raise
        except Exception as error:  # noqa: BLE001 whatever error a sample provokes must cost that sample only
            if not dry_run:
                log.error("step failed", error=str(error), num_samples=len(batch.keys))  # noqa: TRY400 bundles hold the traceback
            tried = Failure(STEP_ERROR, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
        if len(self._tried) < MOST_TRIED:
            self._tried.append(Tried(batch, tried, not dry_run))
        return tried

    def _fails(self, batch: Batch) -> Failure | None:
        """How a step with this batch would fail; None if it would be taken. Changes nothing."""
        tried = self._take(batch, dry_run=True)
        if isinstance(tried, Failure):
            return tried
        return Failure(tried.skipped) if tried.skipped else None

    def _blame(self, batch: Batch, tried: StepResult | Failure) -> Sequence[tuple[Batch, Failure]]:
        """The samples that made the step fail; none if only the whole batch fails.

        A spike: none either if more than a quarter of the samples are one alone. Then the policy or the task is to
        blame. Raises StepsBroken: even the canary fails.
        """

        def fails(parts: Sequence[Batch]) -> Failure | None:
            return self._fails(Batch.joined(parts))

        if not isinstance(tried, Failure) and tried.skipped in SPIKES:
            parts = _as_pulled(batch, tried)
            most = max(len(parts) // 4, 1)
            found = find_culprits(parts, Failure(tried.skipped), fails, most)
            return found if len(found) <= most else []
        budget = self._learner.budget.current
        self._see_canary()
        found = find_culprits(batch.parts(), tried if isinstance(tried, Failure) else Failure(tried.skipped), fails)
        if found:
            # The budget shrank for samples that are now gone; the others may have the old one again.
            self._learner.budget.allow(budget)
        return found

    def _see_canary(self) -> None:
        failure = self._fails(self._canary)
        if failure is not None and failure.reason not in SPIKES:
            why = f"a training step fails with any sample: {failure.error or failure.reason}"
            raise StepsBroken(
                f"{why}; check the device, its memory and the newest checkpoint", traceback=failure.traceback
            )

    def _count(self, num_culprits: int, *, is_innocent: bool, num_tried: int) -> None:
        """Stop rather than quarantine every sample that arrives: two batches in a row, of more than MOST_CULPRITS, were bad."""
        if is_innocent:
            self._num_in_a_row = 0
        elif num_culprits:
            before, self._num_in_a_row = self._num_in_a_row, self._num_in_a_row + num_culprits
            if before and self._num_in_a_row > MOST_CULPRITS:
                raise StepsBroken(
                    f"{self._num_in_a_row} samples in a row break their step, all of the last {num_tried} among them: read "
                    "the bundles for the reasons; the earlier samples are quarantined"
                )


def _as_pulled(batch: Batch, result: StepResult) -> list[Batch]:
    """Each sample with its pull in the whole batch: in a part of the batch, mean and deviation would be different."""
    rows = {row["key"]: row for row in result.samples}
    samples = [
        Lesson(item, row["advantage"], row["weight"] / row["denominator"])
        if (row := rows.get(item.key))
        else Lesson(item, 0.0, 0.0)
        for item in batch.samples
    ]
    return Batch([], [*samples, *batch.lessons], batch.text).parts()


def find_culprits(
    items: Sequence[Item], failure: Failure, fails: Callable[[Sequence[Item]], Failure | None], most: float = math.inf
) -> list[tuple[Item, Failure]]:
    """The items that fail alone, each with its own failure; none if the items, which failed together, fail only together.

    `failure`: how they failed; for a single item this is the answer. `fails` tries some of them, without side effects; it is called
    about 2 k log2(n) times for k culprits among n. The search ends once there are more than `most`.
    """
    if len(items) == 1:
        return [(items[0], failure)]
    middle = len(items) // 2
    found: list[tuple[Item, Failure]] = []
    for half in (items[:middle], items[middle:]):
        if len(found) <= most and (its := fails(half)) is not None:
            found += find_culprits(half, its, fails, most - len(found))
    return found


def canary(policy: str) -> Experience:
    """A valid sample of two tokens. If a step fails even with it, the samples are not to blame."""
    return a_row([0, 0], policy)
