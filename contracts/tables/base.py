"""Column types and naming rules that all tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, text
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

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

Columns = list[Column[Any]]
_Type = TypeEngine[Any] | type[TypeEngine[Any]]


def table(name: str, *items: SchemaItem, **options: Any) -> Table:
    """A table of the one schema."""
    return Table(name, metadata, *items, **options)


def keys(**types: _Type) -> Columns:
    """Columns of the primary key, by name."""
    return [Column(name, kind, primary_key=True) for name, kind in types.items()]


def given(default: str | None = None, /, **types: _Type) -> Columns:
    """Columns that every row has; the database writes `default` where an insert leaves them out."""
    return [Column(name, kind, nullable=False, server_default=default) for name, kind in types.items()]


def optional(**types: _Type) -> Columns:
    """Columns that may be NULL."""
    return [Column(name, kind) for name, kind in types.items()]


def partial_index(name: str, where: str, *columns: str) -> Index:
    """An index of the rows that meet a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))
