"""`millrace bursts`: lists votes that weigh nothing because too many came at once, and lets them count again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.tasks.loading import load_tasks
from rewards.signals.repository import clear_burst, quarantined_paces
from runtime.settings import load_settings


def run_bursts(
    name: Annotated[str, typer.Option("--task", help="Name of a task with [trust.burst].")],
    home: HomeOption = DEFAULT_HOME,
    clear: Annotated[
        str | None, typer.Option(help="CLUSTER/SIDE: let the votes of this burst count again, after you checked them.")
    ] = None,
) -> None:
    """List the bursts of a task: votes that count for nothing because too many came at once."""
    settings = load_settings(home)
    tasks = load_tasks(settings.tasks)
    if name not in tasks:
        raise InvalidSettings(f"no task {name!r} in {home}; there are {sorted(tasks)}")
    task = tasks[name]
    if (rule := task.trust.burst) is None:
        raise InvalidSettings(f"task {name!r} does not detect bursts; add [trust.burst] to {task.where('name')}")
    if clear is not None:
        cluster, _, side = clear.rpartition("/")
        with settings.transaction() as connection:
            if not clear_burst(connection, name, cluster, side):
                raise InvalidSettings(
                    f"task {name!r} has no burst {clear!r}; `millrace bursts --task {name}` lists them"
                )
        print(f"votes of {clear} count again")
        return
    with settings.snapshot() as connection:
        found = quarantined_paces(connection, name)
    if not found:
        print(f"no burst in task {name!r}: every vote counts")
        return
    table = Table("burst", "votes in its interval", "weighs nothing until", title=f"bursts of {name}")
    for cluster, side, pace in found:
        until = datetime.fromtimestamp((pace.quarantined_until + 1) * rule.bucket_seconds, UTC)
        table.add_row(f"{cluster}/{side}", f"{pace.num:,}", until.strftime("%Y-%m-%d %H:%M UTC"))
    Console().print(table)
