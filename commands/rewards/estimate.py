"""`millrace estimate`: the mean reward of each version, over answers with signals and over all.

In: what the reward worker stored. Out: a table, or one JSON object.

Rewards are those of the first revisions, in the task's range, by gates, graders and users together. For answers without a
reward the judge of [audit] stands in, if it measures the same as the reward. If it does not, the last column is refused,
with status 1.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.judges.report import identity_of, read_report
from rewards.signals.audit import Accuracy, VersionAudit, together, why_different
from rewards.signals.estimates import Estimate, mean_of
from rewards.signals.repository import known_of, mean_of_people
from runtime.settings import Settings, load_settings

_FEW = 30
"""Equal values show no spread; with at least so many, their mean is taken as exact."""


def run_estimate(
    name: Annotated[str, typer.Option("--task", help="Name of a task with [audit].")],
    home: HomeOption = DEFAULT_HOME,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> dict[int, VersionAudit]:
    """Estimate the mean reward of each version: of answers with signals, and of all answers if the audit measures the reward.

    Only reads. If the audit does not measure the reward, the last column is refused, with exit status 1.
    """
    settings = load_settings(home)
    task = task_of(settings, name, home)
    if task.audit is None:
        raise InvalidSettings(
            f"task {name!r} audits nothing, so the opinion of silent users is unknown; add [audit] to {task.where('name')}"
        )
    with settings.snapshot() as connection:
        versions, people = known_of(connection, name), mean_of_people(connection, name)
    accuracy = _accuracy(task)
    refused = why_different(together(versions.values()), accuracy) if versions else ""
    found = as_rows(task, versions, accuracy, refused)
    if as_json:
        mean = people[0] if people[1] else None
        print(json.dumps(found | {"people": {"num": people[1], "mean_of_what_each_said": mean}}))
    else:
        Console().print(table_of(task, found))
        if people[1]:
            counted = f"mean reward by {people[1]:,} people, each counted once, over all versions"
            print(f"{counted}: {people[0]:.3f} (without graders)")
    if refused:
        raise InvalidSettings(
            f"the mean over all answers is not estimated: {refused}; let judge {task.audit.judge!r} judge what the reward "
            f"measures ({task.where('audit', 'judge')}), or use the audit by itself"
        )
    return versions


def task_of(settings: Settings, name: str, home: Path) -> Task:
    """A task of a home by its name. Raises InvalidSettings: there is none."""
    tasks = load_tasks(settings.tasks)
    if name not in tasks:
        raise InvalidSettings(f"no task {name!r} in {home}; there are {sorted(tasks)}")
    return tasks[name]


def as_rows(task: Task, versions: dict[int, VersionAudit], accuracy: Accuracy | None, refused: str) -> dict[str, Any]:
    """All figures, in rewards. An interval has `value`, `low` and `high`, or is null if there is too little data."""
    judge = task.audit.judge if task.audit is not None else ""
    return {
        "task": task.name,
        "unit": f"reward of task {task.name!r}, first revision of each answer",
        "range": [task.reward.low, task.reward.high],
        "confidence": 0.95,
        "audit": judge,
        "corrected_for_errors_of_the_judge": accuracy is not None,
        "refused": refused or None,
        "versions": [
            {
                "version": version,
                "num_answers": known.num,
                "num_rewarded": known.rewarded.num,
                "num_spoke": known.said.num,
                "num_audited": known.audited.num + known.audited_silent.num,
                "where_somebody_spoke": _interval(task, mean_of(known.said), known.said.num),
                "where_there_is_a_reward": _interval(task, mean_of(known.rewarded), known.rewarded.num),
                "of_all": None if refused else _interval(task, known.corrected(accuracy), _num_behind(known)),
            }
            for version, known in versions.items()
        ],
    }


def table_of(task: Task, found: dict[str, Any]) -> Table:
    """Rewards in the task's range, with 95% intervals."""
    low, high = found["range"]
    table = Table(
        title=f"mean reward of answers of {task.name}, from {low:g} to {high:g}, 95% t-intervals",
        caption=f"of all: judge {found['audit']!r} stands in where there is no reward"
        + (", its errors corrected" if found["corrected_for_errors_of_the_judge"] else ""),
    )
    counts = ("answers", "rewarded", "spoke", "audited")
    means = ["where_somebody_spoke", "where_there_is_a_reward", *([] if found["refused"] else ["of_all"])]
    for column in ("version", *counts, *(name.replace("_", " ") for name in means)):
        table.add_column(column, justify="right")
    for row in found["versions"]:
        numbers = (f"{row[f'num_{name}']:,}" for name in counts)
        table.add_row(str(row["version"]), *numbers, *(_in_words(row[name]) for name in means))
    return table


def _accuracy(task: Task) -> Accuracy | None:
    """Of the audit judge, if `millrace judge admit` measured it, it has two levels and is better than chance."""
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


def _num_behind(known: VersionAudit) -> int:
    """Number of values in the smaller stratum of the mean over all answers."""
    if not known.silent.num:
        return known.rewarded.num
    return min(sums.num for sums in (known.rewarded, known.audited_silent) if sums.num or sums is known.audited_silent)


def _interval(task: Task, estimate: Estimate, num: int) -> dict[str, float] | None:
    start, end = estimate.interval()
    is_flat = estimate.error == 0.0 and num < _FEW
    if not math.isfinite(start) or is_flat or start > 1.0 or end < 0.0:
        return None
    low, span = task.reward.low, task.reward.high - task.reward.low
    shares = {"value": estimate.value, "low": start, "high": end}
    return {name: low + span * min(1.0, max(0.0, share)) for name, share in shares.items()}


def _in_words(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "too few"
    return f"{interval['value']:.3f}  ({interval['low']:.3f} to {interval['high']:.3f})"
