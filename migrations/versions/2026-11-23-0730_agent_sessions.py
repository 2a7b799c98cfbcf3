"""agent sessions: keys of single sessions, and their budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5e1f0a8c27d4"
down_revision = "9c41d07be52a"


def upgrade() -> None:
    op.create_table(
        "agent_session",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("max_calls", sa.BigInteger(), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_seconds", sa.Float(), nullable=True),
        sa.Column("num_calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_agent_session"),
    )
    op.create_index("ix_agent_session_expires_at", "agent_session", ["expires_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_agent_session_expires_at", table_name="agent_session")
    op.drop_table("agent_session")
