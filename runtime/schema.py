"""The schema of the database and of this release: are they the same? Waits for: the database.

A process of another release beside this one would read and write the same tables in another way. So every process compares at its
start, and only `millrace init` and `millrace up` change a schema.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from contracts.errors import InvalidSettings

_MIGRATIONS = Path(__file__).parent.parent / "migrations"


def upgrade(connection: Connection) -> None:
    """Apply all migrations. Raises CommandError: the database names one that this release lacks."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@cache
def known_revisions() -> tuple[str, ...]:
    """The migrations of this release, the newest first."""
    return tuple(item.revision for item in ScriptDirectory.from_config(_config()).walk_revisions())


def newest() -> str:
    """The revision that this release works with."""
    return known_revisions()[0]


def release() -> str:
    """Name and version of this release."""
    try:
        return f"Millrace {version('millrace')}"
    except PackageNotFoundError:
        return "Millrace, from a checkout"


def revision_of(connection: Connection) -> str | None:
    """The revision of a database; None: it has no tables of Millrace."""
    return MigrationContext.configure(connection).get_current_revision()


def require_same(connection: Connection) -> None:
    """Refuse a database that a process of this release would misread. Raises InvalidSettings: says which is older, and what to do."""
    found = revision_of(connection)
    if found == newest():
        return
    ours = f"schema {newest()} of this release ({release()})"
    if found is None:
        raise InvalidSettings(f"the database has no tables: `millrace init` makes the {ours}")
    if found in known_revisions():
        raise InvalidSettings(
            f"the database has the older schema {found}, and this process needs {ours}: stop the workers of the older release and "
            "run `millrace init` of this one; or start the image of the older release"
        )
    raise InvalidSettings(
        f"the database has schema {found}, which a newer release made, and this process knows only up to {ours}: "
        "start the image of the newer release; one of this release beside it is refused"
    )


def is_read_only(connection: Connection) -> bool:
    """Whether PostgreSQL takes no writes: it is a standby, or was told so."""
    return bool(connection.exec_driver_sql("SHOW transaction_read_only").scalar_one() == "on")


def _config() -> Config:
    found = Config()
    found.set_main_option("script_location", str(_MIGRATIONS))
    return found
