"""What gates each task of this home, and what the newest verdict could see: said on the Policies page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from contracts.errors import InvalidSettings, InvalidTask
from contracts.tasks.loading import load_tasks
from runtime.sentinels import read_sentinels, sentinels_of_home


class TaskGate(NamedTuple):
    """One task. `sees`: the least difference that the newest verdict could see, in points; None if it is not known."""

    task: str
    alarm: Literal["", "ungated", "unreadable"]
    says: str
    sees: float | None = None


def read_gates(task_files: tuple[Path, ...], home: Path, newest: Mapping[str, Any] | None) -> list[TaskGate]:
    """A row for each task; one that says what is wrong with the files, if something is. `newest`: details of a verdict."""
    try:
        tasks = load_tasks(task_files)
        sentinels = read_sentinels(sentinels_of_home(home), tasks)
    except (InvalidTask, InvalidSettings) as error:
        return [TaskGate("this home", "unreadable", error.message)]
    found = []
    for name, task in tasks.items():
        if name in sentinels.ungated:
            found.append(
                TaskGate(name, "ungated", f"{sentinels.ungated[name]}: versions ship however bad they are at it")
            )
            continue
        says = f"{', '.join(task.gate_graders)} on {len(sentinels.places_of(name))} sentinels"
        found.append(TaskGate(name, "", says, _sees(name, newest)))
    return found


def _sees(task: str, newest: Mapping[str, Any] | None) -> float | None:
    """The largest over what it was compared with: the weaker of the two looks."""
    comparisons = ((newest or {}).get("tasks", {}).get(task) or {}).get("comparisons", [])
    least = [item["least_difference"] for item in comparisons]
    return max((value for value in least if value is not None), default=None)
