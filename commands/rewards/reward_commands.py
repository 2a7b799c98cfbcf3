"""The options of the commands about rewards. Each command imports only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption

judge_app = typer.Typer(help="Measure a judge against labels.", no_args_is_help=True)


def score(
    verifier: Annotated[str | None, typer.Option(help="Kind of the verifier; --list shows them.")] = None,
    config: Annotated[Path | None, typer.Option(help="Config of the verifier, a .toml or .json file.")] = None,
    task: Annotated[
        Path | None, typer.Option(help="Task file instead of a verifier: all its graders, and the reward.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for one case, for kinds that can be stopped.")] = 5.0,
    show: Annotated[bool, typer.Option("--list", help="List the kinds of verifiers.")] = False,
) -> int:
    """Grade answers with a verifier or a task.

    Reads JSON lines with prompt, completion and reference from standard input; writes the scores to standard output.
    """
    from commands.rewards.score import print_kinds, run_score  # noqa: PLC0415

    if show:
        print_kinds()
        return 0
    return run_score(verifier=verifier, config=config, task=task, deadline=deadline)


def rescore(  # noqa: PLR0917 options of a command
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
) -> None:
    """Replay the log with other graders and show what would change. Changes nothing."""
    from commands.rewards.rescore import run_rescore  # noqa: PLC0415

    run_rescore(home=home, task=task, since=since, task_file=task_file, out=out, limit=limit)


def estimate(
    task: Annotated[str, typer.Option(help="Name of a task with [audit].")],
    home: HomeOption = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Estimate the mean reward of each version: of answers with signals, and of all answers if the audit measures the reward."""
    from commands.rewards.estimate import run_estimate  # noqa: PLC0415

    run_estimate(home, task, as_json=as_json)


def bursts(
    task: Annotated[str, typer.Option(help="Name of a task with [trust.burst].")],
    home: HomeOption = DEFAULT_HOME,
    clear: Annotated[
        str | None, typer.Option(help="CLUSTER/SIDE: let the votes of this burst count again, after you checked them.")
    ] = None,
) -> None:
    """List the bursts of a task: votes that count for nothing because too many came at once."""
    from commands.rewards.bursts import run_bursts  # noqa: PLC0415

    run_bursts(home, task, clear)


@judge_app.command("admit")
def judge_admit(
    task: Annotated[Path, typer.Option(help="The task file that declares the judge.")],
    judge: Annotated[str, typer.Option(help="Name of the judge in the task file.")],
    labels: Annotated[
        Path, typer.Option(help="JSON lines with prompt, completion, label; or with prompt, pair, better.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the report. Default: the judge's `admission` file.")
    ] = None,
) -> int:
    """Measure a judge: agreement, order flips, master keys. Exit status 1 if it is below its bar."""
    from commands.rewards.judge import run_admit  # noqa: PLC0415

    return run_admit(task, judge, labels, out)
