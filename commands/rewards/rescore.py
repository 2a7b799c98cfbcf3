"""`millrace rescore`: replays the log with other graders and shows what would change, before anything uses them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.replay import Mean, Replay, ReplayComparison, is_same
from rewards.repository import GradedRevision
from runtime.settings import Settings, load_settings

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def run_rescore(
    *,
    task: Annotated[str, typer.Option(help="Name of the task whose episodes to replay.")],
    since: Annotated[str, typer.Option(help="How far back: 90s, 30m, 2h, 7d, or a time: 2026-11-20T08:00Z.")] = "24h",
    task_file: Annotated[
        Path | None, typer.Option(help="Task file with the new graders. Default: the graders of the home.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    out: Annotated[
        Path | None, typer.Option(help="Write every episode there, before and after, as JSON lines.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of episodes, oldest first.")] = None,
) -> ReplayComparison:
    """Replay the log with other graders and print what would change. Only reads the log and the database."""
    settings = load_settings(home)
    wanted = _task(settings, task, task_file)
    start = parse_since(since, time.time())
    comparison = ReplayComparison()
    with closing(settings.event_log()) as log, closing(settings.database()) as database, _open_report(out) as file:
        replay = Replay(log, database, wanted)
        for item in replay.run(start, limit):
            comparison.add(item)
            if file is not None:
                file.write(msgspec.json.encode(item).decode() + "\n")
    _print(wanted, start, replay, comparison)
    if out is not None:
        print(f"every episode, before and after: {out}")
    return comparison


def parse_since(text: str, now: float) -> float:
    """UTC epoch seconds of an age (90s, 30m, 2h, 7d) or of an ISO time, in UTC unless it has a zone.

    Raises InvalidSettings: the text is neither, or the time lies in the future.
    """
    if age := _AGE.fullmatch(text.strip()):
        return now - float(age.group(1)) * _UNITS[age.group(2)]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidSettings(
            f"--since {text!r} is neither an age like 90s, 30m, 2h, 7d nor a time like 2026-11-20T08:00Z"
        ) from error
    start = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if start > now:
        raise InvalidSettings(f"--since {text!r} lies in the future")
    return start


def _task(settings: Settings, name: str, file: Path | None) -> Task:
    tasks = load_tasks((file,) if file else settings.tasks)
    if name not in tasks:
        place = str(file) if file else f"the home {settings.home}"
        raise InvalidSettings(f"no task {name!r} in {place}; it has {', '.join(sorted(tasks))}")
    return tasks[name]


@contextmanager
def _open_report(path: Path | None) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    try:
        file = path.open("w")
    except OSError as error:
        raise InvalidSettings(f"--out {path} cannot be written: {error.strerror}") from error
    with file:
        yield file


def _print(task: Task, start: float, replay: Replay, found: ReplayComparison) -> None:
    when = datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    print(f"{found.num} episodes of {task.name} since {when}, through task {task.hash}")
    if replay.num_unreadable:
        print(f"{replay.num_unreadable} records could not be read and were left out")
    if not found.num:
        others = f"; there are episodes of {', '.join(sorted(replay.others))}" if replay.others else ""
        print(f"nothing to compare: go further back with --since, or name another task{others}")
        return
    print(f"{found.num_unchanged} unchanged, {found.num_changed} changed, {found.num_new} not scored before")
    table = Table("", "mean before", "after", "null before", "after", "disagree")
    rows = [("reward", found.before, found.after, found.num_changed)]
    rows += [(name, part.before, part.after, part.disagreements) for name, part in sorted(found.components.items())]
    for name, before, after, num in rows:
        table.add_row(name, _mean(before), _mean(after), str(before.num_null), str(after.num_null), str(num))
    Console().print(table)
    # Lines instead of a table, so that text to copy is not cut to the width of the terminal.
    for name, part in sorted(found.components.items()):
        print(f"{name}: {_labels(part.labels_before)} -> {_labels(part.labels_after)}")
    for (old, new), count in sorted(found.statuses.items()):
        print(f"{count} went from {old} to {new}")
    for item in found.largest:
        if item.before is not None:
            by = ", ".join(_causes(item.before, item.after))
            print(f"{item.key} r{item.revision}: {_verdict(item.before)} -> {_verdict(item.after)} by {by}")
    print("Nothing was changed: no score, no reward and no position was written. To use these graders from now on,")
    print("end `millrace up` and start it with this file as --task (or name it under `tasks` in millrace.toml).")


def _causes(before: GradedRevision, after: GradedRevision) -> list[str]:
    """Components that were added, removed or changed."""
    old, new = before.by_name, after.by_name
    same = {name for name in old.keys() & new.keys() if is_same(old[name].value, new[name].value)}
    return sorted((old.keys() | new.keys()) - same) or ["the rule that combines them"]


def _verdict(graded: GradedRevision) -> str:
    if graded.reward is not None:
        return f"{graded.reward:.3f}"
    return graded.status if graded.fault == "none" else f"{graded.status}: {graded.fault} fault"


def _mean(mean: Mean) -> str:
    return "" if mean.value is None else f"{mean.value:.4f}"


def _labels(labels: Counter[str]) -> str:
    most = [label if len(labels) == 1 else f"{label} ({count})" for label, count in labels.most_common(4)]
    return ", ".join(most) or "none"
