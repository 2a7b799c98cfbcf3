"""tries of a request: which answer a later try replaced; why items of feedback were refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "b3f06a81d7c4"
down_revision = "5b0d7f3a9c16"

_INDICES = (("ix_generation_request", "request IS NOT NULL"), ("ix_generation_retry", "retry_count > 0"))


def upgrade() -> None:
    op.add_column("generation", sa.Column("request", sa.String(length=32), nullable=True))
    op.add_column("generation", sa.Column("retry_count", sa.Integer(), nullable=True))
    op.add_column("generation", sa.Column("superseded_by", sa.String(length=64), nullable=True))
    for name, condition in _INDICES:
        op.create_index(
            name, "generation", ["request"], sqlite_where=sa.text(condition), postgresql_where=sa.text(condition)
        )
    op.create_table(
        "rejection_count",
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("reason", name=op.f("pk_rejection_count")),
    )


def downgrade() -> None:
    op.drop_table("rejection_count")
    for name, _ in _INDICES:
        op.drop_index(name, table_name="generation")
    for column in ("superseded_by", "retry_count", "request"):
        op.drop_column("generation", column)
