"""The task files of a home: each can be read, its graders can be built, and its judges answer. In: paths. Out: findings. Waits for: judges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commands.findings import Finding
from contracts.errors import MillraceError
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.judges.registry import new_http, probe
from rewards.worker import RewardsHandler
from runtime.settings import Settings


def task_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per task file, and one per judge."""
    base = Path(settings.base)
    if not (base / "config.json").is_file():
        yield Finding(
            "base", False, True, f"{base} holds no policy: copy it there, or name another at the start with --policy"
        )
    for path in settings.tasks:
        try:
            tasks = load_tasks((path,))
            RewardsHandler(tasks).close()
        except MillraceError as error:
            yield Finding("task", False, True, error.message)
            continue
        for task in tasks.values():
            yield Finding(
                "task", True, True, f"{path}: {task.name}, with graders {', '.join(_graders(task)) or 'none'}"
            )
            yield from _judges(task)


def _graders(task: Task) -> list[str]:
    return [rule.name for rule in (*task.verifiers, *task.judges)]


def _judges(task: Task) -> Iterator[Finding]:
    """Each is asked one short question, as at a start."""
    with new_http() as http:
        for index, rule in enumerate(task.judges):
            try:
                probe(task, index, http)
            except MillraceError as error:
                yield Finding("judge", False, True, error.message)
            else:
                places = ", ".join(endpoint.url for endpoint in rule.endpoints)
                yield Finding("judge", True, True, f"{rule.name!r} of task {task.name!r} answers at {places}")
