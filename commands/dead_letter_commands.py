"""`millrace dead-letters`: the entries of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption

dead_letter_app = typer.Typer(
    help="Records that no worker could process: list, show, redrive, skip.", no_args_is_help=True
)

_Process = Annotated[str, typer.Argument(help="episodes, rewards, training, or who could not send it.")]
_Place = Annotated[str | None, typer.Argument(help="TOPIC/PARTITION@OFFSET, as `list` prints it.")]
_All = Annotated[bool, typer.Option("--all", help="All that nobody has dealt with yet.")]
_Topic = Annotated[str | None, typer.Option(help="Only of this topic.")]


@dead_letter_app.command("list")
def list_letters(
    process: Annotated[str | None, typer.Option(help="Only of this process.")] = None,
    topic: _Topic = None,
    settled: Annotated[bool, typer.Option("--all", help="Those too that were redriven or skipped.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print dead letters that nobody has dealt with, the oldest first."""
    from commands.dead_letters import print_letters  # noqa: PLC0415

    print_letters(home, process=process, topic=topic, settled=settled, as_json=as_json)


@dead_letter_app.command()
def show(
    process: _Process,
    place: Annotated[str, typer.Argument(help="TOPIC/PARTITION@OFFSET, as `list` prints it.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print one: its record as far as it can be read, why it cannot be processed, the traceback."""
    from commands.dead_letters import print_letter  # noqa: PLC0415

    print_letter(home, process, place)


@dead_letter_app.command()
def redrive(
    process: _Process,
    place: _Place = None,
    everything: _All = False,
    topic: _Topic = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Send the original bytes to the end of their topic again, once what failed is mended.

    Consumers know records by their keys, so nothing is done twice. It cannot mend the bytes, nor the order: the record comes
    after those that followed it. One that fails again is buried again, at its new place.
    """
    from commands.dead_letters import run_redrive  # noqa: PLC0415

    run_redrive(home, process, place, topic, everything=everything)


@dead_letter_app.command()
def skip(
    process: _Process,
    place: _Place = None,
    everything: _All = False,
    topic: _Topic = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Accept the loss: it no longer counts against the limits, and is kept for looking.

    A sample that waits for it becomes `unscored(dead_letter)`, a signal `rejected(dead_letter)`; a generation is counted as
    `dead_letter`.
    """
    from commands.dead_letters import run_skip  # noqa: PLC0415

    run_skip(home, process, place, topic, everything=everything)
