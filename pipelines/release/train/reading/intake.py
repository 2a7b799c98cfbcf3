"""Reads the answers that are compared, and their scores, from the log into `train_answer`.

In: answers of users and their experiences. Out: rows, exactly once, because the positions move in the same transaction. Waits for:
records; nobody waits for it. A score whose answer was not read here yet finds it in the join's table. It starts at the end of the log: a
home of an older release has a month of answers that nothing compares.

It buries no record: who owns a record does that. One that it cannot read is counted, and is evidence of nothing. A position that the log
no longer has is given up for the end of the log: the train then sees fewer answers, and says so by its sample ratio and its silence.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection

from contracts import assignments, holds
from contracts.arms import read_arm_secret
from contracts.assignments import CANARY, HOLDOUT, LEARNING
from contracts.clusters import Clusters, words_of
from contracts.errors import InvalidRecord, InvalidRequest, MillraceError, NewerSchema
from contracts.event_log import EventLog, LogRecord, Message
from contracts.gating import MarkAnswer
from contracts.records import Experience, Generation, GenerationBody, decode, decode_shape
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, GENERATIONS, route_of_key
from pipelines.release.train.answers import comparing_age
from pipelines.release.train.reading import repository, sampling
from pipelines.release.train.reading.sampling import Evidence, Room
from runtime.batch import Handler
from runtime.database import Database
from runtime.log.loss_detection import EVIDENCE
from runtime.metrics import TRAIN_ANSWERS, TRAIN_LEFT_OUT
from runtime.operations import trouble
from runtime.train_settings import TrainSettings
from runtime.worker import BATCH, Worker

_LOOK_SECONDS = 0.5
_MOST_PASSED = 100_000
_RETRY_SECONDS = 10.0
_UNTOLD = frozenset(("cancelled", "error"))

log = structlog.get_logger()


class ReadEvidence(NamedTuple):
    """A record, and the row that it becomes. No record: it is of no interest here."""

    record: Generation | Experience | None
    row: dict[str, Any] | None = None


@dataclass(eq=False)
class TrainIntake(Handler[ReadEvidence]):
    """See the module. `mark`: the fast marks of `rewards`; `clock`: UTC epoch seconds."""

    name = EVIDENCE
    topics = (GENERATIONS, EXPERIENCES)
    batch_size = BATCH

    database: Database
    tasks: Mapping[str, Task]
    mark: MarkAnswer
    _: KW_ONLY
    policy: str
    settings: TrainSettings
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._clusters = {name: Clusters(task.curation.topics) for name, task in self.tasks.items()}
        self._arm_secret = b""
        self._compared, self._read_at = frozenset[int](), float("-inf")
        """The versions that answers are compared with now, and when that was read."""
        self.passed: dict[str, None] = {}
        """The newest answers that were read and are not compared: their scores look for nothing."""
        self._room, self._is_held = Room(), False

    def read(self, record: LogRecord) -> ReadEvidence:
        """See `Handler.read`. Raises NewerSchema."""
        kind: type[Generation | Experience] = Generation if record.topic == GENERATIONS else Experience
        try:
            found = decode(kind, record.value)
            route_of_key(found.key)
        except NewerSchema:
            raise
        except (InvalidRecord, InvalidRequest, ValueError):
            TRAIN_LEFT_OUT.labels("unreadable").inc()
            return ReadEvidence(None)
        return ReadEvidence(found if found.policy == self.policy and found.purpose == "user" else None)

    def prepare(self, items: Sequence[ReadEvidence]) -> Sequence[ReadEvidence]:
        """Choose the answers that are compared, and mark their texts."""
        self._look()
        found = [
            item._replace(row=self._row(item.record)) if isinstance(item.record, Generation) else item for item in items
        ]
        passed = [item.record.key for item in found if isinstance(item.record, Generation) and item.row is None]
        self.passed.update(dict.fromkeys(passed))
        for key in list(itertools.islice(self.passed, max(0, len(self.passed) - _MOST_PASSED))):
            del self.passed[key]
        return found

    def handle(self, connection: Connection, items: Sequence[ReadEvidence]) -> list[Message]:
        """See `Handler.handle`. Answers go first: a batch may hold one behind its score."""
        self._add(connection, [item.row for item in items if item.row is not None])
        said = [item.record for item in items if isinstance(item.record, Experience) and item.record.task in self.tasks]
        if said:
            self._hear(connection, said)
        return []

    def _look(self) -> None:
        if time.monotonic() - self._read_at >= _LOOK_SECONDS:
            with self.database.snapshot() as connection:
                self._arm_secret = self._arm_secret or read_arm_secret(connection)
                arms = assignments.read(connection, self.policy)
                self._is_held = holds.read(connection, self.policy, self.clock()) is not None
                self._room.look(lambda: repository.count(connection, self.policy))
            held = (arms[name].version for name in (CANARY, HOLDOUT, LEARNING) if name in arms)
            self._compared = frozenset(version for version in held if version is not None)
            self._read_at = time.monotonic()

    def _add(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        rows = list({row["key"]: row for row in rows}.values())
        if repository.add(connection, rows):
            for row in rows:
                TRAIN_ANSWERS.labels(row["arm"]).inc()

    def _hear(self, connection: Connection, said: Sequence[Experience]) -> None:
        """Apply scores, in the order of the log."""
        known = repository.read(connection, {record.key for record in said})
        unknown = {record.key for record in said} - known.keys() - self.passed.keys() if self._compared else set[str]()
        if early := self._read_early(connection, unknown):
            self._add(connection, early)
            known |= {row["key"]: row for row in early}
        changes: dict[str, dict[str, Any]] = {}
        for record in said:
            if (row := known.get(record.key)) is None:
                continue
            task = self.tasks[record.task]
            if (change := sampling.heard_row(row, record, task, comparing_age(task, self.settings))) is not None:
                changes[record.key] = change
                known[record.key] = {**row, **change}
        repository.write(connection, changes, self._now_ms())

    def _read_early(self, connection: Connection, keys: set[str]) -> list[dict[str, Any]]:
        """Answers that are compared and were scored before they were read here: topics are read independently.

        All others that the table lacks are not sampled, were appended before the first start, or belong to a train that has ended.
        """
        rows = []
        for wire in repository.read_records(connection, keys).values():
            try:
                record = decode_shape(Generation, wire)
            except NewerSchema:
                raise
            except InvalidRecord:
                _leave_out("unreadable")
                continue
            row = self._row(record, again=True) if record.policy == self.policy else None
            if row is not None and row["compared_with"] in self._compared:
                rows.append(row)
        return rows

    def _row(self, record: Generation, *, again: bool = False) -> dict[str, Any] | None:
        """The row of an answer; None if it is not compared. `again`: it was counted or will be."""
        found = sampling.evidence_of(record, self.tasks, self.settings.control_ratio, self._arm_secret)
        if found is None or isinstance(found, str):
            if found is not None and not again:
                _leave_out(found)
            return None
        if not self._room.take(_arm_of(record, found), found.compared_with, is_held=self._is_held):
            if not again:
                _leave_out("full")
            return None
        return self._described(record, found)

    def _described(self, record: Generation, found: Evidence) -> dict[str, Any]:
        body: GenerationBody | None = None
        try:
            body = record.open()
        except InvalidRecord:
            _leave_out("unreadable")
        marks: Mapping[str, float] = {}
        cluster = ""
        if body is not None:
            # The first message alone: later ones follow answers, which the arms gave.
            cluster = self._clusters[record.task].of(words_of(body.messages[:2]))
            if record.finish_reason not in _UNTOLD:
                marks = self.mark(record.task, body, record.finish_reason)
        return {
            **{name: getattr(record, name) for name in ("key", "policy", "task", "tenant")},
            **{name: getattr(found, name) for name in ("version", "compared_with", "unit", "unit_kind")},
            "arm": _arm_of(record, found),
            "api_key": record.draw.api_key if record.draw is not None else "",
            "cluster": cluster,
            "sampling": sampling.sampling_hash(record.sampling),
            "probability": record.arm_probability,
            "at": record.finished_at,
            "metrics": {**sampling.facts_of(record, body), **marks} if not found.is_rescued else dict(sampling.RESCUED),
            "changed": self._now_ms(),
        } | {"reward": None, "status": "", "scored_at": None, "revision": 0}

    def _now_ms(self) -> int:
        return round(self.clock() * 1000)


def read_evidence(intake: TrainIntake, database: Database, event_log: EventLog, stop: threading.Event) -> None:
    """Read until `stop` is set. A fault makes this process not ready, and is tried again; the gate goes on meanwhile."""
    while not stop.is_set():
        try:
            # The health of this process is its main loop's, the gate's. How far this loop is behind is told by its metrics.
            Worker(intake, database, event_log, follows=True, done=lambda: trouble("evidence", None)).run(stop)
        except Exception as error:  # a fault here must not end the gate
            trouble("evidence", error.message if isinstance(error, MillraceError) else repr(error))
            log.exception("evidence not read")
            stop.wait(_RETRY_SECONDS)


def _arm_of(record: Generation, found: Evidence) -> str:
    return sampling.CONTROL if found.is_control else record.arm


def _leave_out(reason: sampling.LeftOut) -> None:
    TRAIN_LEFT_OUT.labels(reason).inc()
