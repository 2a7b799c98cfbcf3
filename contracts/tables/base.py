"""Column types and naming rules that all tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, MetaData, String, Table
from sqlalchemy.schema import SchemaItem

MAX_KEY = 256
"""Characters of a join key, or of a session that signals can be about."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BIG_SERIAL = BigInteger().with_variant(Integer, "sqlite")  # SQLite auto-increments only INTEGER PRIMARY KEY

# Completion ids begin with their time, so they sort by time: a day is a range of ids (runtime/days.py).
SORTED_ID = String(64).with_variant(String(64, collation="C"), "postgresql")
SORTED_KEY = String(128).with_variant(String(128, collation="C"), "postgresql")


def table(name: str, *items: SchemaItem, **options: Any) -> Table:
    """A table of the one schema."""
    return Table(name, metadata, *items, **options)
