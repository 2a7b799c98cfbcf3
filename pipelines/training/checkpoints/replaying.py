"""Take the steps of a journal again: the weights, moments and trackers are then what they were before the crash, bit for bit.

In: a learner and a state as of a checkpoint, and the records since. Out: both as of the last record, and the step that had begun and
not ended, if any. Waits for: the device.

What each step decided is read from its record and not decided again, so every sample is trained once even where the numbers
differ: on another device, with another version of torch, after a changed setting. That is seen in the digest, and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from contracts.errors import StepsBroken, WeightsRefused
from pipelines.training.checkpoints.journal import Journaled, Place
from pipelines.training.checkpoints.journal_records import Ending, Plan, StateKept, digest_of
from pipelines.training.samples.culprits import STEP_ERROR
from pipelines.training.state import Fate, TrainerState
from runtime.metrics import TRAINING_REPLAYS
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipelines.training.checkpoints.journal_records import JournalRecord
    from pipelines.training.learning.figures import StepResult
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.batches import Batch
    from pipelines.training.samples.known_samples import KnownSamples

log = structlog.get_logger()


class ReplayedSteps(NamedTuple):
    """What a replay came to."""

    state: TrainerState
    records: Sequence[JournalRecord]
    end: Place
    """The journal goes on after this."""
    unfinished: Plan | None
    """A step that had begun: it is taken first, as it was planned."""
    num_steps: int
    different: Sequence[int]
    """Steps that did not give the recorded result."""
    taught: Sequence[Batch]
    """What was learned after the state was saved."""


def replay(
    learner: Learner, state: TrainerState, found: Journaled, samples: Callable[[int], KnownSamples]
) -> ReplayedSteps:
    """Take every finished step again.

    Args:
        learner: as of the checkpoint.
        state: as of the checkpoint.
        found: the records since.
        samples: what is known of samples as of a mark.

    Raises:
        WeightsRefused: a record cannot be read, or the samples of its mark are lost.
    """
    records, end, unfinished = found.records, found.end, None
    if records and isinstance(records[-1], Plan):
        unfinished = records[-1]
        records, end = records[:-1], Place(end.epoch, end.number - 1)
    newest = max((at for at, record in enumerate(records) if isinstance(record, StateKept)), default=-1)
    state = newest_state(state, records, samples)
    plan: Plan | None = None
    num_steps, different, taught = 0, [], []
    for at, record in enumerate(records):
        if isinstance(record, Plan):
            plan = record
        elif isinstance(record, Ending) and plan is not None:
            num_steps += bool(record.learned)
            broken = repeat(learner, plan, record)
            if broken:
                different.append(plan.step)
            if at > newest:
                _decide(state, record)
                taught.append(plan.batch.only(set(record.learned)))
            if broken == STEP_ERROR:
                _give_up(state, record)
            plan = None
            step_done()
    TRAINING_REPLAYS.labels("same").inc(num_steps - len(different))
    TRAINING_REPLAYS.labels("different").inc(len(different))
    if records or unfinished:
        log.info("steps of the journal taken again", num_steps=num_steps, different=different)
    return ReplayedSteps(state, records, end, unfinished, num_steps, different, taught)


def repeat(learner: Learner, plan: Plan, ending: Ending) -> str:
    """Take a finished step again; returns how the result differs, or empty."""
    if not ending.learned:
        if ending.guard is not None:
            learner.set_guard_history(ending.guard)
        return ""
    try:
        digest = digest_of(take(learner, plan, ending))
    except StepsBroken:
        raise
    except Exception as error:  # noqa: BLE001 whatever makes a step fail here must not end every start
        log.error("a step of the journal fails now: its samples are quarantined", step=plan.step, reason=str(error))  # noqa: TRY400 as above
        return STEP_ERROR
    if ending.guard is not None:
        learner.set_guard_history(ending.guard)
    if digest == ending.digest:
        return ""
    log.error(
        "a step of the journal gives another result here: another device, version of torch or setting",
        step=plan.step,
        epoch=plan.epoch,
        recorded=ending.digest,
        found=digest,
    )
    return "different"


def take(learner: Learner, plan: Plan, ending: Ending) -> StepResult:
    """The step of a plan over the rows that it ended with, with the decision that was taken then."""
    prepare(learner, plan, ending.max_tokens)
    rows = plan.batch.only(set(ending.learned))
    return learner.step(rows.samples, rows.weights(plan.weights), {}, rows.lessons, is_decided=True)


def prepare(learner: Learner, plan: Plan, max_tokens: int) -> None:
    """Give the learner what a plan fixes besides the batch."""
    learner.budget.current = min(max_tokens, learner.budget.most)
    if plan.random_state:
        learner.set_random_state(plan.random_state)


def _decide(state: TrainerState, ending: Ending) -> None:
    state.fates.update(ending.fates)
    state.note_all(ending.fates)
    state.step = ending.step
    state.unpublished_samples += len(ending.learned)


def _give_up(state: TrainerState, ending: Ending) -> None:
    """The step fails here, so the weights do not hold its samples, whatever was told."""
    for key in ending.learned:
        fate = ending.fates[key]
        if fate.state == "trained" and not fate.corrections and state.fates.get(key) == fate:
            state.fates[key] = Fate(fate.revision, "quarantined", STEP_ERROR)
            state.note(key)


def newest_state(
    state: TrainerState, records: Sequence[JournalRecord], samples: Callable[[int], KnownSamples]
) -> TrainerState:
    """The newest state that the records hold; without any, `state`. Steps after it are not in it.

    Raises:
        WeightsRefused: it cannot be read, or the samples of its mark are lost.
    """
    held = [record for record in records if isinstance(record, StateKept)]
    if not held:
        return state
    try:
        state = msgspec.json.decode(held[-1].state, type=TrainerState)
    except msgspec.MsgspecError as error:
        raise WeightsRefused("unreadable", f"the journal's newest state cannot be read: {error}") from error
    state.use(samples(held[-1].mark))
    return state
