"""The evidence of one comparison: its answers in memory, read again as they change, and what they say now.

In: rows of `train_answer`. Out: an assessment. Waits for: the database.

A row is written with the time of its change, by processes whose clocks differ, in transactions that take a moment: so each look reads
the last ten seconds again, and every half minute the last two minutes. After a restart everything is read anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from pipelines.release.train import repository
from pipelines.release.train.answers import AnswerRow, Answers, TaskRule
from pipelines.release.train.assess import Assessment, assess
from pipelines.release.train.repository import Train
from pipelines.release.train.strata import Standing
from runtime.train_settings import TrainSettings

_AGAIN_MS, _LONG_AGAIN_MS = 10_000, 120_000
_LONG_SECONDS = 30.0
_IDLE = 4.0
"""Assessing takes at most one part in five of the time."""

ReadChanged = Callable[[Connection, int], list[tuple[AnswerRow, int]]]
"""The answers that were written from a time on (UTC epoch milliseconds), with the time at which they were."""


@dataclass(eq=False)
class TrainEvidence:
    """See the module. `monotonic`: seconds for timers."""

    read_changed: ReadChanged
    tasks: Mapping[str, TaskRule]
    settings: TrainSettings
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._answers = Answers()
        self._last_ms = 0
        self._seen: dict[str, int] = {}
        """Key to the time of its change, of the rows that may be read again."""
        self._long_at = self.monotonic()
        self._assess_at = float("-inf")
        self._found: Assessment | None = None
        self._standing: Standing | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def read(self, connection: Connection, now: float) -> None:
        """Take in what changed."""
        is_long = self.monotonic() >= self._long_at
        # If the clock was set back, rows are older from now on than those that were read.
        last = min(self._last_ms, int(now * 1000))
        since = max(0, last - (_LONG_AGAIN_MS if is_long else _AGAIN_MS))
        if is_long:
            self._long_at = self.monotonic() + _LONG_SECONDS
        found = self.read_changed(connection, since)
        self._answers.put([row for row, changed in found if self._seen.get(row.key) != changed])
        self._last_ms = max([last, *(changed for _, changed in found)])
        if is_long:
            self._seen.clear()
        self._seen.update((row.key, changed) for row, changed in found)

    def assess(self, now: float, standing: Standing) -> Assessment:
        """What all answers say."""
        if self._found is not None and self.monotonic() < self._assess_at and standing == self._standing:
            return self._found
        began = time.perf_counter()
        self._found = assess(self._answers, self.tasks, self.settings, now, standing)
        self._standing = standing
        self._assess_at = self.monotonic() + _IDLE * (time.perf_counter() - began)
        return self._found


def evidence_of_train(train: Train, tasks: Mapping[str, TaskRule], monotonic: Callable[[], float]) -> TrainEvidence:
    """The evidence of a train, by the settings that it departed with."""
    return TrainEvidence(
        lambda connection, since: repository.read_changed(connection, train, since),
        tasks,
        settings_of(train),
        monotonic,
    )


def settings_of(train: Train) -> TrainSettings:
    """The settings as they were at departure.

    Another release may have written them, whose bounds were others: a value of the right type counts as it stands, and a setting that
    is missing, or of another type, has its default.
    """
    known = dict[str, Any]()
    for name, field in TrainSettings.model_fields.items():
        try:
            known[name] = TypeAdapter[Any](field.annotation or Any).validate_python(train.settings[name])
        except (KeyError, ValidationError):
            continue
    return TrainSettings.model_construct(**known)
