"""A home without processes: imports go into its log, and the real join, rewards and intake of the trainer are run by hand."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from commands.audit import audit
from commands.imports import importer, progress
from commands.imports.elements import opened
from commands.imports.formats import FORMATS
from commands.imports.mapping import read_maps
from commands.imports.records import Target
from commands.imports.tally import ImportTally
from commands.imports.undo import undo
from contracts.event_log import EventLog
from contracts.ledger import generation_counts
from contracts.records import Experience, Outcome, decode
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, OUTCOMES
from pipelines.episodes.handler import EpisodesHandler
from pipelines.episodes.join import IMPORTED_SECONDS
from pipelines.training.samples.intake import Intake
from pipelines.training.state import TrainerState
from rewards.worker import RewardsHandler
from runtime.batch import Handler
from runtime.database import Database
from runtime.log.outbox import message
from runtime.worker import Worker
from tests.fakes import everything
from tests.unit.pipelines.episodes.bench import a_task

ACCEPTED = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}
TASK = a_task({"accepted": ACCEPTED, "edited": {"means": "edit"}, "thumbs": {"means": "thumbs"},
               "stars": {"type": "number", "minimum": 1, "maximum": 5, "decisive": False}}, reward={"low": -1.0, "high": 1.0})  # fmt: skip
JUNE = 1_750_000_000.0
BATCH = 20
LONGEST = 1_000
"""Characters of the policy's context."""


def row(name: str, **changes: Any) -> dict[str, Any]:
    """A row of JSON lines, a minute after the one before."""
    number = int("".join(filter(str.isdecimal, name)) or 0)
    said = [{"role": "user", "content": f"a table for {name}"}]
    return {
        "id": name,
        "messages": said,
        "answer": f"Booked for {name}.",
        "at": JUNE + 60 * number,
        "user": f"u{number % 7}",
        **changes,
    }


class ImportHome:
    """See the module. `task`: the only one."""

    def __init__(self, folder: Path, database: Database, log: EventLog, task: Task = TASK) -> None:
        self.folder, self.database, self.log, self.task = folder, database, log, task
        self.fates: dict[str, tuple[str, str]] = {}
        """Of the trainer, by key."""

    def write(self, *rows: Any, name: str = "export.jsonl") -> Path:
        """A file of JSON lines."""
        path = self.folder / name
        path.write_text("".join(json.dumps(item) + "\n" for item in rows))
        return path

    def bring(
        self, path: Path, *maps: str, kind: str = "jsonl", writes: bool = True, log: EventLog | None = None
    ) -> tuple[str, ImportTally]:
        """Import a file. Returns the import's id and what it found."""
        with opened(str(path)) as file, progress.claimed_imports(self.folder):
            content = progress.hash_of(file, kind, self.task.name, *maps)
            held = progress.find(self.folder, content, path.name, time.time())
            read = read_maps(list(maps), self.task)
            target = Target(kind, held.id, "booking", self.task, read, time.time(), lambda text: len(text) <= LONGEST)
            home = importer.Destination(self.folder, self.database, log or self.log, writes)
            return held.id, importer.run(home, file, FORMATS[kind], target, held, batch_size=BATCH)

    def take_back(self, import_id: str) -> int:
        """Undo an import."""
        return undo(self.database, self.log, import_id, time.time())

    def work(self) -> None:
        """Join, score, and let the trainer look at what was scored."""
        tasks = {self.task.name: self.task}
        join, rewards = EpisodesHandler(tasks), RewardsHandler(tasks, database=self.database)
        with closing(rewards):
            self._drain(join)
            self._drain(rewards)
        intake = Intake(TrainerState())
        for record in everything(self.log, EXPERIENCES):
            experience = decode(Experience, record.value)
            if (fate := intake.offer(record, experience, 0.0)) and experience.key not in self.fates:
                self.fates[experience.key] = fate.state, fate.reason
                told = Outcome(key=experience.key, revision=fate.revision, epoch=1, state=fate.state, reason=fate.reason,
                               writer="training", at=time.time(), sequence=len(self.fates))  # fmt: skip
                self.log.append([message(OUTCOMES, told.key, told)])
        self._drain(join)

    def _drain(self, handler: Handler[Any]) -> None:
        worker = Worker(handler, self.database, self.log, clock=lambda: time.time() + IMPORTED_SECONDS)
        while worker.step(0.0):
            pass

    def states(self) -> dict[str, int]:
        """The ledger's states of generations, after an audit found everything explained."""
        result = audit(self.database, self.log)
        assert result.problems == ()
        with self.database.snapshot() as connection:
            return generation_counts(connection).states
