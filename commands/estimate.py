"""`millrace estimate`: how good each version is, by those who spoke, and corrected by audits for those who did not."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from contracts.errors import InvalidSettings
from contracts.settings import load_settings
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.judges.identity import identity_of
from rewards.judges.report import read_report
from rewards.signals.audit import Accuracy, Known, rogan_gladen
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
    Console().print(table_of(task, versions, _accuracy(task)))
    if num_people:
        print(f"mean of {num_people} people over all versions, each counted once: {mean:.3f}")
    return versions


def table_of(task: Task, versions: dict[int, Known], accuracy: Accuracy | None = None) -> Table:
    """Rewards in the task's range, with 95% intervals. `accuracy`: of the judge that audits, if it was measured."""
    table = Table(title=f"reward of {task.name}, {task.reward.low:g} to {task.reward.high:g}")
    columns = ["version", "samples", "spoke", "audited", "of those who spoke", "corrected for all"]
    if accuracy is not None:
        columns.append("and for the judge's errors")
    for column in columns:
        table.add_column(column, justify="right")
    for version, known in versions.items():
        counts = (known.predicted.num, known.said.num, known.difference.num)
        estimates = [known.naive, known.corrected]
        if accuracy is not None:
            estimates.append(rogan_gladen(known.corrected, accuracy))
        words = (_in_words(task, estimate) for estimate in estimates)
        table.add_row(str(version), *(f"{count:,}" for count in counts), *words)
    return table


def _accuracy(task: Task) -> Accuracy | None:
    """Of the judge that audits, if `millrace judge admit` measured it, it says yes or no only, and knows more than a coin."""
    rule = next(judge for judge in task.judges if task.audit is not None and judge.name == task.audit.judge)
    path = Path(task.folder) / (rule.admission or f"{rule.name}.admission.json")
    if len(rule.scale) != len(("no", "yes")) or not path.exists():
        return None
    try:
        report = read_report(path)
    except ValueError as error:
        raise InvalidSettings(f"{error}; write it again with millrace judge admit, or remove it") from error
    figures = report.figures
    if report.identity != identity_of(rule) or figures.sensitivity is None or figures.specificity is None:
        return None
    found = Accuracy(figures.sensitivity.value, figures.specificity.value, figures.num_good, figures.num_bad)
    is_informed = found.sensitivity + found.specificity > 1.0
    return found if is_informed and min(figures.num_good, figures.num_bad) > 0 else None


def _in_words(task: Task, estimate: Estimate) -> str:
    low, span = task.reward.low, task.reward.high - task.reward.low
    start, end = estimate.interval()
    # A handful of audits may differ from what was predicted, all by as much: then neither value nor error means anything.
    if estimate.error == float("inf") or start > 1.0 or end < 0.0:
        return "too few"
    value, start, end = (low + span * min(1.0, max(0.0, share)) for share in (estimate.value, start, end))
    return f"{value:.3f}  ({start:.3f} to {end:.3f})"
