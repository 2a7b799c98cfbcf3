"""The join and the ledger.

In: generations and signals (in any order), outcomes. Out: episodes, one revision at the first decisive signal or when
the window closes, one more for every later piece of evidence; outcomes for what never becomes an episode of a user.
Waits: for windows to close, which `tick` does.

A batch is read at once, decided in memory record by record, and written at once (`samples.py`, `repository.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from sqlalchemy import Connection

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import MAX_RECORD_BYTES, LogRecord, Message
from contracts.ids import parse_sample_key, route_of
from contracts.outbox import message
from contracts.records import Episode, Generation, Outcome, Signal, State, decode
from contracts.tasks import Task
from contracts.topics import EPISODES, GENERATIONS, OUTCOMES, SIGNALS
from contracts.worker import BATCH
from pipelines.episodes import join, repository
from pipelines.episodes.samples import HeldGeneration, HeldSignal, Key, Samples

_DUE_AT_ONCE = 500
_ORPHANS_EVERY_SECONDS = 60.0
_KINDS: dict[str, type[Generation | Signal | Outcome]] = {GENERATIONS: Generation, SIGNALS: Signal, OUTCOMES: Outcome}
Reason = Literal["decisive", "window"]


class Heard(NamedTuple):
    """A record and where it came from. `key` is None for a control record, which is about no sample."""

    record: Generation | Signal | Outcome
    key: Key | None
    partition: int


class EpisodesHandler:
    """See the module docstring. Clock: UTC epoch seconds."""

    name = "episodes"
    topics = (GENERATIONS, SIGNALS, OUTCOMES)
    batch_size = BATCH

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float] = time.time) -> None:
        self._tasks = tasks
        self._clock = clock
        self._orphans_at = 0.0

    def read(self, record: LogRecord) -> Heard:
        """See `Handler.read`."""
        found = decode(_KINDS[record.topic], record.value)
        return Heard(found, _key_of(found), record.partition)

    def prepare(self, items: Sequence[Heard]) -> Sequence[Heard]:
        """Nothing here takes long."""
        return items

    def handle(self, connection: Connection, items: Sequence[Heard]) -> list[Message]:
        """See `Handler.handle`."""
        if not items:
            return []
        samples = repository.load(
            connection,
            completion_ids={item.key[0] for item in items if item.key},
            sample_keys={item.record.key for item in items if isinstance(item.record, Outcome)},
            judged={item.key[0] for item in items if item.key and not isinstance(item.record, Outcome)},
        )
        messages = [message for item in items for message in self._apply(samples, item)]
        repository.save(connection, samples)
        return messages

    def tick(self, connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
        """Close windows that have passed; what was not emitted yet is emitted with whatever it has."""
        if now >= self._orphans_at:
            self._orphans_at = now + _ORPHANS_EVERY_SECONDS
            repository.reject_orphans(connection, now - join.ORPHAN_SECONDS, _DUE_AT_ONCE)
        keys = repository.due(connection, now, partitions, _DUE_AT_ONCE)
        if not keys:
            return []
        completion_ids = {key[0] for key in keys}
        samples = repository.load(connection, completion_ids, (), judged=completion_ids)
        messages = []
        for key in keys:
            held = samples.generations[key]
            held.close_window()
            if held.revision == 0:
                messages += self._emit(samples, key, held, "window")
        repository.save(connection, samples)
        return messages

    def _apply(self, samples: Samples, item: Heard) -> list[Message]:
        if isinstance(item.record, Outcome):
            self._outcome(samples, item.record, item.key)
            return []
        if isinstance(item.record, Signal):
            return self._signal(samples, item.record)
        return self._generation(samples, item.record, item.partition)

    def _generation(self, samples: Samples, record: Generation, partition: int) -> list[Message]:
        task = self._tasks.get(record.task)
        fate = self._fate(record, task)
        closes_at = join.deadline(record, task) if task and fate is None else None
        held = HeldGeneration(record, partition, self._clock(), closes_at)
        if not samples.add_generation(held):
            return []
        key = (record.completion_id, record.choice)
        for early in samples.signals_of(key, "pending"):
            self._settle(samples, early, record, task)
        if fate is not None:
            messages = [self._fated(record, *fate)]
            # Sentinels and rollouts are scored like everything else; only a user's generation waits for signals.
            return messages + (self._emit(samples, key, held, "window") if task and fate[0] == "filtered" else [])
        return self._emit_if_decisive(samples, key, held)

    def _fate(self, record: Generation, task: Task | None) -> tuple[State, str] | None:
        """What a generation is from the start, if it will not wait for signals."""
        if record.finish_reason == "cancelled":
            return "cancelled", "client_left"
        if record.finish_reason == "error":
            return "cancelled", "engine_failed"
        if task is None:
            return "filtered", "unknown_task"
        if record.purpose != "user":
            return "filtered", record.purpose
        return None

    def _signal(self, samples: Samples, record: Signal) -> list[Message]:
        key = (record.completion_id, record.choice)
        held = samples.generations.get(key)
        if record.retracted:
            return self._retraction(samples, record, key, held)
        said = samples.add_signal(record, "pending")
        if said is None or held is None:
            return []
        if not self._settle(samples, said, held.record, self._tasks.get(held.record.task)):
            return []
        if held.revision == 0:
            return self._emit_if_decisive(samples, key, held)
        return self._emit_again(samples, key, held)

    def _retraction(self, samples: Samples, record: Signal, key: Key, held: HeldGeneration | None) -> list[Message]:
        said = samples.find_signal(record)
        if said is None:
            samples.add_signal(record, "retracted")
            return []
        before = said.state
        said.become("retracted")
        # A task that was removed since judges nothing any more; its samples keep what they have.
        task = self._tasks.get(held.record.task) if held else None
        if held is None or task is None or before not in {"joined", "late"}:
            return []
        self._resolve(samples, held.record, task)
        return self._emit_again(samples, key, held)

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
                said.become(join.state_on_arrival(said.record, join.deadline(about, task)))

    def _emit_if_decisive(self, samples: Samples, key: Key, held: HeldGeneration) -> list[Message]:
        task = self._tasks[held.record.task]
        counting = [said.record for said in samples.signals_of(key, "joined", "late")]
        if held.closes_at is None or not join.is_decisive(task, counting):
            return []
        return self._emit(samples, key, held, "decisive")

    def _emit_again(self, samples: Samples, key: Key, held: HeldGeneration) -> list[Message]:
        """Later evidence makes a new revision of what was emitted, never a rewrite."""
        if held.revision == 0 or held.record.purpose != "user":
            return []
        return self._emit(samples, key, held, "decisive")

    def _emit(self, samples: Samples, key: Key, held: HeldGeneration, reason: Reason) -> list[Message]:
        # Only a user's generation is judged by signals; the others are scored by what they say alone.
        counting = samples.signals_of(key, "joined", "late") if held.record.purpose == "user" else []
        revision = held.raise_revision()
        for said in counting:
            said.belong_to(revision)
        episode = Episode(
            key=held.record.key,
            revision=revision,
            reason=reason,
            turns=(held.record,),
            signals=tuple(said.record for said in counting),
            closed_at=self._clock(),
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

    def _outcome(self, samples: Samples, record: Outcome, key: Key | None) -> None:
        if not samples.add_outcome(record) or key is None or record.state == "epoch_started":
            return
        held = samples.generations.get(key)
        if held is not None and join.replaces(record, held.standing, held.revision):
            held.stand(record)


def _key_of(record: Generation | Signal | Outcome) -> Key | None:
    if isinstance(record, Outcome) and not record.key:
        return None
    try:
        key = parse_sample_key(record.key)
        route_of(key[0])
    except (InvalidRequest, ValueError) as error:
        raise InvalidRecord(f"{type(record).__name__} about {record.key!r}, which is not a sample key") from error
    return key
