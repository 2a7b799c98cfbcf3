"""`millrace log ...`: look at the log, and go on with one that was lost."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption

log_app = typer.Typer(help="Look at the log.", no_args_is_help=True)


@log_app.command("tail")
def log_tail(
    topic: Annotated[str, typer.Argument(help="generations, signals, episodes, experiences or outcomes.")],
    home: HomeOption = DEFAULT_HOME,
    count: Annotated[int, typer.Option("-n", help="How many of the newest records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> None:
    """Print records of a topic as JSON."""
    from commands.log import tail  # noqa: PLC0415

    tail(home, topic, count, follow=follow)


@log_app.command("accept-loss")
def log_accept_loss(
    home: HomeOption = DEFAULT_HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what it would do.")] = False,
) -> None:
    """Go on with a log that is not the one of the database, or less of it: what is lost, and what becomes of it."""
    from commands.log_loss import run_accept_loss  # noqa: PLC0415

    run_accept_loss(home, yes=yes)
