"""The join and the ledger.

In: generations and signals (in any order), outcomes. Out: episodes, one revision at the first decisive signal or when
the window closes, one more for every later piece of evidence, and one when the last window of a slower signal closes, if
what stood until then was provisional; outcomes for what never becomes an episode of a user; signals that waited for their
answer (`keys/`); a name for answers that a later try of their request replaced (`retries/`). Waits: for windows and quarantines to end, which `tick` does; it also looks again, in pieces, at samples
whose outcomes a new epoch of the trainer did not keep (`epochs/`).

A batch is read at once, decided in memory record by record, and written at once (`samples.py`, `repository.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import Connection

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import MAX_RECORD_BYTES, LogRecord, Message
from contracts.ids import parse_sample_key, route_of
from contracts.records import Episode, Generation, Outcome, Signal, State, decode
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes import join, repository
from pipelines.episodes.curation.curator import Curator, Prompt
from pipelines.episodes.epochs import repository as epochs_repository
from pipelines.episodes.epochs.chain import Epochs, best
from pipelines.episodes.keys import exchange
from pipelines.episodes.retries import replacing
from pipelines.episodes.retries.repository import lately_repeated, repeated
from pipelines.episodes.retries.rules import SUPERSEDED, is_cut
from pipelines.episodes.samples import HeldGeneration, HeldSignal, Key, Samples
from runtime.log.outbox import message
from runtime.worker import BATCH

NO_SUCH_CHOICE = "no_such_choice"
_DUE_AT_ONCE = 500
_SWEEP_EVERY_SECONDS = 60.0
_KINDS: dict[str, type[Generation | Signal | Outcome]] = {GENERATIONS: Generation, SIGNALS: Signal, OUTCOMES: Outcome}
Reason = Literal["decisive", "window"]


class Heard(NamedTuple):
    """A record and where it came from. `key` is None for a control record, which is about no sample."""

    record: Generation | Signal | Outcome
    key: Key | None
    partition: int
    prompt: Prompt | None = None
    """Of a generation whose task curates prompts."""


class EpisodesHandler:
    """See the module docstring. Clock: UTC epoch seconds."""

    name = "episodes"
    topics = (GENERATIONS, SIGNALS, OUTCOMES)
    batch_size = BATCH

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float] = time.time) -> None:
        self._tasks = tasks
        self._curator = Curator(tasks)
        self._clock = clock
        self._sweeps_at = 0.0

    def read(self, record: LogRecord) -> Heard:
        """See `Handler.read`."""
        found = decode(_KINDS[record.topic], record.value)
        return Heard(found, _key_of(found), record.partition)

    def prepare(self, items: Sequence[Heard]) -> Sequence[Heard]:
        """Look at prompts, where tasks say which ones are worth learning from."""
        if not self._curator.is_needed:
            return items
        return [
            item._replace(prompt=self._curator.look(item.record)) if isinstance(item.record, Generation) else item
            for item in items
        ]

    def handle(self, connection: Connection, items: Sequence[Heard]) -> list[Message]:
        """See `Handler.handle`."""
        items, epochs = self._issued(connection, [each for item in items for each in _each(item)])
        if not items:
            return []
        tried = repeated(connection, [item.record for item in items if isinstance(item.record, Generation)])
        judged = {item.key[0] for item in items if item.key and not isinstance(item.record, Outcome)}
        samples = repository.load(
            connection,
            completion_ids={item.key[0] for item in items if item.key} | tried.completion_ids,
            sample_keys={item.record.key for item in items if isinstance(item.record, Outcome)},
            judged=judged | tried.completion_ids,
        )
        messages: list[Message] = []
        for item in items:
            if isinstance(item.record, Outcome) and item.record.state == "epoch_started":
                epochs = epochs_repository.begin(connection, epochs, item.record)
            messages += self._apply(samples, item, epochs)
        messages += self._replace(samples, replacing.changes(samples, tried.requests))
        repository.save(connection, samples)
        arrived = [held.record for held in samples.generations.values() if held.is_new]
        return messages + exchange.register(connection, self._tasks, arrived, self._clock())

    def tick(
        self, connection: Connection, now: float, partitions: frozenset[int], *, is_at_end: bool = True
    ) -> list[Message]:
        """Close windows that have passed; what was not emitted yet is emitted with whatever it has."""
        messages = self._sweep(connection, now)
        epochs_repository.repair(connection)
        if is_at_end:
            messages += exchange.settle_sessions(connection, now, partitions)
        keys = repository.due(connection, now, partitions, _DUE_AT_ONCE)
        if not keys:
            return messages
        completion_ids = {key[0] for key in keys}
        samples = repository.load(connection, completion_ids, (), judged=completion_ids)
        for key in keys:
            messages += self._close(samples, key, samples.generations[key], now)
        repository.save(connection, samples)
        return messages

    def _sweep(self, connection: Connection, now: float) -> list[Message]:
        """Once a minute, and again while there is some: what waited too long, or waits although its answer is here."""
        if now < self._sweeps_at:
            return []
        repository.reject_orphans(connection, now - join.ORPHAN_SECONDS, _DUE_AT_ONCE)
        messages = exchange.sweep(connection, now) + self._look_again(connection, now)
        self._sweeps_at = now if messages else now + _SWEEP_EVERY_SECONDS
        return messages

    def _look_again(self, connection: Connection, now: float) -> list[Message]:
        """Tries of one request whose records two replicas joined at once: neither saw the other's."""
        tried = lately_repeated(connection, now)
        if not tried.completion_ids:
            return []
        samples = repository.load(connection, tried.completion_ids, (), judged=tried.completion_ids)
        messages = self._replace(samples, replacing.changes(samples, tried.requests))
        repository.save(connection, samples)
        return messages

    def _close(self, samples: Samples, key: Key, held: HeldGeneration, now: float) -> list[Message]:
        """A window or the quarantine has passed: the first episode is due, or the last word after a provisional one."""
        task = self._tasks.get(held.record.task)
        if held.superseded_by:  # a log that was lost had this, and what was said of it
            held.close_at(None)
            return [self._fated(held.record, "filtered", SUPERSEDED, held.revision)]
        if _awaits_its_first(held, task):
            is_decided = task is not None and join.is_decisive(task, held.record, _counting(samples, key))
            return self._emit(samples, key, held, "decisive" if is_decided else "window", now)
        # No later than the task's own window: a row of before there were slower ones, and nothing was provisional.
        if task is not None and held.closes_at is not None and held.closes_at > join.deadline(held.record, task):
            return self._emit(samples, key, held, "window", now)
        held.close_at(None)
        return []

    def _issued(self, connection: Connection, items: list[Heard]) -> tuple[list[Heard], Epochs]:
        """Everything but what a trainer said in an epoch that was never issued; and by what the rest is judged."""
        told = {
            item.record.state for item in items if isinstance(item.record, Outcome) and item.record.writer == "training"
        }
        if not any(isinstance(item.record, Outcome) for item in items):
            return items, Epochs({})
        epochs = epochs_repository.take(connection, begins="epoch_started" in told)
        ignored = {
            id(item)
            for item in items
            if isinstance(item.record, Outcome) and epochs_repository.is_ignored(epochs, item.record)
        }
        return [item for item in items if id(item) not in ignored], epochs

    def _apply(self, samples: Samples, item: Heard, epochs: Epochs) -> list[Message]:
        if isinstance(item.record, Outcome):
            self._outcome(samples, item.record, item.key, epochs)
            return []
        if isinstance(item.record, Signal):
            return self._signal(samples, item.record)
        return self._generation(samples, item, item.record)

    def _generation(self, samples: Samples, item: Heard, record: Generation) -> list[Message]:
        task = self._tasks.get(record.task)
        fate = self._fate(record, task, item.prompt)
        closes_at = join.first_close(record, task, is_decided=False) if task and fate is None else None
        held = HeldGeneration(record, item.partition, self._clock(), closes_at)
        if not samples.add_generation(held):
            return []
        key = (record.completion_id, record.choice)
        for early in samples.signals_of(key, "pending"):
            self._settle(samples, early, record, task)
        for early in samples.signals_beyond(record):
            early.become("rejected", NO_SUCH_CHOICE)
        if fate is not None:
            messages = [self._fated(record, *fate)]
            # Rollouts are scored like users' answers; the gate grades its sentinels itself, and what curation refused is
            # nobody's to judge.
            is_scored = task is not None and fate[0] == "filtered" and record.purpose in {"rollout", "shadow"}
            return messages + (self._emit(samples, key, held, "window", self._clock()) if is_scored else [])
        return self._emit_if_decided(samples, key, held)

    def _fate(self, record: Generation, task: Task | None, prompt: Prompt | None) -> tuple[State, str] | None:
        """What a generation is from the start, if it will not wait for signals."""
        if record.finish_reason == "cancelled":
            return "cancelled", "client_left"
        if record.finish_reason == "error":
            return "cancelled", "engine_failed"
        if task is None:
            return "filtered", "unknown_task"
        if record.purpose != "user":
            return "filtered", record.purpose
        refusal = self._curator.decide(record, prompt) if prompt else None
        return ("filtered", refusal) if refusal else None

    def _signal(self, samples: Samples, record: Signal) -> list[Message]:
        key = (record.completion_id, record.choice)
        held = samples.generations.get(key)
        if record.retracted:
            return self._retraction(samples, record, key, held)
        said = samples.add_signal(record, "pending")
        if said is not None and samples.lacks_choice(key):
            said.become("rejected", NO_SUCH_CHOICE)
        if said is None or held is None:
            return []
        if not self._settle(samples, said, held.record, self._tasks.get(held.record.task)):
            return []
        return self._hear(samples, key, held)

    def _retraction(self, samples: Samples, record: Signal, key: Key, held: HeldGeneration | None) -> list[Message]:
        said = samples.find_signal(record)
        if said is None:
            samples.add_signal(record, "retracted")
            return self._replace(samples, replacing.received(samples, record.completion_id))
        before = said.state
        said.become("retracted")
        # A task that was removed since judges nothing any more; its samples keep what they have.
        task = self._tasks.get(held.record.task) if held else None
        if held is None or task is None or before not in {"joined", "late"}:
            return self._replace(samples, replacing.received(samples, record.completion_id))
        self._resolve(samples, held.record, task)
        return self._hear(samples, key, held)

    def _settle(self, samples: Samples, said: HeldSignal, about: Generation, task: Task | None) -> bool:
        """Give a signal whose generation is known its state; False if it must not count."""
        declared = task is not None and said.record.name in task.signals
        if task is None or not declared or said.record.tenant != about.tenant:
            said.become("rejected", "other_tenant" if declared else "undeclared_signal")
            return False
        said.become("joined")
        self._resolve(samples, about, task)
        return True

    def _resolve(self, samples: Samples, about: Generation, task: Task) -> None:
        """Judge all signals of a sample anew, so that the result does not depend on the order of arrival."""
        heard = samples.signals_of((about.completion_id, about.choice), "joined", "late", "conflict")
        lost = join.superseded([said.record for said in heard])
        for said in heard:
            if said.record.id in lost:
                said.become("conflict", "superseded")
            else:
                said.become(join.state_on_arrival(said.record, join.deadline(about, task, said.record.name)))

    def _hear(self, samples: Samples, key: Key, held: HeldGeneration) -> list[Message]:
        """What counts has changed: the first episode may be due, and later evidence makes a new revision, never a rewrite."""
        if held.record.purpose != "user":
            return []
        if held.superseded_by:
            return self._replace(samples, replacing.received(samples, key[0]))
        if is_cut(held.record):  # it has no episode, however often it was set aside and taken up again
            return []
        if _awaits_its_first(held, self._tasks.get(held.record.task)):
            return self._emit_if_decided(samples, key, held)
        return self._emit(samples, key, held, "decisive", self._clock())

    def _replace(self, samples: Samples, changes: Iterable[replacing.Change]) -> list[Message]:
        """Name what a later try replaced, and take up again what was not replaced after all."""
        messages: list[Message] = []
        for held, later in list(changes):
            if later is None:
                messages += self._take_up(samples, held)
                continue
            was_named, was_sent = bool(held.superseded_by), held.revision > 0
            held.set_aside(later)
            if not was_named:
                messages.append(self._fated(held.record, "filtered", SUPERSEDED, held.revision))
            if was_sent and not was_named:
                withdrawn = replacing.withdrawal(held, self._clock())
                messages.append(message(EXPERIENCES, withdrawn.key, withdrawn))
        return messages

    def _take_up(self, samples: Samples, held: HeldGeneration) -> list[Message]:
        held.take_up()
        task = self._tasks.get(held.record.task)
        fate = self._fate(held.record, task, None)
        if fate is not None or task is None:
            return [self._fated(held.record, *fate, held.revision)] if fate else []
        held.close_at(join.first_close(held.record, task, is_decided=False))
        return self._emit_if_decided(samples, (held.record.completion_id, held.record.choice), held)

    def _emit_if_decided(self, samples: Samples, key: Key, held: HeldGeneration) -> list[Message]:
        if held.closes_at is None:  # it never waited for signals
            return []
        task, now = self._tasks[held.record.task], self._clock()
        is_decided = join.is_decisive(task, held.record, _counting(samples, key))
        if is_decided and join.quarantined_until(held.record, task) <= now:
            return self._emit(samples, key, held, "decisive", now)
        held.close_at(join.first_close(held.record, task, is_decided=is_decided))
        return []

    def _emit(self, samples: Samples, key: Key, held: HeldGeneration, reason: Reason, now: float) -> list[Message]:
        task = self._tasks.get(held.record.task) if held.record.purpose == "user" else None
        # Only a user's generation is judged by signals; the others are scored by what they say alone.
        counting = samples.signals_of(key, "joined", "late") if held.record.purpose == "user" else []
        expected = join.last_close(held.record, task, [said.record for said in counting]) if task else None
        held.close_at(expected if expected is not None and expected > now else None)
        revision = held.raise_revision()
        for said in counting:
            said.belong_to(revision)
        episode = Episode(
            key=held.record.key,
            revision=revision,
            reason=reason,
            turns=(held.record,),
            signals=tuple(_as_evidence(said.record) for said in counting),
            closed_at=now,
            provisional=held.closes_at is not None,
        )
        sent = message(EPISODES, episode.key, episode)
        if sent.num_bytes > MAX_RECORD_BYTES:  # many long signals: no log would take it, and its sample needs a name
            return [self._fated(held.record, "unscored", "too_large", revision)]
        return [sent]

    def _fated(self, record: Generation, state: State, reason: str, revision: int = 1) -> Message:
        outcome = Outcome(
            key=record.key, revision=revision, epoch=0, state=state, reason=reason, writer="episodes", at=self._clock()
        )
        return message(OUTCOMES, outcome.key, outcome)

    def _outcome(self, samples: Samples, record: Outcome, key: Key | None, epochs: Epochs) -> None:
        if not samples.add_outcome(record) or key is None or record.state == "epoch_started":
            return
        held = samples.generations.get(key)
        if held is not None:
            held.stand(best(samples.outcomes[record.key].values(), epochs, held.revision))


def _awaits_its_first(held: HeldGeneration, task: Task | None) -> bool:
    """True if no episode was sent of it yet; or none since it had been set aside, and was taken up again."""
    if held.revision == 0 or held.superseded_by is None or held.closes_at is None or task is None:
        return held.revision == 0
    return held.closes_at <= join.first_close(held.record, task, is_decided=False)


def _as_evidence(said: Signal) -> Signal:
    """What graders see: a comment is for people, and a hundred long ones would make the episode too large for the log."""
    if said.comment is None and said.metadata is None:
        return said
    return msgspec.structs.replace(said, comment=None, metadata=None)


def _counting(samples: Samples, key: Key) -> list[Signal]:
    return [said.record for said in samples.signals_of(key, "joined", "late")]


def _each(item: Heard) -> list[Heard]:
    """An outcome of many samples as one of each."""
    if not isinstance(item.record, Outcome) or not item.record.also:
        return [item]
    return [item._replace(record=alone, key=parse_sample_key(alone.key)) for alone in item.record.each()]


def _key_of(record: Generation | Signal | Outcome) -> Key | None:
    if isinstance(record, Outcome) and not record.key:
        return None
    try:
        key = parse_sample_key(record.key)
        route_of(key[0])
        for other in record.also if isinstance(record, Outcome) else ():
            route_of(parse_sample_key(other.key)[0])
    except (InvalidRequest, ValueError) as error:
        raise InvalidRecord(f"{type(record).__name__} about {record.key!r}, which is not a sample key") from error
    return key
