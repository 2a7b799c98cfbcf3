"""Which answers of users are evidence, and what each says: one row of `train_answer`. Pure.

    canary    all of them                  compared_with: its own version, which is the train's
    holdout   all of them                  compared_with: its own version
    live      those of sampled units       compared_with: the version of the train, or without one that of the hold-out
    provider  those of sampled units       compared_with: the version of the train; without one, with none
    learning  all of them                  compared_with: its own version
    control   of live, of sampled units    compared_with: the version of the learning arm; these are compared with nothing else

Units of `live` are sampled by a hash of the column `unit` that is keyed with the home's secret, never by what was answered: `control_ratio`
times as many as the canary has, without a canary as many as the hold-out has, and four times as many as the learning arm has, among the
rows of `live` and in those of `control`. The lift takes every row of `live`. All of this is in the logged draw, so neither clocks nor a late
reader change the sample.

A drawn arm that did not answer counts as failed, whoever helped its user: an answer without tokens is an error, and one with tokens of
another version, because live answered for the arm. Left out, with a reason: an answer that was not drawn (its request named a version),
one of live by an engine that had not loaded live's version yet, and one of a task that does not exist any more.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from contracts.arms import is_control
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, PROVIDER
from contracts.draws import DrawnVersion, LoggedDraw, UnitKind, hash_of
from contracts.records import Experience, Generation, GenerationBody
from contracts.sampling import Sampling
from contracts.tasks import Task
from pipelines.release.train.answers import known_until
from pipelines.release.train.metrics import SECONDS, UNFELT_SECONDS

LeftOut = Literal["not_drawn", "other_version", "unknown_task", "unreadable", "full"]
CONTROL = "control"
"""In the column `arm`: an answer of `live` that only the learning arm is compared with."""
_BYTES_PER_ID = 4
_LIFT_RATIO = 1.0
LEARNING_RATIO = 4.0
"""Units of `live` for each of the learning arm: whoever meets an unproven version is one of few, so the comparison must not want for others."""

RESCUED: Mapping[str, float] = MappingProxyType({"errors": 1.0})
"""All that an answer says of an arm for which live answered."""
LEARNING_ROWS = 50_000
HELD_ROWS = 200_000
_COUNT_SECONDS = 30.0
_TOGETHER = {LEARNING: LEARNING, CONTROL: LEARNING, **dict.fromkeys((CANARY, PROVIDER, LIVE), CANARY)}


class Evidence(NamedTuple):
    """Where an answer belongs."""

    version: int
    """For which it was drawn."""
    compared_with: int
    unit: str
    unit_kind: UnitKind
    is_control: bool = False
    is_rescued: bool = False
    """Live answered for its arm, wholly or in part."""


def evidence_of(
    record: Generation, tasks: Collection[str], control_ratio: float, secret: bytes
) -> Evidence | LeftOut | None:
    """Whether an answer is compared; None if it is not sampled, or if there is nothing to compare. `secret`: keys the sample."""
    draw = record.draw
    if record.purpose != "user" or record.arm not in {CANARY, HOLDOUT, LEARNING, PROVIDER, LIVE}:
        return None
    if draw is None:
        return None if record.arm in {PROVIDER, LIVE} else "not_drawn"
    if record.arm == PROVIDER:
        compared_with = _compared_with_provider(draw, record.arm_probability, control_ratio, secret)
    else:
        compared_with = _compared_with(record.arm, draw, control_ratio, secret)
    only_learning = compared_with is None and _is_sampled(draw, draw.learning, LEARNING_RATIO, secret)
    if only_learning and draw.learning is not None:
        compared_with = draw.learning.version
    if compared_with is None:
        return None
    is_other = bool({span.version for span in record.spans} - {draw.version})
    if is_other and record.arm == LIVE:
        return "other_version"
    if record.task not in tasks:
        return "unknown_task"
    return Evidence(draw.version, compared_with, draw.unit, draw.unit_kind, only_learning, is_other)


def facts_of(record: Generation, body: GenerationBody | None) -> dict[str, float]:
    """What the record itself says: shares as 0 or 1, tokens and seconds as logarithms.

    An answer that ended early says nothing about lengths. `body` None: it cannot be read.
    """
    found = {
        "truncated": float(record.finish_reason == "length"),
        "errors": float(record.finish_reason == "error"),
        "cancelled": float(record.finish_reason == "cancelled"),
    }
    if record.finish_reason in {"stop", "length"}:
        found[SECONDS] = math.log(UNFELT_SECONDS + max(0.0, record.finished_at - record.created_at))
        if body is not None and record.provided is None:
            found["tokens"] = math.log1p(len(body.completion_ids) // _BYTES_PER_ID)
    return found


def sampling_hash(sampling: Sampling) -> str:
    """Answers are compared only if they were sampled from the same kind of distribution: seed and length do not count."""
    values = (
        sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty,
        sampling.frequency_penalty, sampling.presence_penalty, sorted(sampling.logit_bias.items()), sampling.constraint,
    )  # fmt: skip
    return hash_of(json.dumps(values))


def heard_row(row: Mapping[str, Any], said: Experience, task: Task, age: float) -> dict[str, Any] | None:
    """The columns that a revision of an answer changes; None if it changes nothing. `age`: see `comparing_age`.

    Only what was known at the comparing age counts, so that old answers are not better known than young ones: a later revision
    is ignored. The first one was closed by the task's own window; if that lies within the age, it counts however late it was scored.
    """
    if said.revision <= row["revision"] or row["metrics"] == RESCUED:
        return None
    is_first_of_window = row["revision"] == 0 and task.window_seconds <= age
    if said.scored_at > known_until(row["at"], age) and not is_first_of_window:
        return None
    reward = None
    if said.reward is not None:
        low, high = task.reward.low, task.reward.high
        reward = min(1.0, max(0.0, (said.reward - low) / (high - low)))
    heard = any(score.name in task.signals and score.value is not None for score in said.scores)
    return {
        "reward": reward,
        "status": said.status,
        "scored_at": said.scored_at,
        "revision": said.revision,
        "metrics": {**row["metrics"], "heard": float(heard)},
    }


def _compared_with(arm: str, draw: LoggedDraw, control_ratio: float, secret: bytes) -> int | None:
    """The version that an answer is compared with; None: with none, or with that of the learning arm alone."""
    if arm == LEARNING:
        return draw.version if draw.learning is not None else None
    if arm != LIVE:
        return draw.version
    for other, ratio in ((draw.canary, control_ratio), (draw.holdout, _LIFT_RATIO)):
        if other is not None and _is_sampled(draw, other, ratio, secret):
            return other.version
    return None


def _compared_with_provider(draw: LoggedDraw, probability: float, control_ratio: float, secret: bytes) -> int | None:
    """As below. So many units of a provider are sampled as there would be of live, if the provider has only a part of its users."""
    if draw.canary is None:
        return None
    rest = (1.0 - draw.canary.share) * (1.0 - (draw.holdout.share if draw.holdout is not None else 0.0))
    is_sampled = _is_sampled(draw, draw.canary, control_ratio * rest / probability, secret)
    return draw.canary.version if is_sampled else None


def _is_sampled(draw: LoggedDraw, other: DrawnVersion | None, ratio: float, secret: bytes) -> bool:
    return other is not None and is_control(draw.unit, other.version, other.share, ratio, secret)


class Room:
    """How many answers each comparison may still get, so that neither its table nor its memory grows without end.

    The learning arm gets the first `LEARNING_ROWS` of a version: by then it was seen by enough users to be known. A train gets as many as
    come in its patience, and while operators hold the arms, so that nothing can move, up to `HELD_ROWS`. What is full takes no answer of
    either arm any more, so the arms stay comparable. Rows are counted now and then, so a little more may come.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._taken: Counter[tuple[str, int]] = Counter()
        self._count_at = float("-inf")

    def look(self, count: Callable[[], Mapping[tuple[str, int], int]]) -> None:
        """Count anew if it is time. `count`: rows by arm and by the version that they are compared with."""
        if self._monotonic() < self._count_at:
            return
        self._count_at = self._monotonic() + _COUNT_SECONDS
        self._taken = Counter()
        for (arm, version), num in count().items():
            self._taken[_TOGETHER.get(arm, arm), version] += num

    def take(self, arm: str, compared_with: int, *, is_held: bool) -> bool:
        """Whether one more answer may come; it counts then. `is_held`: operators hold the arms."""
        which = _TOGETHER.get(arm, arm)
        most = LEARNING_ROWS if which == LEARNING else HELD_ROWS if which == CANARY and is_held else None
        if most is not None and self._taken[which, compared_with] >= most:
            return False
        self._taken[which, compared_with] += 1
        return True
