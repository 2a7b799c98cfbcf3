"""Publish the trainer's decisions to the log: after they are durable, once, in pieces.

    decided ──▶ unreported, with a number ──▶ checkpoint ──▶ log ──▶ reported, here and in the next checkpoint

`unreported` in the state is the queue: decisions fill it, `report` drains it as far as the last checkpoint reaches. Pieces that the log
took are not sent again. After a crash, everything that the checkpoint holds as unreported is reported again, under the next epoch and
with the same numbers: a reader that keeps outcomes up to a number keeps both or neither.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from contracts.records import Also, Outcome
from contracts.topics import OUTCOMES, route_of_key
from pipelines.training.state import CORRECTED
from runtime.log.outbox import message
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from contracts.event_log import EventLog
    from contracts.faults import FaultPoint
    from pipelines.training.state import EpochBegin, TrainerState

TOGETHER = 20
"""Most samples in one record: workers take 500 records at a time and must finish them quickly."""
PIECE = 10_000
"""Samples per append."""
REPORTED_SINGLY = 500
"""Above this number, decisions share records: a rollback may decide half a million samples."""

log = structlog.get_logger()


class DecisionMark(NamedTuple):
    """Decisions up to a number, and the epochs that had begun."""

    sequence: int = 0
    epochs: Sequence[EpochBegin] = ()


class OutcomeReporter:
    """One per trainer, in its thread."""

    def __init__(self, state: TrainerState, event_log: EventLog, clock: Callable[[], float], fault: FaultPoint) -> None:
        """`clock`: UTC epoch seconds."""
        self._state, self._event_log = state, event_log
        self._clock, self._fault = clock, fault
        self._durable, self._is_done = DecisionMark(), True

    def mark(self) -> DecisionMark:
        """What a checkpoint holds that is taken now."""
        return DecisionMark(self._state.sequence, tuple(self._state.unreported_epochs))

    def saved(self, mark: DecisionMark) -> None:
        """A checkpoint is durable: it holds every decision up to the mark."""
        self._durable, self._is_done = mark, False

    def report(self) -> None:
        """Publish what is durable and not published yet. Raises Unavailable: the next call sends the pieces that remain."""
        if self._is_done:
            return
        state, (last, epochs) = self._state, self._durable
        if epochs:
            self._append([_epoch_started(began, self._clock()) for began in epochs])
            reported = {began.epoch for began in epochs}
            state.unreported_epochs = [began for began in state.unreported_epochs if began.epoch not in reported]
            self._durable = DecisionMark(last)
        due = [
            key for number, key in sorted((number, key) for key, number in state.unreported.items()) if number <= last
        ]
        for start in range(0, len(due), PIECE):
            keys, now = due[start : start + PIECE], self._clock()
            outcomes = [outcome for key in keys for outcome in outcomes_of(key, state, now)]
            is_many = len(due) > REPORTED_SINGLY
            self._append(bundled(outcomes, self._event_log.num_partitions) if is_many else outcomes)
            for key in keys:
                del state.unreported[key]
            if len(due) > PIECE:
                step_done()
                log.info("telling", told=min(start + PIECE, len(due)), of=len(due), epoch=state.epoch)
        self._is_done = True

    def _append(self, outcomes: list[Outcome]) -> None:
        self._event_log.append([message(OUTCOMES, outcome.key, outcome) for outcome in outcomes])
        self._fault("training: outcomes told")


def outcomes_of(key: str, state: TrainerState, at: float) -> Iterator[Outcome]:
    """The outcomes of one key: its fate, or pending if a rollback took it out; and that of the newest later revision."""
    fate, sequence = state.fates.get(key), state.unreported[key]
    outcome = partial(Outcome, key=key, epoch=state.epoch, writer="training", at=at, sequence=sequence)
    if fate is None:
        undone = state.undone.get(key)
        yield outcome(revision=max(undone.revision, 0) if undone else 0, state="pending", reason="rollback")
        return
    version = _or_next(fate.version, state) if fate.state == "trained" else None
    yield outcome(revision=fate.revision, state=fate.state, reason=fate.reason, version=version)
    if fate.late is not None:
        version = _or_next(fate.corrections[-1].version, state) if fate.late_reason == CORRECTED else None
        yield outcome(revision=fate.late, state="late", reason=fate.late_reason, version=version)


def bundled(outcomes: Iterable[Outcome], num_partitions: int) -> list[Outcome]:
    """The same in fewer records: outcomes of one partition that differ only in their sample share a record.

    The first key of a record decides its partition, so all keys of a record must belong to that partition.
    """
    alike: dict[tuple[int, str, str, int | None], list[Outcome]] = defaultdict(list)
    for item in outcomes:
        alike[route_of_key(item.key) % num_partitions, item.state, item.reason, item.version].append(item)
    found = []
    for group in alike.values():
        for start in range(0, len(group), TOGETHER):
            first, *others = group[start : start + TOGETHER]
            also = tuple(Also(item.key, item.revision, item.sequence) for item in others)
            found.append(msgspec.structs.replace(first, also=also))
    return found


def _or_next(version: int | None, state: TrainerState) -> int:
    return state.ordinal + 1 if version is None else version


def _epoch_started(began: EpochBegin, at: float) -> Outcome:
    """The control outcome: outcomes of earlier epochs that this epoch does not keep are void."""
    started = Outcome(key="", revision=0, epoch=began.epoch, state="epoch_started", writer="training", at=at)
    return msgspec.structs.replace(started, previous=began.previous, kept_sequence=began.kept_sequence)
