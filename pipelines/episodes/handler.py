"""The join and the ledger: generations and signals become episodes; outcomes become the state of each sample.

    generations ──▶ curation/ ──▶╮                  ╭──▶ episodes      (rewards scores them)
    signals ────────────────────▶├─▶ lifecycle.py ──┼──▶ outcomes      (of samples that never become an episode of a user)
    window that closes (tick) ──▶│                  ╰──▶ experiences   (withdrawals of answers that a later try replaced)
    later try ──▶ retries.py ───▶╯
    outcomes ──▶ epochs/ ──────────▶ the ledger (table `generation`)
    generations with a key ─▶ keys/ ──▶ signals (those that waited for this answer)

Waiting: a signal for its generation, in `signal` (pending), or for the first answer with its key (`keys/exchange.py`); a sample for its
`closes_at`; a sample whose outcomes became void with a new epoch, in `ledger_change`. `tick` ends each wait, in pieces.

A batch goes one way: read all that it is about, apply record by record in memory, write all changes at once. Signals about one answer
that follow each other in a batch make one revision of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import MAX_RECORD_BYTES, LogRecord, Message
from contracts.ids import parse_sample_key, route_of
from contracts.records import Episode, Experience, Generation, Outcome, Signal, decode
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes import join, lifecycle, repository
from pipelines.episodes.curation.curator import CheckedPrompt, Curator
from pipelines.episodes.epochs import repository as epochs_repository
from pipelines.episodes.epochs.chain import Epochs, entry_of
from pipelines.episodes.keys import exchange
from pipelines.episodes.keys import repository as keys_repository
from pipelines.episodes.keys.repository import FIRST
from pipelines.episodes.keys.rules import AnswerRef, KeyName, session_of
from pipelines.episodes.lifecycle import Facts, Key, SampleState, Step
from pipelines.episodes.retries import Replacement, received, replacements
from pipelines.episodes.samples import Samples, name_of
from runtime.log.outbox import message
from runtime.worker import BATCH

_MAX_DUE = 100
"""Of one tick: its transaction is short. The worker ticks again at once while something is due."""
_SWEEP_EVERY_SECONDS = 60.0
_KINDS: dict[str, type[Generation | Signal | Outcome]] = {GENERATIONS: Generation, SIGNALS: Signal, OUTCOMES: Outcome}
_TOPICS = {Episode: EPISODES, Experience: EXPERIENCES, Outcome: OUTCOMES}


class ReadRecord(NamedTuple):
    """A record and where it came from. `key`: None for a control record, which is about no sample."""

    record: Generation | Signal | Outcome
    key: Key | None
    partition: int
    offset: int
    prompt: CheckedPrompt | None = None


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
        self._place = FIRST
        """How far the sweep has come among the signals that wait."""
        self._was_behind = False

    def read(self, record: LogRecord) -> ReadRecord:
        """See `Handler.read`."""
        found = decode(_KINDS[record.topic], record.value)
        return ReadRecord(found, _key_of(found), record.partition, record.offset)

    def prepare(self, items: Sequence[ReadRecord]) -> Sequence[ReadRecord]:
        """Check the prompts of tasks that curate."""
        if not self._curator.is_needed:
            return items
        return [
            item._replace(prompt=self._curator.check(item.record)) if isinstance(item.record, Generation) else item
            for item in items
        ]

    def handle(self, connection: Connection, items: Sequence[ReadRecord]) -> list[Message]:
        """See `Handler.handle`."""
        items, epochs = _valid(connection, [each for item in items for each in _each(item)])
        if not items:
            return []
        tried = repository.repeated(connection, [item.record for item in items if isinstance(item.record, Generation)])
        judged = {item.key[0] for item in items if item.key and not isinstance(item.record, Outcome)}
        samples = repository.load(
            connection,
            completion_ids={item.key[0] for item in items if item.key} | tried.completion_ids,
            sample_keys={item.record.key for item in items if isinstance(item.record, Outcome)},
            judged=judged | tried.completion_ids,
            named={name_of(item.record) for item in items if isinstance(item.record, Signal)},
        )
        messages: list[Message] = []
        for item in items:
            if isinstance(item.record, Outcome) and item.record.state == "epoch_started":
                epochs = epochs_repository.begin(connection, epochs, item.record)
            messages += self._apply(samples, item, epochs)
        messages += self._hear(samples, samples.take_changed())
        messages += self._replace(samples, replacements(samples, tried.requests))
        repository.save(connection, samples)
        arrived = [sample.record for sample in samples.states.new]
        messages += exchange.register(connection, self._tasks, arrived, now := self._clock())
        retracted = [item.record for item in items if isinstance(item.record, Signal) and item.record.retracted]
        return messages + exchange.take_back(connection, retracted, now)

    def tick(
        self, connection: Connection, now: float, partitions: frozenset[int], *, is_at_end: bool = True
    ) -> list[Message]:
        """Close windows that have passed: a sample that was not sent yet is sent with the signals that it has."""
        if is_at_end and self._was_behind:
            self._sweeps_at, self._place = now, FIRST  # signals about sessions waited for this, on every page
        self._was_behind = not is_at_end
        messages = self._sweep(connection, now, partitions if is_at_end else frozenset())
        epochs_repository.repair(connection)
        if is_at_end:
            messages += exchange.settle_sessions(connection, self._tasks, now, partitions)
        keys = repository.due(connection, now, partitions, _MAX_DUE)
        if not keys:
            return messages
        completion_ids = {key[0] for key in keys}
        samples = repository.load(connection, completion_ids, (), judged=completion_ids)
        sessions = {key: name for key in keys if (name := self._session(samples.states[key].record))}
        ended_at = keys_repository.last_times(connection, set(sessions.values()))
        times = {key: ended_at[name] for key, name in sessions.items() if name in ended_at}
        facts = {key: self._facts(samples, samples.states[key], now, times.get(key)) for key in keys}
        silent = {
            AnswerRef(*key): name
            for key, name in sessions.items()
            if lifecycle.closes_silent(samples.states[key], facts[key])
        }
        off_line = exchange.off_line(connection, silent)
        for key in keys:
            known = replace(facts[key], off_line=AnswerRef(*key) in off_line)
            messages += _take(samples, lifecycle.close(samples.states[key], known))
        repository.save(connection, samples)
        return messages

    def _sweep(self, connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
        """Once a minute, or again at once if there was something or is more: signals and tries that the batches missed.

        `partitions`: those that were read to the end.
        """
        if now < self._sweeps_at:
            return []
        found = exchange.sweep(connection, self._tasks, now, partitions, self._place)
        messages = found.messages + self._find_missed_tries(connection, now)
        has_more = repository.reject_orphans(connection, now - join.ORPHAN_SECONDS, _MAX_DUE) == _MAX_DUE
        has_more = exchange.forget(connection, now) or found.next is not None or has_more
        self._place = found.next or FIRST
        self._sweeps_at = now if messages or has_more else now + _SWEEP_EVERY_SECONDS
        return messages

    def _find_missed_tries(self, connection: Connection, now: float) -> list[Message]:
        """Tries of one request that two replicas joined at once: neither saw the record of the other."""
        tried = repository.lately_repeated(connection, now)
        if not tried.completion_ids:
            return []
        samples = repository.load(connection, tried.completion_ids, (), judged=tried.completion_ids)
        messages = self._replace(samples, replacements(samples, tried.requests))
        repository.save(connection, samples)
        return messages

    def _apply(self, samples: Samples, item: ReadRecord, epochs: Epochs) -> list[Message]:
        if isinstance(item.record, Signal):
            return self._signal(samples, item.record)
        messages = self._hear(samples, samples.take_changed(item.key[0])) if item.key else []
        if isinstance(item.record, Generation):
            return messages + self._generation(samples, item, item.record)
        sample = samples.states.get(item.key) if item.key else None
        if samples.add_outcome(item.record) and sample is not None:
            ledger = entry_of(samples.outcomes[item.record.key].values(), epochs, sample.revision)
            samples.states[sample.key] = replace(sample, ledger=ledger)
        return messages

    def _generation(self, samples: Samples, item: ReadRecord, record: Generation) -> list[Message]:
        task = self._tasks.get(record.task)
        sample = SampleState(record, item.partition, self._clock(), offset=item.offset)
        if not samples.add_generation(sample, task):
            return []
        fate = lifecycle.fate_of(record, task)
        if fate is None and item.prompt and (refusal := self._curator.decide(record, item.prompt)):
            fate = ("filtered", refusal)
        return _take(samples, lifecycle.arrive(sample, self._facts(samples, sample), fate))

    def _signal(self, samples: Samples, record: Signal) -> list[Message]:
        sample = samples.states.get((record.completion_id, record.choice))
        samples.add_signal(record, self._tasks.get(sample.record.task) if sample else None)
        if not (resumed := received(samples, record.completion_id)):
            return []
        messages = self._hear(samples, samples.take_changed(record.completion_id))
        return messages + self._replace(samples, resumed)

    def _hear(self, samples: Samples, keys: Sequence[Key]) -> list[Message]:
        """Send what new signals make of samples, once for all of them."""
        messages: list[Message] = []
        for key in keys:
            sample = samples.states[key]
            if (task := self._tasks.get(sample.record.task)) is not None:
                samples.judge(sample.record, task)
            if not sample.superseded_by:
                messages += _take(samples, lifecycle.hear(sample, self._facts(samples, sample)))
        return messages

    def _replace(self, samples: Samples, found: Iterable[Replacement]) -> list[Message]:
        messages: list[Message] = []
        for sample, later in found:
            if later is None:
                step = lifecycle.resume(sample, self._facts(samples, sample))
            else:
                step = lifecycle.supersede(sample, later, self._clock())
            messages += _take(samples, step)
        return messages

    def _facts(
        self, samples: Samples, sample: SampleState, now: float | None = None, session_at: float | None = None
    ) -> Facts:
        task = self._tasks.get(sample.record.task)
        return samples.facts(sample, task, self._clock() if now is None else now, session_at)

    def _session(self, record: Generation) -> KeyName | None:
        """The session that the answer waits for; None if its task judges no sessions."""
        task = self._tasks.get(record.task)
        return session_of(record) if task is not None and task.credit is not None else None


def _take(samples: Samples, step: Step) -> list[Message]:
    """Keep the next state of a sample; returns the messages that it sends."""
    sample = samples.states[step.sample.key] = step.sample
    messages = []
    for record in step.sends:
        sent = message(_TOPICS[type(record)], record.key, record)
        if isinstance(record, Episode):
            if record.signals:
                samples.sent(sample.key, record.revision)
            if sent.num_bytes > MAX_RECORD_BYTES:  # many long signals: no log takes it, and its sample needs a name
                named = lifecycle.outcome_of(sample.record, "unscored", "too_large", record.revision, record.closed_at)
                sent = message(OUTCOMES, named.key, named)
        messages.append(sent)
    return messages


def _valid(connection: Connection, items: list[ReadRecord]) -> tuple[list[ReadRecord], Epochs]:
    """All items but outcomes of epochs that were never issued, and the epochs by which the others are judged."""
    outcomes = [item.record for item in items if isinstance(item.record, Outcome)]
    if not outcomes:
        return items, Epochs({})
    begins = any(said.writer == "training" and said.state == "epoch_started" for said in outcomes)
    epochs = epochs_repository.take(connection, begins=begins)
    ignored = {id(said) for said in outcomes if epochs_repository.is_ignored(epochs, said)}
    return [item for item in items if id(item.record) not in ignored], epochs


def _each(item: ReadRecord) -> list[ReadRecord]:
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
