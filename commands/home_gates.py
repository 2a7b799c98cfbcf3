"""The gate of each task of a home: checked before a start, and described in one line per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from contracts.errors import InvalidSettings, InvalidTask
from contracts.gating import SentinelFile
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from pipelines.release.rules import FALSE_REFUSALS
from pipelines.release.settings import ReleaseSettings
from pipelines.release.statistics import least_seen
from rewards.gating import GateGraders
from runtime.sentinels import read_sentinels
from runtime.settings import Settings, load_section
from runtime.settings_file import settings_file

DISCORDANCES = (0.08, 0.15, 0.30)
"""Shares of the sentinels on which two versions may differ. There are no data yet, so the power is given for each."""
_REFERENCES = 2


class GateSummary(NamedTuple):
    """The gate of one task, in words."""

    task: str
    is_gated: bool
    says: str


def check_gate(task_files: Sequence[Path], home: Path, sentinels: Path | None) -> ReleaseSettings:
    """The section [release] for a start, after a check that its sentinels, by default those of the home, can be graded.

    Raises InvalidTask, InvalidSettings: a mistake in a task or a sentinel, with file and line.
    """
    release = ReleaseSettings() if sentinels is None else ReleaseSettings(sentinels=sentinels.resolve())
    held = load_section(home, "release", ReleaseSettings) if settings_file(home).exists() else release
    tasks = load_tasks(tuple(task_files))
    found = read_sentinels(release.sentinels or held.sentinels, tasks)
    with closing(GateGraders({name: task for name, task in tasks.items() if task.gate_graders})) as graders:
        graders.check(found)
    return release


def gates_of(tasks: Mapping[str, Task], sentinels: SentinelFile) -> list[GateSummary]:
    """One entry per task."""
    return [_gate(task, sentinels) for task in tasks.values()]


def gates_of_home(settings: Settings) -> list[GateSummary]:
    """One entry per task of a home. If its tasks or sentinels are wrong, one entry that says what is wrong."""
    try:
        tasks = load_tasks(settings.tasks)
        own = load_section(settings.home, "release", ReleaseSettings)
        return gates_of(tasks, read_sentinels(own.sentinels, tasks))
    except (InvalidTask, InvalidSettings) as error:
        return [GateSummary("gate", False, error.message)]


def print_gates(console: Console, settings: Settings) -> None:
    """Print one line per task. Ungated tasks are yellow."""
    for gate in gates_of_home(settings):
        line = escape(f"task {gate.task}: {gate.says}")
        console.print(f"  {line}" if gate.is_gated else f"  [yellow]{line}[/]")


def _gate(task: Task, sentinels: SentinelFile) -> GateSummary:
    if task.name in sentinels.ungated:
        says = f"UNGATED: {sentinels.ungated[task.name]}; every candidate ships, however bad it is at {task.name}"
        remedy = "; to gate it, give test cases with --sentinels FILE (docs/rewards.md, Sentinels)"
        return GateSummary(task.name, False, says + (remedy if task.gate_graders else ""))
    num = len(sentinels.places_of(task.name))
    alpha = FALSE_REFUSALS / (len(sentinels.tasks) * _REFERENCES)
    detectable = [least_seen(num, discordance, alpha) for discordance in DISCORDANCES]
    points = " / ".join("nothing" if least is None else f"{100 * least:.1f}" for least in detectable)
    shares = " / ".join(f"{discordance:.0%}" for discordance in DISCORDANCES)
    says = f"gated by {', '.join(task.gate_graders)} on {num} sentinels"
    detects = f"detects losses of {points} points where versions differ on {shares} of them"
    return GateSummary(task.name, True, f"{says}; {detects}")
