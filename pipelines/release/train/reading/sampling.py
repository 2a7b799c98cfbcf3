"""Which answers of users are evidence, and what each says: one row of `train_answer`. Pure.

    canary    all of them                  compared_with: its own version, which is the train's
    holdout   all of them                  compared_with: its own version
    live      those of sampled units       compared_with: the version of the train, or without one that of the hold-out
    learning  all of them                  compared_with: its own version
    control   of live, of sampled units    compared_with: the version of the learning arm; these are compared with nothing else

Units of `live` are sampled by hash, never by what was answered: `control_ratio` times as many as the canary has, and while there is no
canary as many as the hold-out has. A reader of the lift takes every row of `live`, whatever it is compared with. The learning arm has
four times as many units of `live` as its own: rows of `control`, and those among the rows of `live` that its hash chooses. All of this depends on
the time of the draw alone (`arm_history.py`). The hash is taken of the column `unit`, so the sample can be checked from the table.

Left out, with a reason: an answer that was not drawn (its request named a version), one whose tokens are not all of the version that
its arm had (a swap in the middle), and one of a task that does not exist any more.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from contracts.arms import UnitKind, is_control, unit_of
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE
from contracts.records import Experience, Generation, GenerationBody
from contracts.sampling import Sampling
from contracts.tasks import Task
from pipelines.release.train.answers import known_until
from pipelines.release.train.reading.arm_history import ArmHistory

LeftOut = Literal["not_drawn", "other_version", "unknown_task", "unreadable", "full"]
CONTROL = "control"
"""In the column `arm`: an answer of `live` that only the learning arm is compared with."""
_BYTES_PER_ID = 4
_SHORTEST_SECONDS = 1e-3
_LIFT_RATIO = 1.0
LEARNING_RATIO = 4.0
"""Units of `live` for each of the learning arm: whoever meets an unproven version is one of few, so the comparison must not want for others."""
_DIGEST_BYTES = 8


class Evidence(NamedTuple):
    """Where an answer belongs."""

    compared_with: int
    unit: str
    unit_kind: UnitKind
    is_control: bool = False
    """See `CONTROL`."""


def evidence_of(
    record: Generation, history: ArmHistory, tasks: Mapping[str, Task], unit: UnitKind, control_ratio: float
) -> Evidence | LeftOut | None:
    """Whether an answer is compared; None if it is not sampled, or if there is nothing to compare."""
    at = record.created_at
    guarded = history.guarded(at)
    arms = ({CANARY, HOLDOUT, LIVE} if history.compared(at) else set()) | ({LEARNING, LIVE} if guarded else set())
    if record.purpose != "user" or record.arm not in arms:
        return None
    drawn = unit_of(
        unit,
        tenant=record.tenant,
        person=record.person,
        session_id=record.session_id,
        completion_id=record.completion_id,
    )
    name = hash_of(drawn.name)
    held = history.at(record.arm, at)
    only_learning = False
    if record.arm == LIVE:
        compared_with = _control_of(name, history, at, control_ratio)
        if compared_with is None:
            if guarded is None or not is_control(name, guarded.version, guarded.share, LEARNING_RATIO):
                return None
            compared_with, only_learning = guarded.version, True
    else:
        compared_with = held.version if held is not None else -1
    if record.arm_probability >= 1.0:
        return "not_drawn"
    if held is None or {span.version for span in record.spans} - {held.version}:
        return "other_version"
    if record.task not in tasks:
        return "unknown_task"
    return Evidence(compared_with, name, drawn.kind, only_learning)


def facts_of(record: Generation, body: GenerationBody | None) -> dict[str, float]:
    """What the record itself says: shares as 0 or 1, tokens and seconds as logarithms.

    An answer that ended early says nothing about lengths. `body` None: it cannot be read.
    """
    found = {"truncated": float(record.finish_reason == "length"), "errors": float(record.finish_reason == "error")}
    if record.finish_reason in {"stop", "length"}:
        found["seconds"] = math.log(max(_SHORTEST_SECONDS, record.finished_at - record.created_at))
        if body is not None:
            found["tokens"] = math.log1p(len(body.completion_ids) // _BYTES_PER_ID)
    return found


def hash_of(text: str) -> str:
    """16 hex digits, so that no name of a person stands in the table."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_DIGEST_BYTES).hexdigest()


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
    if said.revision <= row["revision"]:
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


def _control_of(unit: str, history: ArmHistory, at: float, control_ratio: float) -> int | None:
    """The version that a unit of `live` is compared with; None if it is not sampled."""
    for arm, ratio in ((CANARY, control_ratio), (HOLDOUT, _LIFT_RATIO)):
        other = history.drawn(arm, at)
        if other is not None and is_control(unit, other.version, other.share, ratio):
            return other.version
    return None
