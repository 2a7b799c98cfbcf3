"""`millrace database drop-days`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from contracts.errors import InvalidSettings
from contracts.topics import GENERATIONS, RETENTION_DAYS
from runtime.days import drop_days
from runtime.settings import load_settings


def run_drop_days(home: Path, before: str) -> None:
    """Drop the days before a date, and say which."""
    try:
        day = date.fromisoformat(before)
    except ValueError as error:
        raise InvalidSettings(f"--before is a date such as 2026-11-21, not {before!r}") from error
    oldest = datetime.now(UTC).date() - timedelta(days=RETENTION_DAYS[GENERATIONS])
    if day > oldest:
        raise InvalidSettings(
            f"--before is at most {oldest}: the log keeps generations for {RETENTION_DAYS[GENERATIONS]} days, and an audit "
            "would miss the rows of those it still holds"
        )
    database = load_settings(home).database()
    dropped = drop_days(database, day)
    database.close()
    for item in dropped:
        print(f"{item.day}  dropped, with {item.num_generations} generations")
    print(f"{len(dropped)} days dropped")
