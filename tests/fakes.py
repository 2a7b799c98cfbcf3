"""Stand-ins behind ports, and records made with sensible defaults."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from contracts.draws import DrawnVersion, LoggedDraw, hash_of
from contracts.errors import Unavailable
from contracts.event_log import EventLog, LoadPosition, LogPlace, LogRecord, Message, TopicState
from contracts.ids import new_completion_id
from contracts.records import Generation, GenerationBody, Signal, Submitter, pack_body, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.tasks import Task
from runtime.log import outbox
from runtime.log.local import LocalConsumer

BOOKING_TASK = Task.model_validate(
    {
        "name": "booking",
        "window_seconds": 10,
        "signals": {
            "edited": {"type": "text", "reward": 0.0},
            "accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
            "comment": {"type": "text", "decisive": False},
            "stars": {"type": "number", "minimum": 1, "maximum": 5, "decisive": False},
        },
        "verifiers": [
            {"name": "shape", "kind": "json_schema", "config": {"schema": {"type": "object", "required": ["party"]}}},
            {"name": "exact", "kind": "json_exact", "role": "watch"},
        ],
    }
)

_numbers = itertools.count()


class Crash(BaseException):
    """A process dies here. Not an Exception, so that nothing in between can swallow it."""


class FullLog:
    """An `EventLog` whose disk is full."""

    # ruff: noqa: ARG002 a port's methods keep their parameters

    num_partitions = 4

    def create_topics(self) -> None:
        pass

    def check_topics(self) -> None:
        pass

    def append(self, messages: Sequence[Message]) -> None:
        raise Unavailable("the log cannot be written (database or disk is full)")

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> LocalConsumer:
        raise NotImplementedError

    def ends(self, topic: str) -> dict[int, int]:
        return dict.fromkeys(range(self.num_partitions), 0)

    def describe(self) -> dict[str, TopicState]:
        return {}

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        return []

    def read_each(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        return {}

    def close(self) -> None:
        pass


def a_generation(text: str = '{"party":2}', **changes: Any) -> Generation:
    """A user's finished generation of version 0."""
    metadata = changes.pop("metadata", {})
    body = GenerationBody(
        messages=[{"role": "user", "content": "a table for two"}],
        text=text,
        prompt_ids=pack_ids([1, 2, 3]),
        completion_ids=changes.pop("completion_ids", pack_ids([4, 5])),
        logprobs=changes.pop("logprobs", pack_floats([-0.5, -0.25])),
        metadata=metadata,
    )
    values: dict[str, Any] = {
        "completion_id": new_completion_id(),
        "choice": 0,
        "tenant": "default",
        "policy": "booking",
        "task": "booking",
        "task_hash": BOOKING_TASK.hash,
        "purpose": "user",
        "arm": "live",
        "arm_probability": 1.0,
        "spans": (Span(0, 0),),
        "sampling": Sampling(temperature=1.0, max_tokens=16),
        "finish_reason": "stop",
        "created_at": 100.0,
        "finished_at": 101.0,
        "engine": "test/1",
        "dtype": "float32",
        "body": pack_body(body),
    }
    return Generation(**(values | changes))


def a_draw(
    version: int, unit: str = "default/ann", *, canary: tuple[int, float] | None = None, holdout: float | None = None
) -> LoggedDraw:
    """The draw of an arm that served `version`. `canary`: its version and share; `holdout`: the share of version 0."""
    return LoggedDraw(
        hash_of(unit),
        "user",
        version,
        None if canary is None else DrawnVersion(*canary),
        None if holdout is None else DrawnVersion(0, holdout),
    )


def asking(text: str, **changes: Any) -> Generation:
    """A user's generation about a prompt of one message."""
    body = GenerationBody(
        messages=[{"role": "user", "content": text}],
        text=changes.pop("answer", "an answer"),
        prompt_ids=pack_ids([1]),
        completion_ids=pack_ids([2]),
        logprobs=pack_floats([-0.5]),
    )
    return a_generation(body=pack_body(body), **changes)


def a_signal(about: Generation, name: str = "accepted", value: Any = True, **changes: Any) -> Signal:
    """A user's signal, received inside the window."""
    values: dict[str, Any] = {
        "id": f"fb_{next(_numbers)}",
        "completion_id": about.completion_id,
        "choice": about.choice,
        "name": name,
        "value": value,
        "at": 102.0,
        "received_at": 102.0,
        "tenant": about.tenant,
        "submitter": Submitter(id="ann"),
    }
    return Signal(**(values | changes))


def everything(log: EventLog, topic: str) -> list[LogRecord]:
    """Every record of a topic."""
    return [record for partition in log.ends(topic) for record in log.read(topic, partition, 0, 1_000_000)]


def message(topic: str, record: Generation | Signal) -> Message:
    """A record, ready to be appended under its own key."""
    return outbox.message(topic, record.key, record)
