"""Run by Alembic: one transaction, on the connection we were given or on the URL of the command line."""

from __future__ import annotations

import sqlalchemy
from alembic import context
from sqlalchemy import Connection

from contracts.tables import metadata
from runtime.days import is_partition


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name is None or not is_partition(name)


def _migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, include_name=_is_ours)
    context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    _migrate(given)
else:
    engine = sqlalchemy.create_engine(context.config.get_main_option("sqlalchemy.url") or "")
    with engine.begin() as own:
        _migrate(own)
