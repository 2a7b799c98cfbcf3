"""the log that the database was written with: which topics, and how far they went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a7d21c9f4b60"
down_revision = "a4d19c7be035"


def upgrade() -> None:
    op.create_table(
        "log_topic",
        sa.Column("topic", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("ends", sa.JSON(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("num_lost", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lost_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("topic", name=op.f("pk_log_topic")),
    )


def downgrade() -> None:
    op.drop_table("log_topic")
