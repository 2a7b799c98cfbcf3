"""the gate: what versions answered to its sentinels, and the anchors that later versions are compared with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "8d41c6e0b2f5"
down_revision = "a7d21c9f4b60"


def upgrade() -> None:
    op.create_table(
        "sentinel_answer",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sentinels_hash", sa.String(length=16), nullable=False),
        sa.Column("draw", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "version", "sentinels_hash", "position", name=op.f("pk_sentinel_answer")),
    )
    op.create_table(
        "gate_anchor",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "task", "version", name=op.f("pk_gate_anchor")),
    )


def downgrade() -> None:
    op.drop_table("gate_anchor")
    op.drop_table("sentinel_answer")
