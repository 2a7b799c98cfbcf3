"""A warm start: epochs over text from the log, then a version as the trainer cuts any, before the first user's sample.

In: text samples, and some more that are never trained. Out: version 1 with its checkpoint, stored and offered; what it was learned from is
`trained(text)` in the ledger. Waits for: the device, then the disk and the weight store.

Weights change in memory alone until training has ended: a process that is killed before leaves the home as it was. One that is killed later leaves a
checkpoint, from which the next trainer cuts the version.
"""

from __future__ import annotations

import math
import random
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from contracts.errors import Conflict, Unavailable
from pipelines.training.__main__ import take_lease
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.process import background_threads, make_trainer
from pipelines.training.state import BASE_VERSION, Fate
from pipelines.training.text.samples import TextBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from pipelines.training.learning.learner import Learner
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.text.samples import TextSample
    from pipelines.training.worker import Trainer
    from runtime.settings import Settings

MOST_EPOCHS = 50
LEAST_GAIN = 0.01
"""Share by which an epoch must lower the held-out loss for another one to follow."""
LEAST_FALL = 0.005
"""Nats by which it must. Where every prompt has one right answer, the loss keeps falling by a share."""
SEED = 1
_SAY_SECONDS = 10.0
REASON = "text"
"""Of `trained`: what was learned is text, without a ratio."""


class WarmStart(NamedTuple):
    """What was learned. Losses are of held-out text, each kind's mean added up; NaN if there is none."""

    version: int
    num_steps: int
    num_samples: int
    num_epochs: int
    loss_before: float
    loss_after: float


class Texts(NamedTuple):
    """What is learned, and what is only measured: training ends once its loss does not fall any more."""

    trained: Sequence[TextSample]
    held_out: Sequence[TextSample]


def learn_text(
    settings: Settings, training: TrainingSettings, texts: Texts, keep: Callable[[], None], *, records_fates: bool
) -> WarmStart:
    """Train version 0 of a home on text, and publish it as the next version. `training`: how to learn; else as `teach`.

    Raises LeaseHeld: a trainer runs. Conflict: the home was trained before, or training does not help. Unavailable: a server is away.
    """
    database = settings.database()
    lease = take_lease(settings, database, training.lease_seconds)
    with lease.kept_alive(), background_threads() as background:
        # No user's answer was drawn from the policy as it is now, so no step is too long for its ratio. Pairs and thumbs need the base.
        more = {"step_bound": math.inf, "mismatch_samples": max(training.mismatch_samples, 1)}
        how = training.model_copy(update=more)
        trainer = make_trainer(settings, database, lease, threading.Event(), background, training=how)
        if trainer is None:
            raise Unavailable("a server is away")
        return teach(trainer, texts, keep, records_fates=records_fates)


def teach(trainer: Trainer, texts: Texts, keep: Callable[[], None] = lambda: None, *, records_fates: bool) -> WarmStart:
    """Train, then publish.

    Args:
        trainer: has restored its state, and begun no epoch.
        texts: of at least one sample to train.
        keep: called once, before anything is written: it writes the settings that the result needs.
        records_fates: the samples' answers are in this home's ledger.

    Raises Conflict, Unavailable: as `learn_text`.
    """
    state, learner = trainer.state, trainer.learner
    if state.version != BASE_VERSION or state.step:
        raise Conflict(f"{trainer.around.settings.home} was trained before: a warm start needs a new home")
    before = loss_of(learner, texts.held_out)
    say(0, before)
    best = epochs(learner, texts, before)
    if not best.num_steps:
        raise Conflict(
            "the first epoch did not lower the held-out loss, or every step was a spike: nothing was written; try a lower [training] learning_rate"
        )
    learned = [sample for sample in texts.trained if sample.key in best.keys]
    if records_fates:
        note_fates(trainer, learned)
    state.step, state.unpublished_samples = best.num_steps, len(learned)
    keep()
    try:
        # These weights are no version yet, so a trainer that finds their checkpoint cuts one.
        trainer.restored = trainer.restored._replace(version=None)
        trainer.begin()
        trainer.publish()
    finally:
        trainer.close()
    return WarmStart(state.version, best.num_steps, len(learned), best.num_epochs, before, best.loss)


class TrainedEpochs(NamedTuple):
    """Where training ended. `loss`: of the held-out text under the weights that are left. `keys`: of the samples that they hold."""

    num_epochs: int
    num_steps: int
    loss: float
    keys: frozenset[str] = frozenset()


def epochs(learner: Learner, texts: Texts, before: float) -> TrainedEpochs:
    """Train until the loss of the held-out text hardly falls; if it rises, go back to the epoch before. Without such text, one epoch."""
    order, found, kept = list(texts.trained), TrainedEpochs(0, 0, before), _weights_of(learner)
    held_out = texts.held_out
    shuffled, size = random.Random(SEED), learner.settings.batch_size  # noqa: S311 no secret
    for number in range(1, (MOST_EPOCHS if held_out else 1) + 1):
        shuffled.shuffle(order)
        num_steps, keys = found.num_steps, set(found.keys)
        said_at = time.monotonic()
        for start in range(0, len(order), size):
            part = order[start : start + size]
            if not learner.step([], [], {}, text=TextBatch.of(part)).skipped:
                num_steps += 1
                keys |= {sample.key for sample in part}
            if time.monotonic() > said_at + _SAY_SECONDS:
                said_at = time.monotonic()
                print(f"epoch {number}: {start + size:,} of {len(order):,} samples", flush=True)  # noqa: T201 progress
        loss = loss_of(learner, held_out)
        say(number, loss)
        if held_out and not loss < found.loss:
            break
        is_last = bool(held_out) and loss > found.loss - max(LEAST_GAIN * found.loss, LEAST_FALL)
        found, kept = TrainedEpochs(number, num_steps, loss, frozenset(keys)), _weights_of(learner)
        if is_last:
            break
    # What was ordinary for text, and where it was going, says nothing about rewards.
    learner.trainee.put((kept, {}))
    learner.guard_history = GuardHistory([], {})
    return found


def loss_of(learner: Learner, samples: Sequence[TextSample]) -> float:
    """The loss of text under today's weights: the sum of the means of its kinds. Changes nothing."""
    counts, total = TextBatch.of(samples).counts, 0.0
    for start in range(0, len(samples), learner.settings.batch_size):
        part = samples[start : start + learner.settings.batch_size]
        figures = learner.step([], [], {}, text=TextBatch(part, counts), dry_run=True).metrics
        total += sum(figures[f"text/{kind}_loss"] or 0.0 for kind in {sample.kind for sample in part})
    return total if samples else math.nan


def note_fates(trainer: Trainer, samples: Sequence[TextSample]) -> None:
    """Decide the samples: no step takes them again, and the ledger says which version holds them.

    A trainer may have named them before: text is learned of answers that no step can take.
    """
    fates = trainer.state.fates
    for sample in samples:
        before = fates.get(sample.key)
        if before is None or before.state != "trained":
            newest = max(sample.revision, before.newest if before else 0)
            fates[sample.key] = Fate(newest, "trained", REASON)
            trainer.state.note(sample.key)


def say(epoch: int, loss: float) -> None:
    """A line for whoever waits."""
    known = "nothing held out" if math.isnan(loss) else f"held-out loss {loss:.4f}"
    print(f"epoch {epoch}: {known}" if epoch else f"before: {known}", flush=True)  # noqa: T201 the command's progress


def _weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    weights, _ = learner.trainee.masters()
    return {name: weight.clone() for name, weight in weights.items()}
