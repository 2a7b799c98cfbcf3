"""The command line. `millrace --help` lists the commands; each is imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from contracts.errors import MillraceError
from engines.registry import FOLLOWED
from runtime.private_files import create_private_files


class Entry(NamedTuple):
    """A line of `millrace --help`. `target`: module and name of a function, or of a `Typer` with subcommands."""

    target: str
    help: str
    panel: str
    is_hidden: bool = False


_START, _LOOK, _CHANGE, _REWARDS = "Start", "Look", "Change", "Rewards and the gate"
_PROCESS = "commands.process:process"
COMMANDS: Mapping[str, Entry] = MappingProxyType({
    "demo": Entry("examples.demo.command:demo", "Watch a small model learn from simulated users, in five minutes.", _START),
    "demo-agent": Entry("examples.demo.agent:demo_agent", "Watch an agent with tools learn from how its sessions end.", _START),
    "demo-takeover": Entry("examples.demo.takeover:demo_takeover", "Watch an own model learn from a provider's log, and take over.", _START),
    "up": Entry("commands.up:up", "Start Millrace with your own policy and tasks.", _START),
    "init": Entry("commands.init:init", "Prepare a home for processes that containers or systemd start.", _START),
    "learn": Entry("commands.learn.command:learn", "Warm start: learn from the log's edits and accepted answers, as version 1.", _START),
    "replica": Entry("commands.replica:run_replica", "Keep a folder in step with the published weights.", _START),
    "link": Entry("commands.link:link", "Print a fresh link to the dashboard of a home.", _LOOK),
    "doctor": Entry("commands.doctor:doctor", "Check this machine and a home; say how to fix what is missing.", _LOOK),
    "gpus": Entry("commands.cards.command:gpus", "Show which card works for whom, since when and why, and what comes next.", _LOOK),
    "audit": Entry("commands.audit:run_audit", "Account for every generation and signal.", _LOOK),
    "log": Entry("commands.log:app", "Print records of the log; go on after a lost log.", _LOOK),
    "dead-letters": Entry("commands.dead_letters:app", "List, retry or skip records that no worker could process.", _LOOK),
    "policy": Entry("commands.policy:app", "List versions, promote one, roll back; freeze or pin the arms.", _CHANGE),
    "export": Entry("commands.export:export", "Write a version as a checkpoint or an adapter, with a README.", _LOOK),
    "import": Entry("commands.imports.command:run_import", "Log answers that other systems gave; take an import back.", _CHANGE),
    "keys": Entry("commands.keys:app", "Make API keys; manage the keys that sign versions.", _CHANGE),
    "backup": Entry("commands.backup:backup", "Write one file with everything of a home, while it runs.", _CHANGE),
    "restore": Entry("commands.restore:restore", "Make a home from a backup.", _CHANGE),
    "database": Entry("commands.database:app", "Drop old days from the database.", _CHANGE),
    "score": Entry("commands.rewards.score:score", "Grade answers from standard input with a verifier or task.", _REWARDS),
    "rescore": Entry("commands.rewards.rescore:run_rescore", "Show what other graders would change.", _REWARDS),
    "bursts": Entry("commands.rewards.bursts:run_bursts", "List votes that came too fast and count for nothing.", _REWARDS),
    "judge": Entry("commands.rewards.judge:app", "Measure a judge against labels.", _REWARDS),
    "gate": Entry("commands.gate:gate", "Compare the answers of two versions as the gate does.", _REWARDS),
    **{
        name: Entry(_PROCESS, f"Run the process {name} in the foreground.", "", is_hidden=True)
        for name in ("engine", *FOLLOWED, "web", "inference", "feedback", "dashboard", "episodes", "rewards", "release")
    },
    "training": Entry("commands.training:app", "Take a step that the trainer's guard stopped again: replay.", _LOOK),
})  # fmt: skip


class LazyGroup(TyperGroup):
    """Lists `COMMANDS` without importing them. A command returns its exit status, or None for 0."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_help_panel=entry.panel, hidden=entry.is_hidden))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Replace the line of the help by the command itself."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else None, rest

    def invoke(self, ctx: Any) -> None:
        """Run the command, and end with the status that it returns."""
        status = super().invoke(ctx)
        ctx.exit(status if isinstance(status, int) else 0)


def load(name: str) -> Any:
    """Import a command of `COMMANDS`. Returns what typer makes of it."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    parent = typer.Typer()
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return get_group(parent).commands[name]


_EXTRAS = MappingProxyType({"openai": "demo", **dict.fromkeys(("accelerate", "torch", "transformers", "trl"), "torch")})
_CANNOT_START = 2

app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def millrace() -> None:
    """Online reinforcement learning from product telemetry."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: an expected failure prints one line on standard error and exits with status 1; with 2 where a package of an extra is missing.

    Args:
        arguments: by default those of the process.
    """
    create_private_files()
    try:
        app(arguments)
    except MillraceError as error:
        typer.echo(f"millrace: {error.message}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (extra := _EXTRAS.get(error.name or "")) is None:
            raise
        image = ", or use the image millrace-torch" if extra == "torch" else ""
        install = f"pip install 'millrace[{extra}]'{image}"
        typer.echo(f"millrace: {error.name} is not installed, and this command needs it: {install}", err=True)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main()
