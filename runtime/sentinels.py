"""Sentinel files: the gate's questions, read and checked.

A sentinel file has a line for each question: {"messages": [...], "reference": ..., "metadata": {...}, "task": "name"}. Only the
messages are required. A line without `task` belongs to the only gated task or, if there are several, to the first task of the home.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InvalidSettings
from contracts.files import read_small
from contracts.gating import Sentinel, SentinelFile, seed_from
from contracts.tasks import Task
from runtime.settings import read_home_settings

_FIELDS = frozenset(("messages", "reference", "metadata", "task"))


def sentinels_of_home(home: Path) -> Path | None:
    """The sentinel file that a home was started with."""
    content = read_home_settings(home) or {}
    path = content.get("release", {}).get("sentinels")
    return None if path is None else Path(path)


def read_sentinels(path: Path | None, tasks: Mapping[str, Task]) -> SentinelFile:
    """Read and check a sentinel file. The first of `tasks` is the default. Raises InvalidSettings, with file and line."""
    if path is None:
        return SentinelFile((), "none", _ungated(tasks, ()))
    try:
        content = read_small(path)
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
        items.append(Sentinel(name, found["messages"], _metadata(where, found), seed_from(content, len(items)), where))
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
    """Over the sampling too: with other sampling the same questions are another set."""
    names = sorted({item.task for item in items})
    sampling = json.dumps({name: tasks[name].sampling.model_dump(mode="json") for name in names}, sort_keys=True)
    return hashlib.blake2b(content + b"\0" + sampling.encode(), digest_size=8).hexdigest()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
