"""The gate of each task of this home, and the smallest difference that its newest verdict could detect. Shown on the Policies page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from contracts.errors import InvalidSettings, InvalidTask
from contracts.tasks.loading import load_tasks
from runtime.sentinels import read_sentinels, sentinels_of_home


class TaskGate(NamedTuple):
    """The gate of one task. `sees`: the smallest difference of shares that the newest verdict could detect; None: not known."""

    task: str
    alarm: Literal["", "ungated", "unreadable"]
    says: str
    sees: float | None = None


def read_gates(task_files: tuple[Path, ...], home: Path, newest: Mapping[str, Any] | None) -> list[TaskGate]:
    """One row for each task, or a single row with the mistake in the files. `newest`: details of the newest verdict."""
    try:
        tasks = load_tasks(task_files)
        sentinels = read_sentinels(sentinels_of_home(home), tasks)
    except (InvalidTask, InvalidSettings) as error:
        return [TaskGate("this home", "unreadable", error.message)]
    found = []
    for name, task in tasks.items():
        if name in sentinels.ungated:
            says = f"{sentinels.ungated[name]}: versions ship however bad they are at it"
            found.append(TaskGate(name, "ungated", says))
        else:
            says = f"{', '.join(task.gate_graders)} on {len(sentinels.places_of(name))} sentinels"
            found.append(TaskGate(name, "", says, _sees(name, newest)))
    return found


def _sees(task: str, newest: Mapping[str, Any] | None) -> float | None:
    """The largest over all comparisons but that with the train: the verdict needs each of them."""
    comparisons = ((newest or {}).get("tasks", {}).get(task) or {}).get("comparisons", [])
    least = [item["least_difference"] for item in comparisons if item.get("reference") != "train"]
    return max((value for value in least if value is not None), default=None)
