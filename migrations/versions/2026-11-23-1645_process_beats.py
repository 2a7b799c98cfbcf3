"""process beats: the newest sign of life of every process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "e3b90c4a17d8"
down_revision = "c81f5d20be47"


def upgrade() -> None:
    op.create_table(
        "process_beat",
        sa.Column("policy", sa.String(64), primary_key=True),
        sa.Column("process", sa.String(32), primary_key=True),
        sa.Column("replica", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("step_at", sa.Float, nullable=False),
        sa.Column("longest_step_seconds", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("process_beat")
