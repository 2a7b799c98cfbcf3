"""what is about to be deleted is noted before: two-phase deletion of checkpoints, chunks and versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "a4d19c7be035"
down_revision = "8d4b6e02c9f1"


def upgrade() -> None:
    op.create_table(
        "doomed",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("going", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "kind", "name", name=op.f("pk_doomed")),
    )


def downgrade() -> None:
    op.drop_table("doomed")
