"""Reads and validates task files. Messages name file and line of a mistake."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from contracts.errors import InvalidTask
from contracts.files import read_small
from contracts.tasks import Task
from contracts.tasks.section import Misplaced, Source, mistake_of

MAX_BYTES = 2**22
"""Of a task file."""


def load_tasks(paths: tuple[Path, ...]) -> dict[str, Task]:
    """Read task files; the first is the default. Raises InvalidTask: names file, line and field of the first mistake."""
    tasks: dict[str, Task] = {}
    for path in paths:
        task = _load(path)
        if task.name in tasks:
            raise InvalidTask(f"{path}: another file already declares task {task.name!r}; rename one")
        tasks[task.name] = task
    return tasks


def _load(path: Path) -> Task:
    try:
        text = read_small(path, MAX_BYTES).decode()
    except OSError as error:
        raise InvalidTask(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidTask(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    source = Source(path, text)
    try:
        task = Task.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"] if part not in {"float", "constrained-float"})
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, Misplaced):
            location += cause.location
        present = location[:-1] if first["type"] == "missing" else location
        raise InvalidTask(
            f"{source.where(present)}: {'.'.join(map(str, location)) or 'task'}: {mistake_of(first)}"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, a number of 5,000 digits, 5,000 brackets
        raise InvalidTask(f"{path}: {error}") from error
    task._source = source  # noqa: SLF001 not a field of the file
    return task
