"""Save the trainer's state without its weights: positions, fates and everything else that the next outcome depends on.

In: the state. Out: rows of samples, and a record of the journal. Waits for: the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pipelines.training.checkpoints.journal_records import StateKept
from pipelines.training.samples.known_samples import SampleMapping
from pipelines.training.versions.lineage import Lineage

if TYPE_CHECKING:
    from contracts.faults import FaultPoint
    from pipelines.training.checkpoints.fence import CheckpointFence
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.samples.known_samples import SampleFile
    from pipelines.training.state import TrainerState


def keep_state(
    state: TrainerState, journal: Journal, samples: SampleFile, fence: CheckpointFence | None, fault: FaultPoint
) -> None:
    """Make the state durable beside weights that the journal leads to; not while a checkpoint is being written.

    Raises:
        StaleWrite, LeaseLost: another trainer has replaced this one.
        Unavailable: the disk is full; what was durable still is.
    """
    fault("checkpoint: before samples")
    changes = state.samples.hand_over()
    try:
        mark = changes.commit(samples, state.epoch)
    except BaseException:
        state.samples.not_written()
        raise
    state.samples.written(samples, mark)
    # Replayed steps give these again.
    lean = msgspec.structs.replace(state, tracker={}, comparable_norms=[], guard_signs={}, random_state={})
    text = msgspec.json.encode(lean, enc_hook=without_samples)
    journal.keep(StateKept(epoch=state.epoch, mark=mark, state=text))
    if fence is not None:
        fence.check()


def without_samples(value: Any) -> dict[str, Any] | list[int]:
    """What is known of single samples is in a file of its own; a lineage is few numbers."""
    if isinstance(value, SampleMapping):
        return {}
    if isinstance(value, Lineage):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")
