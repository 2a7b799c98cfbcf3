"""What a train knows of its answers, as columns; and how those of each task are compared. Pure.

    log worker ──▶ train_answer ──▶ Answers.put ──▶ assess ──▶ decide

A row may be put again with more in it (its reward came): the later one counts. Rows that cannot be evidence are left out, by name.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.tasks import Task
from pipelines.release.train.metrics import NAMES
from runtime.train_settings import TrainSettings

CANARY, LIVE = "canary", "live"
_ARMS = {CANARY, LIVE, "provider"}
_LEAST_GRACE, _MOST_GRACE, _GRACE_SHARE = 2.0, 60.0, 0.1
_AGES = 4.0
"""A train gets at least so many times the age of its slowest task: else hardly an answer would be old enough before it ends."""
_FIRST_ROWS = 256
_DIGITS = 12
"""Of a probability: two that differ by rounding are one."""
_STATUS = {"": 0, "scored": 1, "unlabelled": 2, "unscored": 3}
SILENT, SCORED, UNLABELLED, UNSCORED = range(4)


class AnswerRow(NamedTuple):
    """One answer to a user. Times are UTC epoch seconds."""

    key: str
    arm: str
    """`canary` or `live`; of a provider in front, `provider`."""
    task: str
    unit: str
    unit_kind: str
    cluster: str
    """Name of the group of prompts; empty if there is none."""
    sampling: str
    probability: float
    """With which the draw gives this arm to any unit, as it was logged."""
    at: float
    metrics: Mapping[str, float]
    """Facts by the names of `NAMES`; a fact that the answer does not have is absent."""
    reward: float | None
    """In [0, 1]. Reward, status and the fact `heard` are those that were known at the comparing age: see `known_until`."""
    status: str
    """Of that experience: scored, unlabelled or unscored; empty if there was none yet."""
    scored_at: float | None
    tenant: str = ""
    api_key: str = ""
    """Id of the key that asked; empty in rows of older releases."""


class LiftRow(NamedTuple):
    """One rewarded answer: its reward is the one that was known at the comparing age, however late a first one came."""

    arm: str
    """`live` or `holdout`."""
    task: str
    unit: str
    unit_kind: str
    sampling: str
    at: float
    """UTC epoch seconds."""
    reward: float
    tenant: str = ""
    api_key: str = ""


class TaskRule(NamedTuple):
    """How the answers of a task are compared."""

    has_primary: bool
    """False: users and verifiers give no reward, so guardrails alone decide, and the page says so."""
    age_seconds: float


class Columns(NamedTuple):
    """The rows as arrays of one length. Names are codes: their places in `Answers.names`."""

    at: NDArray[np.float64]
    is_canary: NDArray[np.bool_]
    task: NDArray[np.int64]
    unit: NDArray[np.int64]
    unit_kind: NDArray[np.int64]
    cluster: NDArray[np.int64]
    sampling: NDArray[np.int64]
    probability: NDArray[np.int64]
    tenant: NDArray[np.int64]
    api_key: NDArray[np.int64]
    metrics: NDArray[np.float64]
    """[rows, names of `NAMES`]; NaN where absent."""
    reward: NDArray[np.float64]
    status: NDArray[np.int64]


_CODED = ("task", "unit", "unit_kind", "cluster", "sampling", "probability", "tenant", "api_key")
_FACTS = Columns._fields.index("metrics")


def grace_seconds(age_seconds: float) -> float:
    """How long after its age a reward may come, because it takes time to be computed."""
    return min(_MOST_GRACE, max(_LEAST_GRACE, _GRACE_SHARE * age_seconds))


def known_until(at: float, age_seconds: float) -> float:
    """Until when a reward of an answer at `at` counts. Later knowledge is ignored in both arms."""
    return at + age_seconds + grace_seconds(age_seconds)


def task_rules(tasks: Mapping[str, Task], settings: TrainSettings) -> dict[str, TaskRule]:
    """The rule of each task, by name."""
    return {name: TaskRule(has_primary(task), comparing_age(task, settings)) for name, task in tasks.items()}


def has_primary(task: Task) -> bool:
    """Whether its answers can get a reward: from signals that are worth something, or from graders that count."""
    heard = task.signals_weight > 0 and (
        any(rule.worths for rule in task.signals.values()) or any(rule.role == "signal" for rule in task.grader_rules)
    )
    return heard or task.components_weight > 0


def comparing_age(task: Task, settings: TrainSettings) -> float:
    """The age in seconds at which answers are compared: `age_seconds`, or the longest window of the task.

    Both arms are compared at the same age, so any age is fair at which answers have their rewards: the task's own window. Signals with a
    longer window count as far as they came within `longest_age_seconds`.
    """
    if settings.age_seconds is not None:
        return settings.age_seconds
    longest = max([task.window_seconds, *(rule.window_seconds or 0.0 for rule in task.signals.values())])
    return max(task.window_seconds, min(longest, settings.longest_age_seconds))


def patience_of(rules: Mapping[str, TaskRule], settings: TrainSettings) -> float:
    """How many seconds a train gets: `patience_seconds`, or four times the age at which its slowest task is compared."""
    slowest = max((rule.age_seconds for rule in rules.values() if rule.has_primary), default=0.0)
    return max(settings.patience_seconds, _AGES * slowest)


class Answers:
    """The answers of one train, by key. Not thread-safe."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._rejected: dict[str, str] = {}
        self._codes: dict[str, dict[Any, int]] = {name: {} for name in _CODED}
        self._columns = _room(_FIRST_ROWS)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows can never be evidence, by reason."""
        return dict(Counter(self._rejected.values()))

    def names(self, column: str) -> list[Any]:
        """The names behind the codes of a column, by code."""
        return list(self._codes[column])

    def columns(self) -> Columns:
        """Views of the stored rows, until the next `put`."""
        num = len(self._places)
        return Columns(*(column[:num] for column in self._columns))  # type: ignore[arg-type] # of the same types

    def put(self, rows: Iterable[AnswerRow]) -> None:
        """Add rows, or replace those with the same key."""
        places, values = list[int](), list[tuple[Any, ...]]()
        facts = array("d")
        codes = [self._codes[name] for name in _CODED]
        for row in rows:
            key, arm, task, unit, unit_kind, cluster, sampling, probability, at, metrics, reward, status, *_ = row
            if reason := _problem_of(row):
                if key not in self._places:
                    self._rejected[key] = reason
                continue
            self._rejected.pop(key, None)
            places.append(self._places.setdefault(key, len(self._places)))
            asked = (sampling, round(probability, _DIGITS), row.tenant, row.api_key)
            named = (task, unit, unit_kind, cluster, *asked)
            coded = [code.setdefault(name, len(code)) for code, name in zip(codes, named, strict=True)]
            values.append((at, arm == CANARY, *coded, math.nan if reward is None else reward, _STATUS[status]))
            facts.extend([metrics.get(name, math.nan) for name in NAMES])
        if not places:
            return
        self._grow()
        told = np.frombuffer(facts).reshape(len(places), len(NAMES))
        columns: list[Any] = [*zip(*values, strict=True)]
        columns.insert(_FACTS, np.where(np.isfinite(told), told, math.nan))
        for column, new in zip(self._columns, columns, strict=True):
            column[places] = new  # of two rows with one key, numpy keeps the later one

    def _grow(self) -> None:
        wanted, room = len(self._places), len(self._columns.at)
        if wanted > room:
            larger = _room(max(wanted, 2 * room))
            for new, old in zip(larger, self._columns, strict=True):
                new[:room] = old
            self._columns = larger


def _problem_of(row: AnswerRow) -> str:
    """Why a row cannot be evidence; empty if it can."""
    if row.arm not in _ARMS or row.status not in _STATUS:
        return "of another arm" if row.arm not in _ARMS else "with an unknown status"
    if not row.unit or not math.isfinite(row.at):
        return "without a unit" if not row.unit else "without a time"
    if not 0.0 < row.probability <= 1.0:
        return "without a probability between 0 and 1"
    if row.reward is not None and not 0.0 <= row.reward <= 1.0:
        return "with a reward outside 0 and 1"
    return ""


def _room(num: int) -> Columns:
    shapes: dict[str, Any] = {"metrics": (num, len(NAMES))}
    types: dict[str, Any] = {"is_canary": np.bool_, "at": np.float64, "metrics": np.float64, "reward": np.float64}
    return Columns(*(np.zeros(shapes.get(name, num), types.get(name, np.int64)) for name in Columns._fields))
