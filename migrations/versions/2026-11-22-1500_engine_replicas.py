"""engine replicas: an engine is a row, renewed by the replica itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7d21c4e9b0a3"
down_revision = "c5b07e2a91d4"


def upgrade() -> None:
    op.create_table(
        "engine_replica",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=False),
        sa.Column("abilities", sa.JSON(), nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=False),
        sa.Column("engine", sa.String(length=128), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "name", name=op.f("pk_engine_replica")),
    )


def downgrade() -> None:
    op.drop_table("engine_replica")
