"""`millrace database drop-days`."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from contracts.errors import InvalidSettings
from contracts.partitions import drop_days
from contracts.settings import load_settings


def run_drop_days(home: Path, before: str) -> None:
    """Drop the days before a date, and say which."""
    try:
        day = date.fromisoformat(before)
    except ValueError as error:
        raise InvalidSettings(f"--before is a date such as 2026-11-21, not {before!r}") from error
    database = load_settings(home).database()
    dropped = drop_days(database, day)
    database.close()
    for item in dropped:
        print(f"{item.day}  dropped, with {item.num_generations} generations")
    print(f"{len(dropped)} days dropped")
