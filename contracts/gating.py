"""The gate's questions, and how their answers are graded: what release asks for and rewards gives, without knowing each other.

A sentinel file has a line for each question: {"messages": [...], "reference": ..., "metadata": {...}, "task": "name"}. Only the
messages are always needed; `task` may be left out where one task is gated, and else means the first task of the home.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from contracts.errors import InvalidSettings
from contracts.tasks import Task

_SEED_BYTES = 4
_MAX_SEED = 2**31 - 1
_FIELDS = frozenset(("messages", "reference", "metadata", "task"))


class GateAnswer(NamedTuple):
    """An answer to a sentinel, as graders see it: nothing says who gave it."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, str]
    """With the reference, if the sentinel has one."""
    finish_reason: str = "stop"


class GateScore(NamedTuple):
    """What the graders of a task together say of an answer."""

    value: float | None
    """In [0, 1]; None: a grader could not do its work, which says nothing about the answer."""
    reason: str = ""


class Grade(Protocol):
    """Grades answers of one task: all of them by one version of its graders, none from an earlier time."""

    def __call__(self, task: str, answers: Sequence[GateAnswer]) -> Sequence[GateScore]:
        """A score for each answer, in order."""


class Sentinel(NamedTuple):
    """One question. `seed`: of its sampling, together with a draw."""

    task: str
    messages: list[dict[str, Any]]
    metadata: Mapping[str, str]
    seed: int
    where: str = ""
    """`file:line`."""

    def seed_of(self, draw: int) -> int:
        """The seed of one draw: whoever is compared shares the luck of the same one."""
        digest = hashlib.blake2b(f"{self.seed}:{draw}".encode(), digest_size=_SEED_BYTES).digest()
        return int.from_bytes(digest, "big") & _MAX_SEED

    def answered(self, text: str, finish_reason: str = "stop") -> GateAnswer:
        """An answer to it."""
        return GateAnswer(text, self.messages, self.metadata, finish_reason)


class SentinelFile(NamedTuple):
    """The sentinels, and the hash that tells one set, sampled in one way, from another."""

    items: tuple[Sentinel, ...]
    hash: str
    ungated: Mapping[str, str]
    """Tasks that nothing proves, and why."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The gated tasks, in the order of their first sentinels."""
        return tuple(dict.fromkeys(item.task for item in self.items))

    def places_of(self, task: str) -> list[int]:
        """Where the sentinels of a task stand among the items."""
        return [place for place, item in enumerate(self.items) if item.task == task]


def read_sentinels(path: Path | None, tasks: Mapping[str, Task]) -> SentinelFile:
    """Read and check a sentinel file. `tasks`: of the home, the first is the default.

    Raises:
        InvalidSettings: the file is missing; a line is no sentinel; its task is unknown, or ungated. By file and line.
    """
    if path is None:
        return SentinelFile((), "none", _ungated(tasks, ()))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"[release] sentinels: {path}: {error.strerror}") from error
    gated = [name for name, task in tasks.items() if task.gate_graders]
    default = gated[0] if len(gated) == 1 else next(iter(tasks))
    items: list[Sentinel] = []
    for number, line in enumerate(content.splitlines(), 1):
        where = f"{path}:{number}"
        found = _item(where, line)
        name = found.get("task", default)
        _check_task(where, name, tasks)
        items.append(
            Sentinel(name, found["messages"], _metadata(where, found), _seed(content, len(items)), where),
        )
    return SentinelFile(tuple(items), _hash(content, items, tasks), _ungated(tasks, items))


def _item(where: str, line: bytes) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{where}: not JSON: {error}") from error
    usual = '{"messages": [{"role": ..., "content": ...}], "reference": ..., "task": ...}'
    if not isinstance(item, dict) or not isinstance(item.get("messages"), list) or not item["messages"]:
        raise InvalidSettings(f"{where}: a sentinel is {usual}")
    if unknown := sorted(item.keys() - _FIELDS):
        raise InvalidSettings(f"{where}: a sentinel has no field {unknown[0]!r}; it is {usual}")
    if not all(isinstance(message, dict) and "role" in message for message in item["messages"]):
        raise InvalidSettings(f"{where}: each of `messages` is an object with role and content")
    return item


def _metadata(where: str, item: Mapping[str, Any]) -> dict[str, str]:
    metadata = item.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidSettings(f"{where}: `metadata` is an object of texts")
    texts = {name: _text(value) for name, value in metadata.items()}
    return texts if item.get("reference") is None else {**texts, "reference": _text(item["reference"])}


def _check_task(where: str, name: object, tasks: Mapping[str, Task]) -> None:
    if not isinstance(name, str) or name not in tasks:
        raise InvalidSettings(f"{where}: no task is called {name!r}; there are {', '.join(sorted(tasks))}")
    if not tasks[name].gate_graders:
        raise InvalidSettings(
            f"{where}: task {name!r} is ungated: {_NOTHING_PROVES}; add a verifier or an admitted judge that does, or take "
            "this sentinel out"
        )


_NOTHING_PROVES = "none of its graders says whether an answer is right"


def _ungated(tasks: Mapping[str, Task], items: Iterable[Sentinel]) -> dict[str, str]:
    asked = {item.task for item in items}
    return {
        name: "no sentinel is of this task" if task.gate_graders else _NOTHING_PROVES
        for name, task in tasks.items()
        if name not in asked
    }


def _hash(content: bytes, items: Iterable[Sentinel], tasks: Mapping[str, Task]) -> str:
    """Answers that were sampled in another way are answers to another set."""
    names = sorted({item.task for item in items})
    sampling = json.dumps({name: tasks[name].sampling.model_dump(mode="json") for name in names}, sort_keys=True)
    return hashlib.blake2b(content + b"\0" + sampling.encode(), digest_size=8).hexdigest()


def _seed(content: bytes, place: int) -> int:
    digest = hashlib.blake2b(content, digest_size=_SEED_BYTES, salt=place.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") & _MAX_SEED


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
