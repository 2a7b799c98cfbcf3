"""What all tables share."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData, String

MAX_KEY = 256
"""Characters of a join key or of a session that signals may be about."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BIG_SERIAL = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY counts up by itself in SQLite

# Completion ids begin with their time, so their order is that of time: days are ranges of them (runtime/days.py).
SORTED_ID = String(64).with_variant(String(64, collation="C"), "postgresql")
SORTED_KEY = String(128).with_variant(String(128, collation="C"), "postgresql")
