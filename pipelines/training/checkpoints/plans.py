"""Plans: what each step since a checkpoint depended on and decided, and the one way to take such steps again.

    checkpoint ──▶ learner ──plan, end, plan, end, ...──▶ weights, moments and trackers as they were, bit for bit

A restart goes this way on the journal of its checkpoint, and `millrace training replay` on that of a bundle; a rollback goes to the
checkpoint of a version, which no plan follows. What each step decided is read from its record and not decided again, so every sample is
trained once even where the numbers differ: on another device, with another version of torch, after a changed setting. That is seen
in the digest, and named. Equal bits are promised on the same machine, device and number of processes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import StepsBroken, WeightsRefused
from pipelines.training.known.batches import Batch
from pipelines.training.learning.device import set_generators
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.samples.trial import STEP_ERROR, Plan
from pipelines.training.state import Fate, TrainerState
from runtime.metrics import TRAINING_REPLAYS
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipelines.training.known.known_samples import KnownSamples
    from pipelines.training.learning.figures import StepResult
    from pipelines.training.learning.learner import Learner
    from pipelines.training.learning.masters import Checkpoint

log = structlog.get_logger()


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """How a planned step ended, and every fate that was decided."""

    step: int
    """Steps that were taken or skipped so far."""
    learned: list[str]
    """Keys of the rows that were learned in the end: without culprits, perhaps half of them. Empty: the weights did not change."""
    fates: dict[str, Fate]
    max_tokens: int
    digest: str
    """See `digest_of`."""
    seconds: float
    guard: GuardHistory | None = None
    """The guard's history after the step, if repeating the step would not give it."""


class StateKept(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The trainer's state after the steps before this record, without what those steps give again."""

    epoch: int
    mark: int
    """Of the samples, see `known_samples`."""
    state: bytes
    """JSON of a `TrainerState`."""

    @classmethod
    def of(cls, state: TrainerState, mark: int) -> StateKept:
        """The state as it is now."""
        lean = msgspec.structs.replace(state, tracker={}, comparable_norms=[], guard_signs={}, random_state={})
        return cls(epoch=state.epoch, mark=mark, state=lean.to_json())


JournalRecord = Plan | Ending | StateKept


class Journaled(NamedTuple):
    """The records since a checkpoint. They end after `number` records of the journal of `epoch`; 0: at the checkpoint itself."""

    records: Sequence[JournalRecord]
    epoch: int = 0
    number: int = 0

    @property
    def unfinished(self) -> Plan | None:
        """A step that had begun: it is taken first, as it was planned."""
        last = self.records[-1] if self.records else None
        return last if isinstance(last, Plan) else None


class Restored(NamedTuple):
    """Where the trainer continues from. The learner has the weights."""

    state: TrainerState
    version: int | None
    """The checkpoint's, whose weights the learner has, or had before it took steps again."""
    reported_ordinal: int
    """The version before the one that samples in no version yet were last reported with."""
    unfinished: Plan | None = None
    """A step to take first."""
    num_steps: int = 0
    """Steps that were taken again."""
    different: Sequence[int] = ()
    """Those that did not give the recorded result."""
    taught: Sequence[Batch] = ()
    """What was learned after the state was saved."""


def take_again(
    learner: Learner, checkpoint: Checkpoint, found: Journaled, samples: Callable[[int], KnownSamples]
) -> Restored:
    """Give the learner the checkpoint, and take every finished step since it: those of `found`.

    `learner` holds any weights of the same policy. `samples` gives what is known of samples as of a mark.

    Raises WeightsRefused: the checkpoint is of another policy, a record cannot be read, or the samples of its mark are
    lost.
    """
    learner.restore(checkpoint)
    state = newest_state(checkpoint.state, found.records, samples)
    newest = max((at for at, record in enumerate(found.records) if isinstance(record, StateKept)), default=-1)
    plan: Plan | None = None
    num_steps, different, taught = 0, [], []
    for at, record in enumerate(found.records):
        if isinstance(record, Plan):
            plan = record
        elif isinstance(record, Ending) and plan is not None:
            num_steps += bool(record.learned)
            broken = _repeat(learner, plan, record)
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
    if found.records:
        log.info("steps of the journal taken again", num_steps=num_steps, different=different)
    return Restored(state, checkpoint.version, state.ordinal, found.unfinished, num_steps, different, taught)


def prepare(learner: Learner, plan: Plan, max_tokens: int) -> None:
    """Give the learner what a plan fixes besides the batch."""
    learner.budget.current = min(max_tokens, learner.budget.most)
    if plan.random_state:
        set_generators(plan.random_state, learner.trainee.device)


def digest_of(result: StepResult) -> str:
    """A digest of a step's figures. It differs if the weights before, or the gradient, differ in any bit that matters."""
    figures: list[Any] = [result.metrics["gradient_norm"], result.samples, sorted(result.pulls.items())]
    return blake3(msgspec.msgpack.encode(figures)).hexdigest(16)


def newest_state(
    state: TrainerState, records: Sequence[JournalRecord], samples: Callable[[int], KnownSamples]
) -> TrainerState:
    """The newest state that the records hold, without steps after it; else `state`. Raises WeightsRefused: it is lost."""
    kept = next((record for record in reversed(records) if isinstance(record, StateKept)), None)
    if kept is None:
        return state
    try:
        state = msgspec.json.decode(kept.state, type=TrainerState)
    except msgspec.MsgspecError as error:
        raise WeightsRefused("unreadable", f"the journal's newest state cannot be read: {error}") from error
    state.use(samples(kept.mark))
    return state


def _repeat(learner: Learner, plan: Plan, ending: Ending) -> str:
    """Take a finished step again over the rows that it ended with; returns how the result differs, or empty."""
    digest = ""
    if ending.learned:
        try:
            prepare(learner, plan, ending.max_tokens)
            rows = plan.batch.only(set(ending.learned))
            weights = rows.weights(plan.weights)
            digest = digest_of(learner.step(rows.samples, weights, {}, rows.lessons, text=rows.text, is_decided=True))
        except StepsBroken:
            raise
        except Exception as error:  # noqa: BLE001 whatever makes a step fail here must not end every start
            log.error("a step of the journal fails now: its samples are quarantined", step=plan.step, reason=str(error))  # noqa: TRY400 as above
            return STEP_ERROR
    if ending.guard is not None:
        learner.guard_history = ending.guard
    if digest == ending.digest or not ending.learned:
        return ""
    log.error(
        "a step of the journal gives another result here: another device, version of torch or setting",
        step=plan.step,
        epoch=plan.epoch,
        recorded=ending.digest,
        found=digest,
    )
    return "different"


def _decide(state: TrainerState, ending: Ending) -> None:
    state.fates.update(ending.fates)
    state.note(*ending.fates)
    state.step = ending.step
    state.unpublished_samples += len(ending.learned)


def _give_up(state: TrainerState, ending: Ending) -> None:
    """The step fails here, so the weights do not hold its samples, whatever was told."""
    for key in ending.learned:
        fate = ending.fates[key]
        if fate.state == "trained" and not fate.corrections and state.fates.get(key) == fate:
            state.fates[key] = Fate(fate.revision, "quarantined", STEP_ERROR)
            state.note(key)
