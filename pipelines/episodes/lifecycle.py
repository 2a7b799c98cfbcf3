"""The life of one sample: its phases, and what each event makes of it. Pure.

    arrive ──▶ NAMED         its outcome is known at once: cancelled, or filtered (rollouts and shadows are scored all the same)
       │
       ╰─────▶ WAITING       for signals, until a decisive one comes or its window closes; then it is sent as an episode
                  │
                  ├──▶ PROVISIONAL   sent, but a slower signal may still come; the close of its window sends the last revision
                  ╰──▶ FINAL         sent, and no window is open; only new evidence sends another revision

    any of these ──▶ SUPERSEDED      a later try of the request replaced the answer
                         ╰──▶ WAITING or NAMED, if a signal shows that the client has the answer after all

Each event is a function that returns the next state and the records to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from contracts.event_log import LogPlace
from contracts.ledger import PENDING
from contracts.records import SIGNALLED, Episode, Experience, Generation, Outcome, Signal, State
from contracts.tasks import Task
from pipelines.episodes import join
from pipelines.episodes.epochs.chain import LedgerEntry

Key = tuple[str, int]
Fate = tuple[State, str]
_SCORED_WITHOUT_SIGNALS = frozenset(("rollout", "shadow"))  # the gate grades its sentinels itself


class Phase(Enum):
    """See the module docstring."""

    NAMED = auto()
    WAITING = auto()
    PROVISIONAL = auto()
    FINAL = auto()
    SUPERSEDED = auto()


class SampleState(msgspec.Struct, frozen=True):
    """A generation and where it stands: one row of the table `generation`. Times: UTC epoch seconds."""

    record: Generation
    partition: int
    joined_at: float
    closes_at: float | None = None
    """When its next episode is due without any further signal; None once its last window has closed."""
    revision: int = 0
    """Of the newest episode or outcome; 0 before the first episode, and for what was named at arrival."""
    ledger: LedgerEntry = LedgerEntry()
    offset: int | None = None
    """Of its record in the topic `generations`; None in rows of earlier releases, whose episodes carry the whole answer."""
    superseded_by: str | None = None
    """Completion id of the later try that replaced it; empty if one had, until a signal showed that it was received."""

    @property
    def key(self) -> Key:
        """Completion id and choice."""
        return self.record.completion_id, self.record.choice


class Facts(msgspec.Struct, frozen=True):
    """What a transition may look at. `task`: None if it was removed; `signals`: those that count, oldest first."""

    task: Task | None
    signals: Sequence[Signal]
    now: float
    session_at: float | None = None
    """When the newest answer of its session ended; None if it does not wait for its session."""
    off_line: bool = False
    """It does not lead to the last answer of its session."""


class Step(msgspec.Struct, frozen=True):
    """The next state of a sample, and the records to send, in order."""

    sample: SampleState
    sends: tuple[Episode | Experience | Outcome, ...] = ()


def phase_of(sample: SampleState, task: Task | None) -> Phase:
    """The phase of a sample, as its row and its task tell it."""
    if sample.superseded_by:
        return Phase.SUPERSEDED
    if sample.closes_at is None:
        return Phase.FINAL if sample.revision else Phase.NAMED
    if sample.revision == 0:
        return Phase.WAITING
    if task is None:
        return Phase.FINAL
    was_superseded = sample.superseded_by is not None
    if was_superseded and sample.closes_at <= join.first_close(sample.record, task, is_decided=False):
        return Phase.WAITING
    # Rows from releases without slower windows keep the end of the task's own window: nothing was provisional then.
    return Phase.PROVISIONAL if sample.closes_at > join.deadline(sample.record, task) else Phase.FINAL


def fate_of(record: Generation, task: Task | None) -> Fate | None:
    """The outcome that a generation has from the start; None if it waits for signals."""
    if record.finish_reason == "cancelled":
        return "cancelled", "client_left"
    if record.finish_reason == "error":
        return "cancelled", "provider_failed" if record.provided else "engine_failed"
    if task is None:
        return "filtered", "unknown_task"
    return None if record.purpose in SIGNALLED else ("filtered", record.purpose)


def arrive(sample: SampleState, facts: Facts, fate: Fate | None) -> Step:
    """A generation was read for the first time. `fate`: its outcome, if it will not wait for signals."""
    if fate is None:
        return _wait(sample, facts)
    named = outcome_of(sample.record, *fate, 1, facts.now)
    if facts.task is None or fate[0] != "filtered" or sample.record.purpose not in _SCORED_WITHOUT_SIGNALS:
        return Step(sample, (named,))
    sent = _send(sample, facts, "window")
    return replace(sent, sends=(named, *sent.sends))


def hear(sample: SampleState, facts: Facts) -> Step:
    """The signals that count have changed: the first episode may be due, and after it each change is a new revision."""
    record, task, phase = sample.record, facts.task, phase_of(sample, facts.task)
    is_closed = phase in {Phase.NAMED, Phase.SUPERSEDED} or sample.ledger.is_undone
    if task is None or record.purpose not in SIGNALLED or join.is_cut(record) or is_closed:
        return Step(sample)
    if phase is not Phase.WAITING:
        return _send(sample, facts, "decisive")
    is_decided = join.is_decisive(task, record, facts.signals)
    if is_decided and join.quarantined_until(record, task) <= facts.now:
        return _send(sample, facts, "decisive")
    closes_at = join.first_close(record, task, is_decided=is_decided)
    if record.purpose == "imported":  # its window is long over, and its signals may be some batches behind it
        closes_at = max(closes_at, sample.joined_at + join.IMPORTED_SECONDS)
    return Step(replace(sample, closes_at=closes_at))


def closes_silent(sample: SampleState, facts: Facts) -> bool:
    """Whether `close` sends it without a signal: its session is not waited for any longer."""
    if facts.signals or facts.task is None or facts.session_at is None:
        return False
    return join.idle_at(sample.record, facts.task, facts.session_at) <= facts.now


def close(sample: SampleState, facts: Facts) -> Step:
    """The time `closes_at` has come: send the first episode, or the last revision after a provisional one."""
    task, phase = facts.task, phase_of(sample, facts.task)
    if sample.ledger.is_undone:
        return Step(replace(sample, closes_at=None))
    if phase is Phase.WAITING:
        is_decided = task is not None and join.is_decisive(task, sample.record, facts.signals)
        if not is_decided and task is not None and facts.session_at is not None:
            idle_at = join.idle_at(sample.record, task, facts.session_at)
            if idle_at > facts.now:
                return Step(replace(sample, closes_at=idle_at))
        return _send(sample, facts, "decisive" if is_decided else "window")
    if phase is Phase.PROVISIONAL:
        return _send(sample, facts, "window")
    closed = replace(sample, closes_at=None)
    if phase is Phase.SUPERSEDED:  # its outcome was in a log that was lost
        return Step(closed, (outcome_of(sample.record, "filtered", join.SUPERSEDED, sample.revision, facts.now),))
    return Step(closed)


def supersede(sample: SampleState, later: str, now: float) -> Step:
    """A later try replaced the answer. `later`: the completion id of that try."""
    if sample.superseded_by:
        return Step(replace(sample, superseded_by=later))
    # What was named at its arrival was named as revision 1.
    aside = _raised(replace(sample, revision=max(1, sample.revision)), None, later)
    named = outcome_of(sample.record, "filtered", join.SUPERSEDED, aside.revision, now)
    return Step(aside, (named, _withdrawal(aside, now)) if sample.revision else (named,))


def resume(sample: SampleState, facts: Facts) -> Step:
    """A signal shows that the client has the answer after all: it waits again, or has the outcome of its arrival again."""
    resumed, fate = _raised(sample, sample.closes_at, ""), fate_of(sample.record, facts.task)
    if fate is None:
        return _wait(resumed, facts)
    return Step(resumed, (outcome_of(sample.record, *fate, resumed.revision, facts.now),))


def outcome_of(record: Generation, state: State, reason: str, revision: int, now: float) -> Outcome:
    """An outcome that episodes writes."""
    return Outcome(
        key=record.key, revision=revision, epoch=0, state=state, reason=reason, writer="episodes", at=now
    )  # fmt: skip


def _wait(sample: SampleState, facts: Facts) -> Step:
    if facts.task is None:
        return Step(sample)
    return hear(replace(sample, closes_at=join.first_close(sample.record, facts.task, is_decided=False)), facts)


def _raised(sample: SampleState, closes_at: float | None, superseded_by: str | None) -> SampleState:
    """The next revision: its state is open again, unless the trainer decided it."""
    ledger = sample.ledger
    if ledger.state != PENDING and ledger.state_writer != "training":
        ledger = ledger._replace(state=PENDING, state_reason="")
    return replace(
        sample, revision=sample.revision + 1, ledger=ledger, closes_at=closes_at, superseded_by=superseded_by
    )


def _send(sample: SampleState, facts: Facts, reason: Literal["decisive", "window"]) -> Step:
    record = sample.record
    # Answers that no person judges are scored by their text alone.
    task, signals = (facts.task, facts.signals) if record.purpose in SIGNALLED else (None, ())
    expected = join.last_close(record, task, signals) if task else None
    closes_at = expected if expected is not None and expected > facts.now else None
    sent = _raised(sample, closes_at, sample.superseded_by)
    episode = Episode(
        key=record.key,
        revision=sent.revision,
        reason=reason,
        turns=(record,) if sample.offset is None else (),
        source=None if sample.offset is None else LogPlace(sample.partition, sample.offset),
        purpose=record.purpose,
        signals=tuple(map(_as_evidence, signals)),
        closed_at=facts.now,
        provisional=closes_at is not None,
        off_line=facts.off_line and not signals,
    )
    return Step(sent, (episode,))


def _as_evidence(signal: Signal) -> Signal:
    """The part of a signal that graders see. Comments are for people; a hundred long ones would not fit into the log."""
    if signal.comment is None and signal.metadata is None:
        return signal
    return replace(signal, comment=None, metadata=None)


def _withdrawal(sample: SampleState, now: float) -> Experience:
    """A later revision without a reward, so that training drops the earlier one."""
    record = sample.record
    shared = ("key", "policy", "task", "task_hash", "tenant", "purpose", "engine", "dtype")
    facts: dict[str, Any] = {name: getattr(record, name) for name in shared}
    facts |= {"segments": (), "scores": (), "reward": None, "status": "unlabelled", "baseline_key": record.task}
    return Experience(revision=sample.revision, generated_at=record.created_at, scored_at=now, **facts)
