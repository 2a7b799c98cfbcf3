"""The commands about rewards: score by hand, replay, estimate, measure a judge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption

reward_app = typer.Typer()
judge_app = typer.Typer(help="Judges: measure one against labels.", no_args_is_help=True)
reward_app.add_typer(judge_app, name="judge")


@reward_app.command()
def score(
    verifier: Annotated[str | None, typer.Option(help="Which kind; --list shows them.")] = None,
    config: Annotated[Path | None, typer.Option(help="Its config, a .toml or .json file.")] = None,
    task: Annotated[Path | None, typer.Option(help="A task file instead: all its graders, and the reward.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for one case, where a kind can be stopped.")] = 5.0,
    show: Annotated[bool, typer.Option("--list", help="List the kinds of verifiers.")] = False,
) -> None:
    """Run a verifier by hand: JSON lines of prompt, completion, reference on standard input; values on standard output."""
    from commands.rewards.score import print_kinds, run_score  # noqa: PLC0415

    if show:
        print_kinds()
        return
    sys.exit(run_score(verifier=verifier, config=config, task=task, deadline=deadline))


@reward_app.command()
def rescore(  # noqa: PLR0917 options of a command
    task: Annotated[str, typer.Option(help="Name of the task whose episodes are replayed.")],
    since: Annotated[str, typer.Option(help="How far back: 90s, 30m, 2h, 7d, or a time: 2026-11-20T08:00Z.")] = "24h",
    task_file: Annotated[Path | None, typer.Option(help="The new graders; by default those of the home.")] = None,
    home: HomeOption = DEFAULT_HOME,
    out: Annotated[Path | None, typer.Option(help="JSON lines of every episode, before and after.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many episodes, the oldest first.")] = None,
) -> None:
    """Replay the log through other graders and show what would change. Nothing is changed."""
    from commands.rewards.rescore import run_rescore  # noqa: PLC0415

    run_rescore(home=home, task=task, since=since, task_file=task_file, out=out, limit=limit)


@reward_app.command()
def estimate(
    task: Annotated[str, typer.Option(help="Name of a task that audits some of its samples.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """The mean reward of each version: where somebody spoke, and of all answers if the audit measures the reward."""
    from commands.rewards.estimate import run_estimate  # noqa: PLC0415

    run_estimate(home, task, as_json=as_json)


@reward_app.command()
def bursts(
    task: Annotated[str, typer.Option(help="Name of a task with [trust.burst].")],
    home: HomeOption = DEFAULT_HOME,
    clear: Annotated[str | None, typer.Option(help="CLUSTER/SIDE: somebody looked, and its votes count again.")] = None,
) -> None:
    """Votes that weigh nothing because too many came at once."""
    from commands.rewards.bursts import run_bursts  # noqa: PLC0415

    run_bursts(home, task, clear)


@reward_app.command()
def gate(
    task: Annotated[Path, typer.Option(help="The task file.")],
    sentinels: Annotated[Path, typer.Option(help="JSON lines of messages and reference, all of this task.")],
    answers: Annotated[Path, typer.Option(help='Of the new version: {"completion": ...} a line, in their order.')],
    against: Annotated[Path, typer.Option(help="Of the old version, likewise.")],
) -> None:
    """Judge answers as the gate does, and print why. Status 0: accepted; 1: refused; 2: no verdict, by a fault or a mistake."""
    from commands.gate import run_gate  # noqa: PLC0415

    sys.exit(run_gate(task, sentinels, answers, against))


@judge_app.command("admit")
def judge_admit(
    task: Annotated[Path, typer.Option(help="The task file that declares the judge.")],
    judge: Annotated[str, typer.Option(help="Its name there.")],
    labels: Annotated[Path, typer.Option(help="JSON lines: prompt, completion, label; or prompt, pair, better.")],
    out: Annotated[Path | None, typer.Option(help="The report; by default the judge's `admission`.")] = None,
) -> None:
    """Measure a judge: agreement, order flips, master keys. Status 1 if it is below its bar."""
    from commands.rewards.judge import run_admit  # noqa: PLC0415

    sys.exit(run_admit(task, judge, labels, out))
