"""`millrace judge admit`: measures a judge against labels, and writes the report that a task file needs to let it decide."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from contracts.errors import InvalidTask, InvalidValue
from contracts.tasks import Task
from contracts.tasks.judges import JudgeRule
from contracts.tasks.loading import load_tasks
from rewards.judges.admission import Progress, measure
from rewards.judges.labels import read_labels
from rewards.judges.registry import new_http, probe, trial_judge
from rewards.judges.report import ENOUGH_LABELS, Figure, Figures, Report, identity_of, shortfalls

_TENTHS = 10
app = typer.Typer(help="Measure a judge against labels.", no_args_is_help=True)


@app.command("admit")
def run_admit(
    task_file: Annotated[Path, typer.Option("--task", help="The task file that declares the judge.")],
    judge: Annotated[str, typer.Option(help="Name of the judge in the task file.")],
    labels_file: Annotated[
        Path, typer.Option("--labels", help="JSON lines with prompt, completion, label; or with prompt, pair, better.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the report. Default: the judge's `admission` file.")
    ] = None,
) -> int:
    """Measure a judge: agreement, order flips, master keys. Exit status 1 if it is below its bar."""
    (task,) = load_tasks((task_file,)).values()
    index = _index(task, task_file, judge)
    rule = task.judges[index]
    labels = read_labels(labels_file, rule)
    path = out or Path(task.folder) / (rule.admission or f"{rule.name}.admission.json")
    with new_http() as http:
        probe(task, index, http)
        figures = measure(rule, labels, lambda other: trial_judge(task, other, http), _progress(judge))
        fallback = None
        if rule.fallback:
            # A rule whose only endpoint is the fallback.
            alone = rule.model_copy(update={"url": None, "model": None, "members": (rule.fallback,), "fallback": None})
            fallback = measure(alone, labels, lambda other: trial_judge(task, other, http), _progress("its fallback"))
    report = Report(
        task=task.name,
        judge=rule.name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        labels_file=labels_file.name,
        labels_sha256=labels.sha256,
        identity=identity_of(rule),
        figures=figures,
        fallback=fallback,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise InvalidValue(f"{path}: {error.strerror}; choose another --out") from error
    _print_report(rule, report, path, task.folder)
    return 1 if shortfalls(rule, report) else 0


def _print_report(rule: JudgeRule, report: Report, path: Path, folder: str) -> None:
    console = Console(soft_wrap=True)
    console.print(_table(f"judge {report.judge}", rule, report.figures))
    if report.fallback:
        console.print(_table(f"fallback of {report.judge}", rule, report.fallback))
    if report.figures.num_labels < ENOUGH_LABELS:
        print(f"{report.figures.num_labels} labels: the intervals are wide; {ENOUGH_LABELS} or more are better")
    for reason in (failed := shortfalls(rule, report)):
        print(f"BELOW THE BAR {reason}")
    print(f"written: {path}")
    if not failed:
        print(f'admitted; in the task file, under this judge: admission = "{os.path.relpath(path, folder)}"')


def _table(title: str, rule: JudgeRule, figures: Figures) -> Table:
    table = Table("figure", "value", "95% interval", "bar", "", title=title)
    bar = rule.bar
    _row(table, "kappa", figures.kappa)
    kappa = figures.weighted_kappa
    _row(table, "kappa, weighted", kappa, f">= {bar.kappa:g}", None if kappa is None else kappa.value >= bar.kappa)
    _row(table, "sensitivity", figures.sensitivity)
    _row(table, "specificity", figures.specificity)
    for name, figure, limit in (
        (f"order flips ({figures.num_pairs} comparisons)", figures.order_flips, bar.order_flips),
        (f"master keys that pass ({figures.num_master_keys})", figures.master_keys, bar.master_keys),
    ):
        _row(table, name, figure, f"<= {limit:g}", None if figure is None else figure.value <= limit)
    table.add_row("labels with a verdict", f"{figures.answered:.3f} of {figures.num_labels}", "", "", "")
    table.add_row("replies without a verdict", f"{figures.unparsable:.3f}", "", "", "")
    cost = f"{figures.num_calls} calls, {figures.num_tokens} tokens, {figures.money:g} money, {figures.seconds:.1f} s"
    table.add_row("cost", cost, "", "", "")
    return table


def _row(table: Table, name: str, figure: Figure | None, bar: str = "", passes: bool | None = None) -> None:
    if figure is None:
        table.add_row(name, "not measured", "", bar, "")
        return
    verdict = "" if passes is None else "pass" if passes else "FAIL"
    table.add_row(name, f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f}", bar, verdict)


def _progress(name: str) -> Progress:
    """Prints a line to standard error at every tenth."""
    said = -1

    def tell(done: int, total: int) -> None:
        nonlocal said
        tenth = done * _TENTHS // max(1, total)
        if tenth > said:
            said = tenth
            print(f"{name}: {done} of {total} answers judged", file=sys.stderr, flush=True)

    return tell


def _index(task: Task, task_file: Path, judge: str) -> int:
    names = [rule.name for rule in task.judges]
    if judge not in names:
        there_are = f"it has {', '.join(names)}" if names else "it has none; declare one under [[judges]]"
        raise InvalidTask(f"{task_file}: no judge is called {judge!r}; {there_are}")
    return names.index(judge)
