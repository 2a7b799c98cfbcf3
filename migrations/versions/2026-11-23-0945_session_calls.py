"""session calls: which call of a session goes on from which, so that what is said of the session reaches all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7b2e90c4d1f8"
down_revision = "5e1f0a8c27d4"


def upgrade() -> None:
    op.create_table(
        "session_call",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("session_id", sa.String(256), nullable=False),
        sa.Column(
            "completion_id", sa.String(64).with_variant(sa.String(64, collation="C"), "postgresql"), nullable=False
        ),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.String(64), nullable=True),
        sa.Column("parent_choice", sa.Integer(), nullable=True),
        sa.Column("task", sa.String(64), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "completion_id", "choice", name="pk_session_call"),
    )
    op.create_index("ix_session_call_at", "session_call", ["at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_session_call_at", table_name="session_call")
    op.drop_table("session_call")
