"""silence: what people who spoke made of answers that graders call equally good, and whose word is counted there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c5b07e2a91d4"
down_revision = "4c19e07ab3d2"


def upgrade() -> None:
    op.create_table(
        "heard",
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("task_hash", sa.String(length=12), nullable=False),
        sa.Column("cohort", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("num_answers", sa.BigInteger(), nullable=False),
        sa.Column("num_heard", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("task", "task_hash", "cohort", "bucket", "asked", name=op.f("pk_heard")),
    )
    op.add_column("vote", sa.Column("evidence", sa.String(length=64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("vote", "evidence")
    op.drop_table("heard")
