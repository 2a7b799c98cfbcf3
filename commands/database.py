"""`millrace database drop-days`: drop old days of PostgreSQL's partitioned tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.topics import GENERATIONS, RETENTION_DAYS
from runtime import days
from runtime.settings import load_settings

app = typer.Typer(help="Drop old days from the database.", no_args_is_help=True)


@app.command()
def drop_days(
    before: Annotated[str, typer.Option(help="YYYY-MM-DD, UTC: the first day to keep.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Drop whole days of generations, signals, scores and outcomes (PostgreSQL). A day with pending samples is refused."""
    try:
        day = date.fromisoformat(before)
    except ValueError as error:
        raise InvalidSettings(f"--before is a date such as 2026-11-21, not {before!r}") from error
    oldest = datetime.now(UTC).date() - timedelta(days=RETENTION_DAYS[GENERATIONS])
    if day > oldest:
        raise InvalidSettings(
            f"--before is at most {oldest}: the log keeps generations for {RETENTION_DAYS[GENERATIONS]} days, and an audit "
            "would miss the rows of generations that are still in the log"
        )
    database = load_settings(home).database()
    dropped = days.drop_days(database, day)
    database.close()
    for item in dropped:
        print(f"{item.day}  dropped, with {item.num_generations} generations")
    print(f"{len(dropped)} days dropped")
