"""ledger seals: what an audit has proven of each day, and what was dropped with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "9d4e61b7c3f2"
down_revision = "5a2c9e7714d3"


def upgrade() -> None:
    op.create_table(
        "ledger_seal",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("num", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(16), nullable=False),
        sa.Column("states", sa.JSON, nullable=False),
        sa.Column("sealed_at", sa.Float),
        sa.Column("closed_at", sa.Float),
        sa.Column("num_dropped", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("hash_dropped", sa.String(16), nullable=False, server_default="0"),
        sa.Column("dropped_at", sa.Float),
    )
    op.create_table(
        "ledger_mark",
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("ledger_mark")
    op.drop_table("ledger_seal")
