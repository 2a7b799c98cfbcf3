"""`millrace estimate`: how good each version is, by those who spoke, and corrected by audits for those who did not."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from contracts.errors import InvalidSettings
from contracts.settings import load_settings
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.signals.audit import Known
from rewards.signals.estimates import Estimate
from rewards.signals.repository import known_of, mean_of_people


def run_estimate(home: Path, name: str) -> dict[int, Known]:
    """Print a row for each version of a task; returns what is known of them. Only reads.

    Raises:
        InvalidSettings: there is no such task, or none of its samples is audited.
    """
    settings = load_settings(home)
    tasks = load_tasks(settings.tasks)
    if name not in tasks:
        raise InvalidSettings(f"no task {name!r} in {home}; there are {sorted(tasks)}")
    task = tasks[name]
    if task.audit is None:
        raise InvalidSettings(
            f"task {name!r} audits nothing, so nobody knows what the silent think; add [audit] to {task.where('name')}"
        )
    database = settings.database()
    try:
        with database.snapshot() as connection:
            versions, (mean, num_people) = known_of(connection, name), mean_of_people(connection, name)
    finally:
        database.close()
    Console().print(table_of(task, versions))
    if num_people:
        print(f"mean of {num_people} people over all versions, each counted once: {mean:.3f}")
    return versions


def table_of(task: Task, versions: dict[int, Known]) -> Table:
    """Rewards in the task's range, with 95% intervals."""
    table = Table(title=f"reward of {task.name}, {task.reward.low:g} to {task.reward.high:g}")
    for column in ("version", "samples", "spoke", "audited", "of those who spoke", "corrected for all"):
        table.add_column(column, justify="right")
    for version, known in versions.items():
        counts = (known.predicted.num, known.said.num, known.difference.num)
        estimates = (_in_words(task, known.naive), _in_words(task, known.corrected))
        table.add_row(str(version), *(f"{count:,}" for count in counts), *estimates)
    return table


def _in_words(task: Task, estimate: Estimate) -> str:
    low, span = task.reward.low, task.reward.high - task.reward.low
    if estimate.error == float("inf"):
        return "too few"
    start, end = (low + span * min(1.0, max(0.0, bound)) for bound in estimate.interval())
    return f"{low + span * estimate.value:.3f}  ({start:.3f} to {end:.3f})"
