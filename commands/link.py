"""`millrace link`: a fresh link that opens the dashboard of a home without a key."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from commands.options import DEFAULT_HOME, HomeOption
from runtime.settings import load_settings
from services.dashboard.signin.repository import Sessions


def link(home: HomeOption = DEFAULT_HOME) -> None:
    """Print a link to the dashboard that works once, within 12 hours, and may only look. Earlier links keep working."""
    print(dashboard_link(home))


def dashboard_link(home: Path) -> str:
    """A fresh one-time link to the dashboard of a home. Raises InvalidSettings: it is no home; Unavailable: its database is not."""
    settings = load_settings(home)
    with closing(settings.database()) as database:
        token = Sessions(database).make_link()
    return f"{settings.dashboard_url}/?token={token}"
